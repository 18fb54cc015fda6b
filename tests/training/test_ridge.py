import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.ridge import (
    RIDGE_GRID,
    inverse_deviations,
    pose,
    solve_by_gcv,
    solve_given,
    solve_ridge,
    sum_of_moments,
)


def random_stream(seed, sizes=(2, 3, 1), n_images=(40, 30, 50), width=6):
    """Per experience: features that depend on the labels, and 0/1 labels."""
    generator = np.random.default_rng(seed)
    mixing, stream = generator.normal(size=(width, width)), []
    for size, n in zip(sizes, n_images):
        targets = (generator.random((n, size)) < 0.4).astype(float)
        signal = targets @ generator.normal(size=(size, width))
        features = generator.normal(size=(n, width)) @ mixing + signal + 1.5
        stream.append((torch.from_numpy(features), torch.from_numpy(targets)))
    return stream


def feed(stream, batch_size=7):
    statistics = FeatureStatistics()
    for features, targets in stream:
        statistics.begin(targets.shape[1])
        for rows in torch.arange(len(features)).split(batch_size):
            statistics.update(features[rows], targets[rows])
    return statistics


def raw_problem(stream, t, gamma):
    """Standardised features of all images, targets of experience ``t`` (0 elsewhere) and weights."""
    features = np.concatenate([f.numpy() for f, _ in stream])
    owner = np.repeat(np.arange(len(stream)), [len(f) for f, _ in stream])
    targets = np.zeros((len(features), stream[t][1].shape[1]))
    targets[owner == t] = stream[t][1].numpy()
    standardised = (features - features.mean(0)) / features.std(0)
    return standardised, targets, np.where(owner == t, 1.0, gamma)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_scores_match_weighted_ridge_of_scikit_learn(gamma):
    stream = random_stream(0)
    classifiers = solve_ridge(feed(stream), gamma=gamma, ridge=5.0)
    scores = classifiers.scores(torch.cat([f for f, _ in stream]))
    expected = []
    for t in range(len(stream)):
        x, y, weights = raw_problem(stream, t, gamma)
        fit = Ridge(alpha=5.0, solver="cholesky").fit(x, y, sample_weight=weights)
        expected.append(fit.predict(x).reshape(len(x), -1))
    np.testing.assert_allclose(scores, np.concatenate(expected, axis=1), atol=1e-9)


def gcv_of_raw_data(x, y, weights, ridge):
    """n·RSS / (n − df)² with the hat matrix written out."""
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    penalty = np.diag([0.0] + [ridge] * x.shape[1])
    hat = design @ np.linalg.inv(design.T * weights @ design + penalty) @ (design.T * weights)
    rss = (weights[:, None] * (y - hat @ y) ** 2).sum()
    return weights.sum() * rss / (weights.sum() - np.trace(hat)) ** 2


@pytest.mark.parametrize("seed", range(3))
def test_ridge_minimises_gcv_of_the_raw_data(seed):
    stream = random_stream(seed, n_images=(15, 12, 25))
    classifiers = solve_ridge(feed(stream), gamma=0.3)
    for t in range(len(stream)):
        # Weights change the mean, and the constant absorbs that: GCV does not depend on the centre.
        errors = [gcv_of_raw_data(*raw_problem(stream, t, 0.3), ridge) for ridge in RIDGE_GRID.tolist()]
        assert classifiers.ridge[t] == RIDGE_GRID[int(np.argmin(errors))]
    assert len(set(classifiers.ridge.tolist())) > 1


@settings(max_examples=15)
@given(seed=st.integers(0, 2**20), batch_size=st.integers(1, 80), cut=st.integers(1, 29))
def test_scores_do_not_depend_on_order_batches_parts_or_images_that_came_and_went(seed, batch_size, cut):
    stream = random_stream(seed)
    features = torch.cat([f for f, _ in stream])
    expected = solve_ridge(feed(stream)).scores(features)
    parts = [feed([(f[s].flip(0), y[s].flip(0)) for f, y in stream], batch_size)
             for s in (slice(cut), slice(cut, None))]  # fmt: skip
    parts[0].merge(parts[1])
    torch.testing.assert_close(solve_ridge(parts[0]).scores(features), expected, rtol=0, atol=1e-9)
    for t, (f, y) in enumerate(stream):
        parts[0].remove(f[:3], y[:3], experience=t)
        parts[0].update(f[:3], y[:3], experience=t)
    torch.testing.assert_close(solve_ridge(parts[0]).scores(features), expected, rtol=0, atol=1e-9)


def test_forgotten_images_leave_the_classifier_that_never_saw_them():
    stream = random_stream(0)
    kept = [(f[4:], y[4:]) for f, y in stream]
    statistics = feed(stream)
    for t, (f, y) in enumerate(stream):
        statistics.remove(f[:4], y[:4], experience=t)
    classifiers, expected = solve_ridge(statistics), solve_ridge(feed(kept))
    torch.testing.assert_close(classifiers.weight, expected.weight, rtol=0, atol=1e-9)
    torch.testing.assert_close(classifiers.bias, expected.bias, rtol=0, atol=1e-9)


