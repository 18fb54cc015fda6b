import numpy as np
import pytest
import torch

from avalanche_agcn.training.statistics.compact import CompactStatistics
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.ridge import inverse_deviations, solve_ridge

WIDTH = 40
N_IMAGES = (90, 120, 70)


@pytest.fixture(scope="module")
def stream():
    """Three experiences whose features vary more in some directions than in others."""
    generator = np.random.default_rng(0)
    scales, images = 2.0 ** -np.arange(WIDTH), []
    for n in N_IMAGES:
        targets = (generator.random((n, 2)) < 0.4).astype(float)
        mixing = generator.normal(size=(WIDTH, WIDTH))
        features = (generator.normal(size=(n, WIDTH)) * scales) @ mixing
        features += targets @ generator.normal(size=(2, WIDTH)) + generator.normal(size=WIDTH)
        images.append((torch.from_numpy(features), torch.from_numpy(targets)))
    return images


def fill(statistics, stream):
    for features, targets in stream:
        statistics.begin(targets.shape[1])
        for rows in torch.arange(len(features)).split(16):
            statistics.update(features[rows], targets[rows])
        statistics.flush()
    return statistics


def n_bytes(statistics):
    return sum(value.numel() * value.element_size() for value in statistics.state_dict().values())


def gap(statistics, exact, t):
    """Error of Σffᵀ in standardised features, as a share of its scatter."""
    inverse = inverse_deviations(exact.total())
    scatter = exact.covariance(t) * exact.count(t) * inverse * inverse[:, None]
    error = (statistics.gram(t) - exact.gram(t)) * inverse * inverse[:, None]
    return torch.linalg.matrix_norm(error, 2) / scatter.trace()


