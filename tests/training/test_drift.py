import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.moment_sums import DriftMap

WIDTH = 5


def random_pairs(seed=0, n=40):
    """Features of a teacher, and of a student that moved partly at random."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) + 2
    move = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 5
    noise = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) / 10
    return teacher, teacher @ (torch.eye(WIDTH) + move) + 0.5 + noise


def feed(teacher, student, batch_size=7):
    drift = DriftMap()
    for rows in torch.arange(len(teacher)).split(batch_size):
        drift.update(teacher[rows], student[rows])
    return drift


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("ridge", [0.1, 50.0])
def test_map_matches_least_squares_with_augmented_rows(n, ridge):
    """Rows √λ·e_k with the target 0 make least squares of Δ a ridge regression."""
    teacher, student = random_pairs(n=n)
    mean = teacher.mean(0)
    design = torch.cat([teacher - mean, torch.ones(n, 1)], dim=1)
    penalty = np.sqrt(ridge) * torch.eye(WIDTH, WIDTH + 1, dtype=torch.float64)
    targets = torch.cat([student - teacher, torch.zeros(WIDTH, WIDTH)])
    M = torch.linalg.lstsq(torch.cat([design, penalty]), targets).solution
    A, shift = feed(teacher, student).solve(ridge)
    torch.testing.assert_close(A, torch.eye(WIDTH) + M[:-1], rtol=0, atol=1e-9)
    torch.testing.assert_close(shift, M[-1] - mean @ M[:-1], rtol=0, atol=1e-9)


def test_linear_drift_is_undone_exactly():
    """Old sums, moved by the map, are the sums of the features as the student gives them."""
    teacher, _ = random_pairs(0)
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    old, labels = random_pairs(2)[0], (torch.rand(40, 2, generator=generator) < 0.5).double()
    statistics, expected = FeatureStatistics(), FeatureStatistics()
    for sums, features in ((statistics, old), (expected, old @ A + 3)):
        sums.begin(2)
        sums.update(features, labels)
    statistics.map(*feed(teacher, teacher @ A + 3).solve(ridge=1e-9))
    torch.testing.assert_close(statistics.moments(0), expected.moments(0), rtol=1e-6, atol=1e-6)


def test_without_drift_the_map_is_the_identity():
    teacher, _ = random_pairs()
    A, shift = feed(teacher, teacher).solve()
    torch.testing.assert_close(A, torch.eye(WIDTH, dtype=torch.float64))
    torch.testing.assert_close(shift, torch.zeros(WIDTH, dtype=torch.float64))


def test_a_strong_ridge_leaves_the_mean_shift():
    teacher, student = random_pairs()
    A, shift = feed(teacher, student).solve(ridge=1e12)
    torch.testing.assert_close(A, torch.eye(WIDTH, dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(shift, (student - teacher).mean(0), rtol=0, atol=1e-8)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), batch_size=st.integers(1, 50))
def test_order_and_batches_do_not_matter(seed, batch_size):
    teacher, student = random_pairs(seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    expected = feed(teacher, student).solve(10.0)
    for part, other in zip(feed(teacher[order], student[order], batch_size).solve(10.0), expected):
        torch.testing.assert_close(part, other, rtol=0, atol=1e-10)


def test_state_survives_a_file_and_goes_on(tmp_path):
    teacher, student = random_pairs()
    torch.save(feed(teacher[:9], student[:9]).state_dict(), tmp_path / "state.pt")
    drift = DriftMap()
    drift.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    drift.update(teacher[9:], student[9:])
    assert drift.count == 40
    for part, expected in zip(drift.solve(), feed(teacher, student).solve()):
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-10)


def test_an_empty_state_can_be_loaded_and_a_damaged_one_is_rejected():
    drift = feed(*random_pairs())
    drift.load_state_dict(DriftMap().state_dict())
    assert drift.count == 0
    with pytest.raises(ValueError, match="sums"):
        drift.load_state_dict({"sums": torch.zeros(0)})


PROCESS = """
import sys, torch
from avalanche_agcn.training.moment_sums import DriftMap
path, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=3)
teacher, student = torch.load(f"{path}/pairs.pt", weights_only=True)
drift = DriftMap()
if rank < 2:  # the last process has no pairs
    drift.update(teacher[rank::2], student[rank::2])
drift.synchronize(teacher.shape[1])
torch.save(drift.state_dict(), f"{path}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_several_processes_equal_one(tmp_path):
    pairs = random_pairs()
    torch.save(pairs, tmp_path / "pairs.pt")
    commands = [[sys.executable, "-c", PROCESS, str(tmp_path), str(rank)] for rank in range(3)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    expected = feed(*pairs).solve()
    for rank in range(3):
        drift = DriftMap()
        drift.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
        for part, other in zip(drift.solve(), expected):
            torch.testing.assert_close(part, other, rtol=0, atol=1e-10)


def test_one_process_synchronizes_to_what_it_has():
    drift = feed(*random_pairs())
    drift.synchronize(WIDTH)
    assert drift.count == 40


def test_input_that_does_not_fit_is_rejected_and_nothing_is_lost():
    drift = feed(*random_pairs())
    with pytest.raises(ValueError, match=r"teacher must be \[images, 5\], not \(2, 4\)"):
        drift.update(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="teacher has 2 images, but student 3"):
        drift.update(torch.zeros(2, 5), torch.zeros(3, 5))
    with pytest.raises(ValueError, match="Feature 0 of row 0 is nan"):
        drift.update(torch.zeros(1, 5), torch.full((1, 5), float("nan")))
    assert drift.count == 40


def test_nothing_is_solved_without_pairs_or_with_a_wrong_ridge():
    with pytest.raises(ValueError, match="no pairs"):
        DriftMap().solve()
    with pytest.raises(ValueError, match=r"ridge must be above 0, not 0\.0"):
        feed(*random_pairs()).solve(0.0)