def test_scores_do_not_depend_on_the_units_of_features():
    stream = random_stream(0)
    units, shift = torch.logspace(-3, 3, 6), torch.arange(6)
    features = stream[1][0]
    expected = solve_ridge(feed(stream)).scores(features)
    other = solve_ridge(feed([(f * units + shift, y) for f, y in stream]))
    torch.testing.assert_close(other.scores(features * units + shift), expected, rtol=0, atol=1e-8)


def test_given_ridge_and_grid_of_one_agree():
    statistics = feed(random_stream(0))
    total = sum_of_moments(statistics)
    problem = pose(statistics.moments(1), total, inverse_deviations(total), 0.3)
    by_cholesky = solve_given(problem, 20.0)
    by_eigenvalues = solve_by_gcv(problem, torch.tensor([20.0]))
    torch.testing.assert_close(by_cholesky.weight, by_eigenvalues.weight, rtol=1e-9, atol=1e-12)
    assert by_cholesky.freedom == pytest.approx(by_eigenvalues.freedom)


def test_old_classifiers_change_as_experiences_arrive_unless_gamma_is_zero():
    stream = random_stream(0)
    before, after = (feed(stream[:n]) for n in (2, 3))
    assert not torch.allclose(solve_ridge(before).weight, solve_ridge(after).weight[:5], rtol=1e-3)
    features = stream[0][0]
    alone = [
        solve_ridge(statistics, gamma=0.0, ridge=1e-9).scores(features) for statistics in (before, after)
    ]
    torch.testing.assert_close(alone[0], alone[1][:, :5], rtol=0, atol=1e-6)  # only the units of λ change


def test_features_that_do_not_vary_get_no_weight():
    stream = [(torch.cat([f, torch.full((len(f), 1), 0.1)], dim=1), y) for f, y in random_stream(0)]
    classifiers = solve_ridge(feed(stream))
    assert not classifiers.weight[:, 6].any()
    expected = solve_ridge(feed(random_stream(0)))
    torch.testing.assert_close(classifiers.weight[:, :6], expected.weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_a_class_without_positives_scores_zero(ridge):
    stream = random_stream(0)
    stream[1][1][:, 1] = 0
    classifiers = solve_ridge(feed(stream), ridge=ridge)
    assert not classifiers.weight[3].any()
    assert classifiers.bias[3] == 0
    assert classifiers.probabilities(classifiers.scores(stream[0][0]))[:, 3].max() < 0.1
    others = solve_ridge(feed([stream[0], (stream[1][0], stream[1][1][:, [0, 2]]), stream[2]]), ridge=ridge)
    torch.testing.assert_close(classifiers.weight[[2, 4]], others.weight[[2, 3]], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_fewer_images_than_features_are_solved(ridge):
    stream = random_stream(0, n_images=(4, 3, 5), width=20)
    classifiers = solve_ridge(feed(stream), ridge=ridge)
    x, y, weights = raw_problem(stream, 1, 0.3)
    fit = Ridge(alpha=classifiers.ridge[1].item(), solver="cholesky").fit(x, y, sample_weight=weights)
    scores = classifiers.scores(torch.cat([f for f, _ in stream]))[:, 2:5]
    np.testing.assert_allclose(scores, fit.predict(x), atol=1e-9)


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_one_image_gives_a_constant(ridge):
    statistics = FeatureStatistics()
    statistics.begin(2)
    statistics.update(torch.rand(1, 4), torch.tensor([[1.0, 0.0]]))
    classifiers = solve_ridge(statistics, ridge=ridge)
    assert not classifiers.weight.any()
    assert classifiers.bias.tolist() == [1.0, 0.0]
    assert classifiers.probabilities(classifiers.scores(torch.rand(3, 4))).isfinite().all()


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_an_experience_without_images_is_solved(ridge):
    statistics = feed(random_stream(0))
    statistics.begin(2)
    classifiers = solve_ridge(statistics, ridge=ridge)
    assert classifiers.weight.shape == (8, 6)
    assert not classifiers.weight[6:].any()
    torch.testing.assert_close(
        classifiers.weight[:6], solve_ridge(feed(random_stream(0)), ridge=ridge).weight, rtol=1e-9, atol=1e-12
    )


def test_statistics_are_not_changed():
    statistics = feed(random_stream(0))
    statistics.flush()
    before = {name: value.clone() for name, value in statistics.state_dict().items()}
    solve_ridge(statistics)
    for name, value in statistics.state_dict().items():
        assert torch.equal(value, before[name])


def test_no_images_at_all_are_rejected():
    statistics = FeatureStatistics()
    with pytest.raises(ValueError, match="no images yet"):
        solve_ridge(statistics)
    statistics.begin(1)
    with pytest.raises(ValueError, match="no images yet"):
        solve_ridge(statistics)
