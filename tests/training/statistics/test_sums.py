import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.statistics.drift_map import DriftMap
from avalanche_agcn.training.statistics.features import FeatureStatistics

WIDTH = 5
EYE = torch.eye(WIDTH, dtype=torch.float64)


def random_pairs(seed=0, n=40):
    """Features of a teacher, and of a student that moved partly at random."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) + 2
    move = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 5
    noise = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) / 10
    return teacher, teacher @ (EYE + move) + 0.5 + noise


def make_map(teacher, student, batch_size=7):
    drift = DriftMap()
    for rows in torch.arange(len(teacher)).split(batch_size):
        drift.update(teacher[rows], student[rows])
    return drift


def assert_map(drift, A, shift, ridge=10.0):
    for found, expected in zip(drift.solve(ridge), (A, shift)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


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
    assert_map(make_map(teacher, student), EYE + M[:-1], M[-1] - mean @ M[:-1], ridge)


def test_linear_drift_is_undone_exactly(feature_stream, feed):
    """Old sums, changed by the map, are the sums of the student's features."""
    teacher, student = random_pairs()
    A = student[:WIDTH]
    ((old, labels),) = feature_stream(0, sizes=[2], n_images=[40], width=WIDTH)
    statistics = feed([(old, labels)])
    statistics.map(*make_map(teacher, teacher @ A + 3).solve(ridge=1e-9))
    expected = feed([(old @ A + 3, labels)]).moments(0)
    torch.testing.assert_close(statistics.moments(0), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), batch_size=st.integers(1, 50), cut=st.integers(0, 40))
def test_order_batches_and_saving_do_not_matter(seed, batch_size, cut):
    teacher, student = random_pairs(seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    first, rest = order.split([cut, 40 - cut])
    drift = make_map(torch.ones(1, WIDTH), torch.ones(1, WIDTH))
    drift.load_state_dict(make_map(teacher[first], student[first], batch_size).state_dict())
    drift.synchronize()  # with one process
    for rows in rest.split(batch_size):
        drift.update(teacher[rows], student[rows])
    assert drift.count == 40
    assert_map(drift, *make_map(teacher, student).solve(10.0))


def test_wrong_pairs_are_rejected_and_change_nothing():
    drift = make_map(*random_pairs())
    for pair, message in [
        (((2, 4), (2, 4)), r"teacher must be \[images, 5\], not \[2, 4\]"),
        (((2, 5), (2, 4)), r"student must be \[2, 5\], the shape of the teacher's features, not \[2, 4\]"),
        (((2, 5), (3, 5)), r"student must be \[2, 5\], .* not \[3, 5\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            drift.update(*map(torch.zeros, pair))
    with pytest.raises(ValueError, match="Feature 0 of row 0 is nan"):
        drift.update(torch.zeros(1, 5), torch.full((1, 5), float("nan")))
    for name in ("sums", "features"):
        with pytest.raises(ValueError, match=rf"{name} must be \[rows, columns\], not \[0\]"):
            drift.load_state_dict({name: torch.zeros(0)})
    with pytest.raises(ValueError, match=r"ridge must be above 0, not 0\.0"):
        drift.solve(0.0)
    assert drift.count == 40
    drift.load_state_dict(DriftMap().state_dict())
    with pytest.raises(ValueError, match="no pairs"):
        drift.solve()


def sum_up_a_share(path, rank, pairs, stream):
    """Save the sums of all three processes, as this one has them."""
    store = {"init_method": f"file://{path}/store", "rank": rank, "world_size": 3}
    torch.distributed.init_process_group("gloo", **store)
    drift = DriftMap()
    if rank < 2:  # the last process has no pairs
        drift.update(pairs[0][rank::2], pairs[1][rank::2])
    drift.synchronize()
    statistics = FeatureStatistics()
    for t, (features, targets) in enumerate(stream):
        statistics.begin(targets.shape[1])
        statistics.synchronize()  # before any image
        share = slice(rank, None, 3) if t == 1 else slice(0, None if rank == 0 else 0)  # first: two have none
        for k, (f, y) in enumerate(zip(features[share].split(4), targets[share].split(4))):
            statistics.update(f, y)
            if t == 1 and k == 1:
                statistics.synchronize()  # in the middle, as before a checkpoint
        statistics.synchronize()
        statistics.synchronize()
    torch.save([drift.state_dict(), statistics.state_dict()], f"{path}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_several_processes_equal_one(tmp_path, feature_stream, feed, fork):
    pairs, stream = random_pairs(), feature_stream(0)[:2]
    processes = [fork(sum_up_a_share, tmp_path, rank, pairs, stream) for rank in range(3)]
    assert [process.wait()[1] for process in processes] == [0, 0, 0]
    for rank in range(3):
        states = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        drift, statistics = DriftMap(), FeatureStatistics()
        drift.load_state_dict(states[0])
        statistics.load_state_dict(states[1])
        assert_map(drift, *make_map(*pairs).solve(10.0))
        for t in range(2):
            torch.testing.assert_close(statistics.moments(t), feed(stream).moments(t), rtol=1e-12, atol=1e-9)
