import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.statistics.features import FeatureStatistics

NAN = float("nan")
SEEDS = st.integers(0, 2**20)


@pytest.fixture(scope="session")
def draw(feature_stream):
    """Two experiences of two and three classes, of 40 and 30 images."""
    return lambda seed=0: feature_stream(seed, sizes=(2, 3), n_images=(40, 30))


def part(stream, rows):
    return [(features[rows], targets[rows]) for features, targets in stream]


def assert_same(statistics, expected, rtol=1e-12):
    assert statistics.block_sizes == expected.block_sizes
    for t in range(expected.n_experiences):
        torch.testing.assert_close(statistics.moments(t), expected.moments(t), rtol=rtol, atol=1e-9)


def test_statistics_match_numpy_on_the_raw_features(feature_stream, feed):
    stream = feature_stream(0, n_images=(40, 30, 1))
    statistics = feed(stream)
    assert (statistics.n_experiences, statistics.n_classes, statistics.width) == (3, 6, 6)
    assert [statistics.columns(t) for t in range(3)] == [slice(0, 2), slice(2, 5), slice(5, 6)]
    for t, (features, targets) in enumerate(stream):
        f, y = features.numpy(), targets.numpy()
        assert statistics.count(t) == len(f)
        np.testing.assert_allclose(statistics.covariance(t), np.cov(f.T, bias=True), rtol=1e-10, atol=1e-12)
        for name, expected in {
            "mean": f.mean(0),
            "feature_sum": f.sum(0),
            "gram": sum(np.outer(a, a) for a in f),
            "cross": sum(np.outer(a, b) for a, b in zip(f, y)),
            "label_sum": y.sum(0),
            "label_products": y.T @ y,
        }.items():
            np.testing.assert_allclose(getattr(statistics, name)(t), expected, rtol=1e-12)


@settings(max_examples=25)
@given(seed=SEEDS, batch_size=st.integers(1, 80))
def test_order_and_batches_do_not_matter(draw, feed, seed, batch_size):
    stream = draw(seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(features), generator=generator) for features, _ in stream]
    shuffled = [(features[order], targets[order]) for (features, targets), order in zip(stream, orders)]
    assert_same(feed(shuffled, batch_size), feed(stream))


@settings(max_examples=25)
@given(seed=SEEDS, cut=st.integers(0, 30))
def test_merged_parts_equal_the_whole_and_can_be_subtracted_again(draw, feed, seed, cut):
    stream = draw(seed)
    first, second = feed(part(stream, slice(cut))), feed(part(stream, slice(cut, None)))
    second.flush()
    before = {name: value.clone() for name, value in second.state_dict().items()}
    first.merge(second)
    assert_same(first, feed(stream))
    first.subtract(second)
    assert_same(first, feed(part(stream, slice(cut))), rtol=1e-10)
    for name, value in second.state_dict().items():
        assert torch.equal(value, before[name])


@settings(max_examples=25)
@given(seed=SEEDS, cut=st.integers(1, 30))
@example(seed=0, cut=30)
def test_removed_images_were_never_there(draw, feed, seed, cut):
    """Full targets, with NaN outside an image's own columns, are given to all experiences in turn."""
    stream = draw(seed)
    statistics = feed(stream)
    rows = []
    for t, (features, targets) in enumerate(part(stream, slice(cut))):
        full = torch.full((cut, 5), NAN)
        full[:, statistics.columns(t)] = targets.float()
        rows.append((features, full))

    def apply(change):
        for features, full in rows:
            for t, half in itertools.product(range(2), torch.arange(cut).chunk(2)):
                change(features[half], full[half, statistics.columns(t)], experience=t)

    apply(statistics.remove)
    assert_same(statistics, feed(part(stream, slice(cut, None))), rtol=1e-10)
    assert cut < 30 or not statistics.moments(1).any()  # no rounding error remains
    apply(statistics.update)
    assert_same(statistics, feed(stream))


