import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.ridge import OTHERS_WEIGHT, calibrate, solve_ridge, standardise, sum_of_moments

WIDTH = 5


def random_stream(seed, n_images=(60, 80)):
    """Two experiences of two classes; a class moves the features of its images."""
    generator = np.random.default_rng(seed)
    directions, stream = generator.normal(size=(2, 2, WIDTH)), []
    for t, n in enumerate(n_images):
        targets = (generator.random((n, 2)) < 0.3).astype(float)
        features = generator.normal(size=(n, WIDTH)) + targets @ directions[t]
        stream.append((torch.from_numpy(features), torch.from_numpy(targets)))
    return stream


def feed(stream):
    statistics = FeatureStatistics()
    for features, targets in stream:
        statistics.begin(targets.shape[1])
        statistics.update(features, targets)
    return statistics


def some_classifiers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, WIDTH + 1, generator=generator, dtype=torch.float64)
    return draw[:, 1:], draw[:, 0]


def from_raw_scores(stream, t, weight, bias, leverage):
    """The same calibration from the scores of single images."""
    scores = torch.cat([f for f, _ in stream]) @ weight.T + bias
    own = torch.cat([torch.full((len(f),), k == t) for k, (f, _) in enumerate(stream)])
    targets = torch.zeros(len(scores), 2, dtype=torch.float64)
    targets[own] = stream[t][1]
    scores = ((scores - leverage * targets) / (1 - leverage)).numpy()
    weights, calibration = np.where(own, 1.0, OTHERS_WEIGHT), []
    for s, y in zip(scores.T, targets.numpy().T):
        means = [np.average(s[y == k], weights=weights[y == k]) for k in (0, 1)]
        within = np.average((s - np.where(y == 1, means[1], means[0])) ** 2, weights=weights)
        prior = (y.sum() + 0.5) / (weights.sum() + 1)
        scale = max((means[1] - means[0]) / within, 1.0)
        calibration.append([scale, np.log(prior / (1 - prior)) - scale * sum(means) / 2, *means])
    return np.array(calibration).T


@pytest.mark.parametrize("leverage", [0.0, 0.2])
@pytest.mark.parametrize("t", [0, 1])
def test_calibration_matches_the_scores_of_single_images(t, leverage):
    stream = random_stream(t)
    statistics, (weight, bias) = feed(stream), some_classifiers(t)
    total = sum_of_moments(statistics)
    calibration = calibrate(weight, bias, statistics.moments(t), total, leverage=leverage)
    np.testing.assert_allclose(
        torch.stack(calibration), from_raw_scores(stream, t, weight, bias, leverage), rtol=1e-9
    )


def test_scale_is_that_of_linear_discriminant_analysis():
    stream = random_stream(3)[:1]
    statistics = feed(stream)
    classifiers = solve_ridge(statistics, ridge=1.0)
    calibration = calibrate(
        classifiers.weight, classifiers.bias, statistics.moments(0), sum_of_moments(statistics), leverage=0.0
    )
    scores = classifiers.scores(stream[0][0])
    for k in range(2):
        analysis = LinearDiscriminantAnalysis(solver="lsqr").fit(scores[:, k : k + 1], stream[0][1][:, k])
        assert calibration.scale[k].item() == pytest.approx(analysis.coef_.item())
        prior = (stream[0][1][:, k].sum() + 0.5) / 61  # the share of positives is smoothed by half an image
        offset = analysis.intercept_.item() - np.log(np.divide(*analysis.priors_[::-1])) + prior.logit()
        assert calibration.offset[k].item() == pytest.approx(offset.item())


def test_probabilities_keep_the_order_of_scores():
    stream = random_stream(1)
    classifiers = solve_ridge(feed(stream))
    scores = classifiers.scores(torch.cat([f for f, _ in stream]))
    probabilities = classifiers.probabilities(scores)
    assert torch.equal(scores.argsort(dim=0), probabilities.argsort(dim=0))
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_scores_against_the_labels_keep_their_order_too():
    """A classifier that is wrong throughout: the scale must not become negative."""
    stream = random_stream(1)
    statistics = feed(stream)
    classifiers = solve_ridge(statistics)
    total = sum_of_moments(statistics)
    for t in range(2):
        columns = statistics.columns(t)
        opposite = -classifiers.weight[columns], -classifiers.bias[columns]
        calibration = calibrate(*opposite, statistics.moments(t), total, leverage=0.0)
        assert (calibration.scale > 0).all()
        assert not standardise(torch.randn(5, 2), calibration).any()


def test_probabilities_of_fitted_images_are_not_overconfident():
    """With nearly as many features as images, scores of fitted images say little about others."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2000, 60, generator=generator)
    targets = ((features[:, :1] + torch.randn(2000, 1, generator=generator)) > 0).double()
    statistics = feed([(features[:100], targets[:100])])
    classifiers = solve_ridge(statistics, ridge=10.0)
    naive = calibrate(
        classifiers.weight, classifiers.bias, statistics.moments(0), sum_of_moments(statistics), leverage=0.0
    )
    scores = classifiers.scores(features[100:])

    def loss(calibration):
        logits = scores * calibration.scale + calibration.offset
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets[100:]).item()

    assert loss(classifiers.calibration) < 0.7 * loss(naive)


def test_all_images_positive_gives_high_probabilities():
    (features, targets), _ = random_stream(0)
    classifiers = solve_ridge(feed([(features, torch.ones_like(targets))]))
    probabilities = classifiers.probabilities(classifiers.scores(features))
    assert (probabilities > 0.9).all()


def test_standardised_scores_have_mean_zero_and_one():
    stream = random_stream(2)
    statistics, (weight, bias) = feed(stream), some_classifiers(0)
    calibration = calibrate(weight, bias, statistics.moments(0), sum_of_moments(statistics), leverage=0.0)
    standardised = standardise(stream[0][0] @ weight.T + bias, calibration)
    for k in range(2):
        if calibration.positive_mean[k] > calibration.negative_mean[k]:
            positives = standardised[stream[0][1][:, k] == 1, k]
            assert positives.mean().item() == pytest.approx(1.0)
