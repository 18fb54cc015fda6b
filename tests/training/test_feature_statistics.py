import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.moment_sums import BLOCK_ROWS

NAN = float("nan")


def random_stream(seed, sizes=(2, 3), n_images=(40, 30), width=6):
    """Per experience: features that are correlated and off centre, and 0/1 labels."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(width, width))
    return [
        (
            torch.from_numpy(generator.normal(size=(n, width)) @ mixing + 1.5),
            torch.from_numpy((generator.random((n, size)) < 0.4).astype(float)),
        )
        for size, n in zip(sizes, n_images)
    ]


def feed(stream, batch_size=7):
    statistics = FeatureStatistics()
    for features, targets in stream:
        statistics.begin(targets.shape[1])
        for rows in torch.arange(len(features)).split(batch_size):
            statistics.update(features[rows], targets[rows])
    return statistics


def assert_same(statistics, expected, rtol=1e-12):
    assert statistics.block_sizes == expected.block_sizes
    for t in range(expected.n_experiences):
        torch.testing.assert_close(statistics.moments(t), expected.moments(t), rtol=rtol, atol=1e-9)


def test_statistics_match_numpy_on_the_raw_features():
    stream = random_stream(0)
    statistics = feed(stream)
    for t, (features, targets) in enumerate(stream):
        f, y = features.numpy(), targets.numpy()
        assert statistics.count(t) == len(f)
        np.testing.assert_allclose(statistics.mean(t), f.mean(0), rtol=1e-12)
        np.testing.assert_allclose(statistics.covariance(t), np.cov(f.T, bias=True), rtol=1e-10)
        np.testing.assert_allclose(statistics.feature_sum(t), f.sum(0), rtol=1e-12)
        np.testing.assert_allclose(statistics.gram(t), sum(np.outer(a, a) for a in f), rtol=1e-12)
        np.testing.assert_allclose(statistics.cross(t), sum(np.outer(a, b) for a, b in zip(f, y)), rtol=1e-12)
        np.testing.assert_allclose(statistics.label_sum(t), y.sum(0))
        np.testing.assert_allclose(statistics.label_products(t), y.T @ y)


def test_sizes_and_columns_follow_the_experiences():
    statistics = feed(random_stream(0))
    assert (statistics.n_experiences, statistics.n_classes, statistics.width) == (2, 5, 6)
    assert [statistics.columns(t) for t in range(2)] == [slice(0, 2), slice(2, 5)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), batch_size=st.integers(1, 80))
def test_order_and_batches_do_not_matter(seed, batch_size):
    stream = random_stream(seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(features), generator=generator) for features, _ in stream]
    shuffled = [
        (features[order], targets[order]) for (features, targets), order in zip(stream, orders, strict=True)
    ]
    assert_same(feed(shuffled, batch_size), feed(stream))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), cut=st.integers(0, 30))
def test_merged_parts_equal_the_whole(seed, cut):
    stream = random_stream(seed)
    first, second = (
        feed([(f[:cut], y[:cut]) for f, y in stream]),
        feed([(f[cut:], y[cut:]) for f, y in stream]),
    )
    second.flush()
    before = {name: value.clone() for name, value in second.state_dict().items()}
    first.merge(second)
    assert_same(first, feed(stream))
    for name, value in second.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), cut=st.integers(1, 29))
def test_removed_images_were_never_there(seed, cut):
    stream = random_stream(seed)
    statistics = feed(stream)
    for t, (features, targets) in enumerate(stream):
        statistics.remove(features[:cut], targets[:cut], experience=t)
    assert_same(statistics, feed([(f[cut:], y[cut:]) for f, y in stream]), rtol=1e-10)
    for t, (features, targets) in enumerate(stream):
        statistics.update(features[:cut], targets[:cut], experience=t)
    assert_same(statistics, feed(stream))


def test_subtract_undoes_merge():
    stream, other = random_stream(0), feed(random_stream(1))
    statistics = feed(stream)
    statistics.merge(other)
    statistics.subtract(other)
    assert_same(statistics, feed(stream), rtol=1e-10)


def test_full_targets_find_their_experience():
    """An image with NaN outside its own columns can be given to all experiences in turn."""
    stream = random_stream(0)
    statistics, kept = feed(stream), feed([stream[0], (stream[1][0][10:], stream[1][1][10:])])
    features = stream[1][0][:10]
    targets = torch.cat([torch.full((10, 2), NAN), stream[1][1][:10]], dim=1)
    for t in range(2):
        statistics.remove(features, targets[:, statistics.columns(t)], experience=t)
    assert_same(statistics, kept, rtol=1e-10)


def test_all_images_can_be_removed():
    stream = random_stream(0)
    statistics = feed(stream)
    statistics.remove(*stream[1])
    assert statistics.count(1) == 0
    assert not statistics.moments(1).any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_mapped_sums_equal_sums_of_mapped_features(seed):
    stream = random_stream(seed)
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    shift = torch.randn(6, generator=generator, dtype=torch.float64)
    statistics = feed(stream)
    statistics.map(A, shift)
    assert_same(statistics, feed([(f @ A + shift, y) for f, y in stream]), rtol=1e-9)


def test_map_can_move_older_experiences_only():
    stream = random_stream(0)
    shift = torch.ones(6)
    statistics = feed(stream)
    statistics.map(torch.eye(6), shift, experiences=[0])
    assert_same(statistics, feed([(stream[0][0] + 1, stream[0][1]), stream[1]]), rtol=1e-10)


def test_rows_without_own_labels_are_left_out():
    (features, targets) = random_stream(0)[0]
    with_others = targets.clone()
    with_others[::3] = NAN
    kept = [k for k in range(len(features)) if k % 3]
    assert_same(feed([(features, with_others)]), feed([(features[kept], targets[kept])]))


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_features_that_are_not_finite_are_rejected_and_nothing_is_lost(value):
    stream = random_stream(0)
    statistics = feed(stream)
    features, targets = (part[:5].clone() for part in stream[1])
    features[3, 4] = value
    with pytest.raises(ValueError, match=f"Feature 4 of row 3 is {value}"):
        statistics.update(features, targets)
    assert_same(statistics, feed(stream))


@pytest.mark.parametrize("value", [NAN, 0.5, 2.0, float("inf")])
def test_own_targets_must_be_binary(value):
    statistics = FeatureStatistics()
    statistics.begin(2)
    targets = torch.zeros(4, 2)
    targets[2, 1] = value
    with pytest.raises(ValueError, match=f"row 2, column 1 is {value}"):
        statistics.update(torch.zeros(4, 3), targets)
    assert statistics.count(0) == 0


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (torch.zeros(2, 5), torch.zeros(2, 3), r"\[images, 6\], not \(2, 5\)"),
        (torch.zeros(6), torch.zeros(1, 3), r"\[images, 6\], not \(6,\)"),
        (torch.zeros(2, 6), torch.zeros(2, 2), r"\(2, 3\), one column per class .* not \(2, 2\)"),
        (torch.zeros(2, 6), torch.zeros(3, 3), r"\(2, 3\), one column per class .* not \(3, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected(features, targets, message):
    statistics = feed(random_stream(0))
    with pytest.raises(ValueError, match=message):
        statistics.update(features, targets)
    with pytest.raises(ValueError, match=message):
        statistics.remove(features, targets)


def test_removing_more_images_than_were_added_is_rejected():
    (features, targets), statistics = random_stream(0)[1], feed(random_stream(0))
    with pytest.raises(ValueError, match="Experience 1 would have -30 images"):
        statistics.remove(torch.cat([features, features]), torch.cat([targets, targets]))
    assert_same(statistics, feed(random_stream(0)))


def test_removing_other_labels_is_rejected():
    statistics = FeatureStatistics()
    statistics.begin(1)
    statistics.update(torch.rand(4, 3), torch.zeros(4, 1))
    with pytest.raises(ValueError, match="-1 positives of its class 0 on 3 images"):
        statistics.remove(torch.rand(1, 3), torch.ones(1, 1))


def test_removing_other_features_is_rejected():
    (features, targets), statistics = random_stream(0)[1], feed(random_stream(0))
    with pytest.raises(ValueError, match="variance below 0 in feature"):
        statistics.remove(features[:1] + 100, targets[:1])
    with pytest.raises(ValueError, match="variance below 0 in feature"):
        statistics.remove(features.flip(1), targets)  # as many images and labels, but nothing must be left
    assert_same(statistics, feed(random_stream(0)))


def test_subtract_removes_all_or_nothing():
    stream = random_stream(0)
    statistics = feed(stream)
    with pytest.raises(ValueError, match="Experience 1 would have -30 images"):
        statistics.subtract(feed([stream[0], (stream[1][0].repeat(2, 1), stream[1][1].repeat(2, 1))]))
    assert_same(statistics, feed(stream))


def test_statistics_of_other_classes_or_features_cannot_be_combined():
    statistics = feed(random_stream(0))
    with pytest.raises(ValueError, match=r"\(2, 3\) classes .* \(3, 2\)"):
        statistics.merge(feed(random_stream(0, sizes=(3, 2))))
    with pytest.raises(ValueError, match=r"6 features .* 5"):
        statistics.merge(feed(random_stream(0, width=5)))


def test_map_of_another_shape_or_with_nan_is_rejected():
    statistics = feed(random_stream(0))
    with pytest.raises(ValueError, match=r"A of \(6, 6\) .* \(5, 5\)"):
        statistics.map(torch.eye(5), torch.zeros(5))
    with pytest.raises(ValueError, match="NaN or infinite"):
        statistics.map(torch.eye(6), torch.full((6,), NAN))
    assert_same(statistics, feed(random_stream(0)))


def test_nothing_can_be_read_before_the_first_image():
    statistics = FeatureStatistics()
    with pytest.raises(RuntimeError, match="No experience is open"):
        statistics.update(torch.zeros(1, 2), torch.zeros(1, 1))
    statistics.begin(1)
    assert statistics.count(0) == 0
    with pytest.raises(ValueError, match="no images yet"):
        statistics.gram(0)
    with pytest.raises(IndexError, match="no experience 1"):
        statistics.count(1)
    with pytest.raises(ValueError, match=r"n_new must be at least 0, not -1"):
        statistics.begin(-1)


def test_an_experience_without_images_has_zero_sums_but_no_mean():
    statistics = feed(random_stream(0))
    statistics.begin(2)
    assert not statistics.gram(2).any()
    assert statistics.cross(2).shape == (6, 2)
    with pytest.raises(ValueError, match="Experience 2 has no images"):
        statistics.mean(2)


def test_one_image_has_a_covariance_of_zero():
    statistics = FeatureStatistics()
    statistics.begin(1)
    statistics.update(torch.tensor([[1.0, 2.0]]), torch.ones(1, 1))
    torch.testing.assert_close(statistics.mean(0), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert not statistics.covariance(0).any()


def test_state_of_an_experience_without_images_can_be_loaded():
    statistics, loaded = FeatureStatistics(), FeatureStatistics()
    statistics.begin(2)
    loaded.load_state_dict(statistics.state_dict())
    loaded.update(torch.ones(1, 3), torch.zeros(1, 2))
    assert (loaded.block_sizes, loaded.count(0), statistics.count(0)) == ((2,), 1, 0)


def test_a_damaged_state_is_rejected():
    state = feed(random_stream(0)).state_dict()
    with pytest.raises(ValueError, match="damaged or of another version"):
        FeatureStatistics().load_state_dict(state | {"block_sizes": torch.tensor([2])})


@pytest.mark.parametrize("cut", [1, 100, 256, 300])
def test_saved_in_the_middle_sums_are_the_same_to_the_last_bit(cut, tmp_path):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(600, 5, generator=generator)
    targets = (torch.rand(600, 2, generator=generator) < 0.5).float()
    whole, resumed = FeatureStatistics(), FeatureStatistics()
    for start in range(0, 600, 10):
        if start == 0:
            whole.begin(2)
        whole.update(features[start : start + 10], targets[start : start + 10])
        if start == cut // 10 * 10:
            state = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
            done = start + 10
    torch.save(state, tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for start in range(done, 600, 10):
        resumed.update(features[start : start + 10], targets[start : start + 10])
    assert torch.equal(resumed.moments(0), whole.moments(0))


def test_state_takes_no_more_than_the_documented_memory():
    state = feed(random_stream(0, sizes=(2, 2), width=200)).state_dict()
    size = sum(value.numel() * value.element_size() for value in state.values())
    assert size <= 1.05 * 2 * 200**2 * 8


def test_features_may_change_after_they_were_added():
    stream = random_stream(0)
    statistics, batch = FeatureStatistics(), stream[0][0].clone()
    statistics.begin(2)
    statistics.update(batch, stream[0][1])
    batch.zero_()  # as a loader that reuses its memory
    assert_same(statistics, feed(stream[:1]))


def test_what_was_read_does_not_change_with_later_images():
    stream = random_stream(0)
    statistics, merged = feed(stream), FeatureStatistics()
    for size in statistics.block_sizes:
        merged.begin(size)
    merged.merge(statistics)
    statistics.flush()
    state, copies = statistics.state_dict(), [statistics.gram(t).clone() for t in (0, 1)]
    for t in (0, 1, 1):
        statistics.update(*stream[t], experience=t)
        merged.update(*stream[t], experience=t)
        assert statistics.count(t) == merged.count(t)
    for t, copy in enumerate(copies):
        torch.testing.assert_close(state[f"{t}.sums"][1:7, 1:7], copy, rtol=0, atol=0)
        torch.testing.assert_close(merged.moments(t), statistics.moments(t), rtol=1e-12, atol=0)


def test_gradients_are_not_kept():
    statistics = FeatureStatistics()
    statistics.begin(1)
    statistics.update(torch.rand(BLOCK_ROWS, 2, requires_grad=True) * 2, torch.zeros(BLOCK_ROWS, 1))
    assert not statistics.moments(0).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_of_any_precision_are_exact(dtype):
    """Sums in the precision of the features would stop growing or lose small features."""
    features = torch.cat([torch.full((1, 1), 2000.0), torch.full((3000, 1), 0.25)]).to(dtype)
    statistics = feed([(features, torch.zeros(3001, 1, dtype=torch.int8))], batch_size=64)
    first = float(features[0])
    assert statistics.feature_sum(0).item() == first + 750
    assert statistics.gram(0).item() == first**2 + 187.5


PROCESS = """
import sys, torch
from avalanche_agcn.training.feature_statistics import FeatureStatistics
path, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
statistics = FeatureStatistics()
for t, (features, targets) in enumerate(torch.load(f"{path}/stream.pt", weights_only=True)):
    statistics.begin(targets.shape[1])
    statistics.synchronize()  # before any image
    share = slice(rank, None, 2) if t == 1 else slice(0, None if rank == 0 else 0)  # first: one has none
    for k, (f, y) in enumerate(zip(features[share].split(4), targets[share].split(4))):
        statistics.update(f, y)
        if t == 1 and k == 1:
            statistics.synchronize()  # in the middle, as before a checkpoint
    statistics.synchronize()
    statistics.synchronize()
torch.save(statistics.state_dict(), f"{path}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_two_processes_equal_one(tmp_path):
    stream = random_stream(0)
    torch.save(stream, tmp_path / "stream.pt")
    commands = [[sys.executable, "-c", PROCESS, str(tmp_path), str(rank)] for rank in range(2)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for rank in range(2):
        statistics = FeatureStatistics()
        statistics.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
        assert_same(statistics, feed(stream))