@settings(max_examples=25)
@given(seed=SEEDS, experiences=st.sampled_from([None, [0], [1]]))
def test_mapped_sums_equal_sums_of_mapped_features(draw, feed, seed, experiences):
    stream = draw(seed)
    generator = torch.Generator().manual_seed(seed)
    A, shift = torch.randn(7, 6, generator=generator, dtype=torch.float64).split([6, 1])
    statistics = feed(stream)
    statistics.map(A, shift[0], experiences=experiences)
    moves = [experiences in (None, [t]) for t in range(2)]
    moved = [(f @ A + shift if move else f, y) for move, (f, y) in zip(moves, stream)]
    assert_same(statistics, feed(moved), rtol=1e-9)


def with_value(shape, row, column, value):
    tensor = torch.zeros(shape)
    tensor[row, column] = value
    return tensor


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (torch.zeros(2, 5), torch.zeros(2, 3), r"features must be \[images, 6\], not \[2, 5\]"),
        (torch.zeros(6), torch.zeros(1, 3), r"\[images, 6\], not \[6\]"),
        (torch.zeros(2, 6), torch.zeros(2, 2), r"\[2, 3\], one column per class .* 1, not \[2, 2\]"),
        (torch.zeros(2, 6), torch.zeros(3, 3), r"\[2, 3\], one column per class .* 1, not \[3, 3\]"),
        *(
            (with_value((4, 6), 3, 4, value), torch.zeros(4, 3), f"Feature 4 of row 3 is {value}")
            for value in (NAN, float("inf"), -float("inf"))
        ),
        *(
            (torch.zeros(4, 6), with_value((4, 3), 2, 1, value), f"row 2, column 1 is {value}")
            for value in (NAN, 0.5, 2.0, float("inf"))
        ),
    ],
)
def test_rows_that_do_not_fit_are_rejected_and_nothing_is_lost(draw, feed, features, targets, message):
    statistics = feed(draw())
    for change in (statistics.update, statistics.remove):
        with pytest.raises(ValueError, match=message):
            change(features, targets)
    assert_same(statistics, feed(draw()))


def test_removing_other_images_than_were_added_is_rejected_and_nothing_is_lost(draw, feed):
    statistics, (features, targets) = feed(draw()), draw()[1]
    twice = features.repeat(2, 1), targets.repeat(2, 1)
    for rows, message in [
        (twice, "Experience 1 would have -30 images: more or other images are removed than were added"),
        ((features[:29], torch.ones(29, 3)), r"would have -\d+ positives of its class 0 on 1 images"),
        ((features[:1] + 100, targets[:1]), "variance below 0 in feature"),
        ((features.flip(1), targets), "variance below 0 in feature"),  # nothing must remain
        ((features.mean(0).expand_as(features), targets), "variance below 0 in feature"),
    ]:
        with pytest.raises(ValueError, match=message):
            statistics.remove(*rows)
    with pytest.raises(ValueError, match="Experience 1 would have -30 images"):
        statistics.subtract(feed([draw()[0], twice]))  # all or nothing
    assert_same(statistics, feed(draw()))


def test_statistics_of_other_shape_are_rejected(draw, feed, feature_stream):
    statistics = feed(draw())
    with pytest.raises(ValueError, match=r"\(2, 3\) classes .* \(3, 2\)"):
        statistics.merge(feed(feature_stream(0, sizes=(3, 2))))
    with pytest.raises(ValueError, match=r"6 features .* 5"):
        statistics.merge(feed(feature_stream(0, sizes=(2, 3), width=5)))
    with pytest.raises(ValueError, match=r"A must be \[6, 6\], not \[5, 5\]"):
        statistics.map(torch.eye(5), torch.zeros(5))
    with pytest.raises(ValueError, match="NaN or infinite"):
        statistics.map(torch.eye(6), torch.full((6,), NAN))
    with pytest.raises(ValueError, match="damaged or of another version"):
        statistics.load_state_dict(feed(draw()).state_dict() | {"block_sizes": torch.tensor([2])})
    assert_same(statistics, feed(draw()))