@pytest.mark.parametrize("mean", [1e3, 1e5])
def test_features_with_a_large_mean_keep_their_variance(stream, mean):
    far = [(features + mean * (torch.arange(WIDTH) < 20), targets) for features, targets in stream]
    covariances = []
    for images in (stream, far):
        total = fill(CompactStatistics(), images).total()
        mean_feature = total[0, 1:] / total[0, 0]
        covariances.append(total[1:, 1:] / total[0, 0] - torch.outer(mean_feature, mean_feature))
    torch.testing.assert_close(*covariances, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rest", [0.02, 0.2, 0.6])
def test_all_but_the_scatter_is_exact_and_its_error_is_bounded(stream, rest):
    exact, compact = fill(FeatureStatistics(), stream), fill(CompactStatistics(rest), stream)
    torch.testing.assert_close(compact.total(), exact.total(), rtol=1e-6, atol=1e-4)
    grams = torch.stack([compact.gram(t) for t in range(3)]).sum(dim=0)
    torch.testing.assert_close(grams, compact.total()[1:, 1:], rtol=1e-6, atol=1e-4)
    for t in range(3):
        assert compact.count(t) == N_IMAGES[t]
        for name in ("feature_sum", "label_sum", "label_products", "cross", "mean"):
            torch.testing.assert_close(
                getattr(compact, name)(t), getattr(exact, name)(t), rtol=1e-6, atol=1e-5
            )
        assert gap(compact, exact, t) < 1.5 * rest  # the rest of its own, and what it gets instead


def test_more_directions_take_more_bytes_and_give_the_exact_classifiers(stream):
    exact = fill(FeatureStatistics(), stream)
    expected = solve_ridge(exact).scores(stream[0][0])
    errors = []
    sizes = []
    for rest in (0.5, 0.05, 1e-9):
        compact = fill(CompactStatistics(rest), stream)
        errors.append((solve_ridge(compact).scores(stream[0][0]) - expected).abs().max().item())
        sizes.append(n_bytes(compact))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[0] < 0.5 * n_bytes(exact)


def test_state_is_restored_to_the_last_bit_also_within_an_experience(stream):
    whole, resumed = CompactStatistics(), CompactStatistics()
    fill(whole, stream[:2])
    whole.begin(2)
    whole.update(stream[2][0][:30], stream[2][1][:30])
    resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
    for statistics in (whole, resumed):
        statistics.update(stream[2][0][30:], stream[2][1][30:])
        statistics.flush()
    for t in range(3):
        assert torch.equal(resumed.moments(t), whole.moments(t))
    assert torch.equal(resumed.total(), whole.total())
    with pytest.raises(ValueError, match='or of statistics="compact"'):
        FeatureStatistics().load_state_dict(whole.state_dict())


def test_exact_states_are_read_and_approximated(stream):
    compact = CompactStatistics()
    compact.load_state_dict(fill(FeatureStatistics(), stream).state_dict())
    before = n_bytes(compact)
    compact.flush()
    assert n_bytes(compact) < 0.5 * before
    torch.testing.assert_close(
        compact.total(), fill(CompactStatistics(), stream).total(), rtol=1e-6, atol=1e-4
    )


def test_mapped_sums_are_those_of_mapped_features(stream):
    A, shift = torch.randn(WIDTH + 1, WIDTH, dtype=torch.float64).split([WIDTH, 1])
    moved = [(features @ A + shift, targets) for features, targets in stream]
    expected = fill(FeatureStatistics(), moved)
    for rest, tolerance in ((1e-9, 1e-5), (0.3, 0.5)):
        compact = fill(CompactStatistics(rest), stream)
        compact.map(A, shift[0])
        torch.testing.assert_close(compact.total(), expected.total(), rtol=1e-4, atol=1e-2)
        for t in range(3):
            torch.testing.assert_close(compact.mean(t), expected.mean(t), rtol=1e-6, atol=1e-5)
            torch.testing.assert_close(compact.cross(t), expected.cross(t), rtol=1e-4, atol=1e-3)
            difference = (compact.covariance(t) - expected.covariance(t)).norm()
            assert difference < tolerance * expected.covariance(t).norm()
    with pytest.raises(ValueError, match="all experiences are mapped"):
        compact.map(A, shift[0], experiences=[0])


def test_merging_and_removing_are_rejected(stream):
    compact = fill(CompactStatistics(), stream)
    for change in (compact.merge, compact.subtract):
        with pytest.raises(
            ValueError, match=r'only approximately, so \w+ is not exact: use statistics="exact"'
        ):
            change(fill(FeatureStatistics(), stream))
    with pytest.raises(ValueError, match="remove is not exact"):
        compact.remove(*stream[2])
    with pytest.raises(ValueError, match="cannot be combined with CompactStatistics"):
        fill(FeatureStatistics(), stream).merge(compact)


def test_later_images_join_and_an_interrupted_experience_starts_again(stream):
    expected = fill(CompactStatistics(0.01), stream)
    halves = fill(CompactStatistics(0.01), [(f[::2], y[::2]) for f, y in stream])
    for t, (features, targets) in enumerate(stream):
        halves.update(features[1::2], targets[1::2], experience=t)
    copied = halves.copy_block(1)
    halves.flush()
    torch.testing.assert_close(halves.total(), expected.total(), rtol=1e-6, atol=1e-4)
    assert [halves.count(t) for t in range(3)] == list(N_IMAGES)
    for t in range(3):
        assert gap(halves, fill(FeatureStatistics(), stream), t) < 0.05
    halves.restore_block(1, copied)
    assert halves.count(1) == N_IMAGES[1]
    again = fill(CompactStatistics(), stream)
    again.restart()
    assert again.count(2) == 0
    again.update(*stream[2])
    again.flush()
    assert torch.equal(again.total(), fill(CompactStatistics(), stream).total())


def test_a_constant_feature_stays_constant(stream):
    constant = [(torch.nn.functional.pad(f, (0, 1), value=0.1), y) for f, y in stream]
    classifiers = solve_ridge(fill(CompactStatistics(), constant))
    assert not classifiers.weight[:, -1].any()


def test_few_images_stay_exact(feature_stream):
    few = feature_stream(0, n_images=(4, 3, 5), width=WIDTH)
    exact, compact = fill(FeatureStatistics(), few), fill(CompactStatistics(), few)
    for t in range(3):
        torch.testing.assert_close(compact.moments(t), exact.moments(t))
        assert compact.factor(t) is not None