def test_an_experience_without_images_has_zero_sums_but_no_mean(draw, feed):
    statistics, loaded = FeatureStatistics(), FeatureStatistics()
    with pytest.raises(RuntimeError, match="No experience is open"):
        statistics.update(torch.zeros(1, 2), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"n_new must be at least 0, not -1"):
        statistics.begin(-1)
    statistics.begin(2)
    with pytest.raises(ValueError, match="no images yet"):
        statistics.gram(0)
    with pytest.raises(IndexError, match="no experience 1"):
        statistics.count(1)
    loaded.load_state_dict(statistics.state_dict())
    loaded.update(torch.ones(1, 3), torch.zeros(1, 2))
    loaded.begin(4)
    assert (loaded.block_sizes, loaded.count(0), statistics.count(0)) == ((2, 4), 1, 0)
    assert not loaded.gram(1).any()
    assert loaded.cross(1).shape == (3, 4)
    with pytest.raises(ValueError, match="Experience 1 has no images"):
        loaded.mean(1)


@pytest.mark.parametrize("cut", [10, 100, 260, 300])
def test_saved_in_the_middle_sums_are_the_same_to_the_last_bit(feature_stream, feed, cut, tmp_path):
    ((features, targets),) = feature_stream(0, sizes=[2], n_images=[600])
    resumed = FeatureStatistics()
    torch.save(feed([(features[:cut], targets[:cut])], batch_size=10).state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for rows in torch.arange(cut, 600).split(10):
        resumed.update(features[rows], targets[rows])
    assert torch.equal(resumed.moments(0), feed([(features, targets)], batch_size=10).moments(0))


def test_state_takes_no_more_than_the_documented_memory(feature_stream, feed):
    state = feed(feature_stream(0, sizes=(2, 2), width=200)).state_dict()
    size = sum(value.numel() * value.element_size() for value in state.values())
    assert size <= 1.05 * 2 * 200**2 * 8 / 2  # one triangle of each matrix


def test_states_of_the_earlier_version_have_whole_matrices_and_are_read(draw, feed):
    statistics, loaded = feed(draw()), FeatureStatistics()
    statistics.flush()
    whole = {f"{t}.sums": statistics.moments(t) for t in range(2)}
    loaded.load_state_dict({"block_sizes": torch.tensor([2, 3]), **whole})
    for t in range(2):
        assert torch.equal(loaded.moments(t), statistics.moments(t))
    with pytest.raises(ValueError, match=r"\(4,\) is not the shape of a packed triangle"):
        loaded.load_state_dict({"block_sizes": torch.tensor([2]), "0.triangle": torch.zeros(4)})


@pytest.fixture(scope="session")
def draw_few(feature_stream):
    """Three experiences of fewer images than an eighth of their 80 features."""
    return lambda seed=0: feature_stream(seed, n_images=(10, 6, 8), width=80)


def flushed(statistics):
    statistics.flush()
    return statistics


def test_few_images_keep_a_factor_of_the_same_sums(draw_few, feed):
    plain, few, loaded = feed(draw_few()), flushed(feed(draw_few())), FeatureStatistics()
    assert [few.factor(t).shape[0] for t in range(3)] == [10, 6, 8]
    assert few.factor(0).tril(-1).abs().max() < 1e-12  # no row of it is an image
    state = few.state_dict()
    assert sum(value.numel() for value in state.values()) < 1.1 * 24 * 80
    loaded.load_state_dict(state)
    assert all(torch.equal(loaded.factor(t), few.factor(t)) for t in range(3))
    assert_same(few, plain)
    torch.testing.assert_close(few.total(), plain.total(), rtol=1e-12, atol=1e-9)
    for t in range(3):
        for name in ("feature_sum", "gram", "cross", "label_sum", "label_products", "count", "covariance"):
            found, expected = getattr(few, name)(t), getattr(plain, name)(t)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_total_of_factors_has_the_same_bits_however_often_it_was_asked_for(draw_few, feed):
    few, loaded = FeatureStatistics(), FeatureStatistics()
    for features, targets in draw_few():
        few.begin(targets.shape[1])
        few.update(features, targets)
        few.flush()
        asked = few.total()
        asked.zero_()  # is the caller's own
        loaded.load_state_dict(few.state_dict())
        assert torch.equal(few.total(), loaded.total())  # added one by one, and all at once
    assert len(few._added_factors) == 3
    copied = copy.deepcopy(few)
    few.update(*draw_few(seed=1)[1], experience=1)  # the factor in the middle changes
    for statistics in (few, copied):
        if statistics is few:
            few.flush()
        loaded.load_state_dict(statistics.state_dict())
        assert torch.equal(statistics.total(), loaded.total())


def test_no_labelled_image_leaves_no_factor(draw_few, feed):
    features, targets = draw_few()[2]
    statistics = flushed(feed([*draw_few()[:2], (features, torch.full_like(targets, NAN))]))
    assert statistics.factor(2) is None
    assert not statistics.moments(2).any()


def test_a_factor_takes_more_images_until_there_are_many(draw_few, feed):
    few, plain = flushed(feed(draw_few())), feed(draw_few())
    for n_more, has_factor in ((4, True), (3, False)):  # 10 of 80 features are few
        features, targets = draw_few(seed=n_more)[1]
        for statistics in (few, plain):
            statistics.update(features[:n_more], targets[:n_more], experience=1)
        few.flush()
        assert (few.factor(1) is not None) == has_factor
        assert_same(few, plain)


@pytest.mark.parametrize("flush", [False, True])
def test_a_factor_can_be_added_to_merged_removed_and_mapped(draw_few, feed, flush):
    (features, targets), more = draw_few()[2], draw_few(seed=1)
    expected, few = feed(draw_few()), flushed(feed(draw_few()))
    A, shift = torch.randn(81, 80, dtype=torch.float64).split([80, 1])
    for statistics in (expected, few):
        statistics.map(A, shift[0])
        statistics.update(*more[2])
        if flush:
            few.flush()
        statistics.merge(feed(more))
        statistics.remove(features[:3] @ A + shift, targets[:3])
    assert_same(few, expected, rtol=1e-9)


def test_features_may_change_after_they_were_added_and_get_no_gradient(draw, feed):
    (features, targets), statistics = draw()[0], FeatureStatistics()
    batch = features.clone().requires_grad_() * 1
    statistics.begin(2)
    statistics.update(batch, targets)
    with torch.no_grad():
        batch.zero_()  # as a loader that reuses its memory
    assert_same(statistics, feed(draw()[:1]))
    assert not statistics.moments(0).requires_grad


def test_read_sums_do_not_change_with_later_images(draw, feed):
    stream = draw()
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
    read = FeatureStatistics()
    read.load_state_dict(state)
    for t, gram in enumerate(copies):
        assert torch.equal(read.gram(t), gram)
        torch.testing.assert_close(merged.moments(t), statistics.moments(t), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_of_any_precision_are_exact(feed, dtype):
    """Sums in the precision of the features would stop growing or lose small features."""
    features = torch.cat([torch.full((1, 1), 2000.0), torch.full((3000, 1), 0.25)]).to(dtype)
    statistics = feed([(features, torch.zeros(3001, 1, dtype=torch.int8))], batch_size=64)
    first = float(features[0])
    assert statistics.feature_sum(0).item() == first + 750
    assert statistics.gram(0).item() == first**2 + 187.5


def test_features_whose_squares_overflow_are_named():
    statistics = FeatureStatistics()
    statistics.begin(1)
    with pytest.raises(ValueError, match=r"Feature 0 of row 1 is 1e\+200: the network diverged"):
        statistics.update(torch.tensor([[1.0], [1e200]], dtype=torch.float64), torch.ones(2, 1))
