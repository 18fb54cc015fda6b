import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

import avalanche_agcn.training.statistics.ridge as R
from avalanche_agcn.evaluation.calibration import measure_moments
from avalanche_agcn.training.statistics.features import FeatureStatistics


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def all_features(stream):
    return torch.cat([features for features, _ in stream])


def probabilities_of(classifiers, features):
    weight, bias = classifiers.calibrated()
    return (features.to(weight) @ weight.T + bias).sigmoid()


def raw_problem(stream, t, gamma):
    """Standardised features of all images, targets of experience ``t`` (0 elsewhere) and weights."""
    features = all_features(stream).numpy()
    owner = np.repeat(np.arange(len(stream)), [len(f) for f, _ in stream])
    targets = np.zeros((len(features), stream[t][1].shape[1]))
    targets[owner == t] = stream[t][1].numpy()
    standardised = (features - features.mean(0)) / features.std(0)
    return standardised, targets, np.where(owner == t, 1.0, gamma)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("ridge", "sizes"),
    [
        (5.0, {}),
        (None, {"n_images": (4, 3, 5), "width": 20}),  # fewer images than features
        (10.0, {"n_images": (4, 3, 5), "width": 20}),
    ],
)
def test_scores_match_weighted_ridge_of_scikit_learn(feature_stream, feed, gamma, ridge, sizes):
    stream = feature_stream(0, **sizes)
    statistics, expected = feed(stream), []
    classifiers = R.solve_ridge(statistics, gamma=gamma, ridge=ridge)
    for t in range(len(stream)):
        x, y, weights = raw_problem(stream, t, gamma)
        fit = Ridge(alpha=classifiers.ridge[t].item(), solver="cholesky").fit(x, y, sample_weight=weights)
        expected.append(fit.predict(x).reshape(len(x), -1))
    assert ridge is None or classifiers.ridge.tolist() == [ridge] * 3
    scores = classifiers.scores(all_features(stream))
    np.testing.assert_allclose(scores, np.concatenate(expected, axis=1), atol=1e-9)
    for t in range(3):  # solving does not change the statistics
        assert torch.equal(statistics.moments(t), feed(stream).moments(t))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("ridge", [None, 5.0])
def test_few_images_are_solved_as_many_are(feature_stream, feed, gamma, ridge):
    """From factors and one eigendecomposition, beside an experience with many images."""
    stream = feature_stream(0, sizes=(2, 3, 1, 2), n_images=(10, 6, 50, 8), width=80)
    few, plain = feed(stream), feed(stream)
    few.flush()
    assert [few.factor(t) is None for t in range(4)] == [False, False, True, False]
    found, expected = (R.solve_ridge(sums, gamma=gamma, ridge=ridge) for sums in (few, plain))
    assert torch.equal(found.ridge, expected.ridge)
    for one, other in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    found, expected = R.estimate_relations(few, found), R.estimate_relations(plain, expected)
    torch.testing.assert_close(found.conditional, expected.conditional, rtol=1e-9, atol=1e-9)
    for t in (0, 3):
        x, y, weights = raw_problem(stream, t, gamma)
        solution = R.solve_ridge(few, gamma=gamma, ridge=ridge)
        fit = Ridge(alpha=solution.ridge[t].item(), solver="cholesky").fit(x, y, sample_weight=weights)
        scores = solution.scores(all_features(stream))[:, few.columns(t)]
        np.testing.assert_allclose(scores, fit.predict(x).reshape(len(x), -1), atol=1e-9)


def gcv_of_raw_data(x, y, weights, ridge):
    """n·RSS / (n − df)² with the hat matrix written out."""
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    penalty = np.diag([0.0] + [ridge] * x.shape[1])
    hat = design @ np.linalg.inv(design.T * weights @ design + penalty) @ (design.T * weights)
    rss = (weights[:, None] * (y - hat @ y) ** 2).sum()
    return weights.sum() * rss / (weights.sum() - np.trace(hat)) ** 2


@pytest.mark.parametrize("seed", range(3))
def test_ridge_minimises_gcv_of_the_raw_data(feature_stream, feed, seed):
    stream = feature_stream(seed, n_images=(15, 12, 25))
    classifiers = R.solve_ridge(feed(stream), gamma=0.3)
    for t in range(len(stream)):
        # Weights change the mean, and the constant absorbs that: GCV does not depend on the centre.
        errors = [gcv_of_raw_data(*raw_problem(stream, t, 0.3), ridge) for ridge in R.RIDGE_GRID.tolist()]
        assert classifiers.ridge[t] == R.RIDGE_GRID[int(np.argmin(errors))]
    assert len(set(classifiers.ridge.tolist())) > 1


def test_scores_do_not_depend_on_the_units_of_features(feature_stream, feed):
    stream = feature_stream(0)
    units, shift = torch.logspace(-3, 3, 6), torch.arange(6)
    features = stream[1][0]
    expected = R.solve_ridge(feed(stream)).scores(features)
    other = R.solve_ridge(feed([(f * units + shift, y) for f, y in stream]))
    torch.testing.assert_close(other.scores(features * units + shift), expected, rtol=0, atol=1e-8)


def test_given_ridge_and_grid_of_one_agree(feature_stream, feed):
    statistics = feed(feature_stream(0))
    total = R.sum_of_moments(statistics)
    problem = R.make_problem(statistics.moments(1), total, R.inverse_deviations(total), 0.3)
    weight, *others = R.solve_given(problem, 20.0)
    same_weight, *same_others = R.solve_by_gcv(problem, torch.tensor([20.0]))
    torch.testing.assert_close(weight, same_weight, rtol=1e-9, atol=1e-12)
    assert others == pytest.approx(same_others)


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_uninformative_features_and_classes_get_no_weight(feature_stream, feed, ridge):
    """A constant feature, a class without positives, an experience without images."""
    stream = feature_stream(0)
    constant = [(F.pad(f, (0, 1), value=0.1), y) for f, y in stream]
    features, targets = constant[1]
    constant[1] = features, F.pad(targets, (0, 1))
    statistics = feed(constant)
    statistics.begin(2)
    classifiers, expected = R.solve_ridge(statistics, ridge=ridge), R.solve_ridge(feed(stream), ridge=ridge)
    informed, others = [0, 1, 2, 3, 4, 6], [5, 7, 8]
    torch.testing.assert_close(classifiers.weight[informed, :6], expected.weight, rtol=1e-9, atol=1e-12)
    assert not classifiers.weight[:, 6].any()
    assert not classifiers.weight[others].any()
    assert not classifiers.bias[others].any()
    assert probabilities_of(classifiers, features)[:, 5].max() < 0.1


@pytest.mark.parametrize("ridge", [None, 10.0])
def test_one_image_gives_a_constant_and_none_is_rejected(ridge):
    statistics = FeatureStatistics()
    for _ in range(2):
        with pytest.raises(ValueError, match="no images yet"):
            R.solve_ridge(statistics, ridge=ridge)
        statistics.begin(2)
    statistics.update(torch.rand(1, 4), torch.tensor([[1.0, 0.0]]))
    classifiers = R.solve_ridge(statistics, ridge=ridge)
    assert not classifiers.weight.any()
    assert classifiers.bias.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert probabilities_of(classifiers, torch.rand(3, 4)).isfinite().all()


@pytest.fixture
def two_experiences(feature_stream, feed):
    """Two experiences of two classes, their statistics, and those of all images."""
    stream = feature_stream(1, sizes=(2, 2), n_images=(60, 80), width=5)
    return stream, feed(stream), R.sum_of_moments(feed(stream))


def calibration_of_raw_scores(stream, t, weight, bias, leverage):
    """The same calibration from the scores of single images."""
    scores = all_features(stream) @ weight.T + bias
    own = torch.cat([torch.full((len(f),), k == t) for k, (f, _) in enumerate(stream)])
    targets = torch.zeros(len(scores), 2, dtype=torch.float64)
    targets[own] = stream[t][1]
    scores = ((scores - leverage * targets) / (1 - leverage)).numpy()
    weights, calibration = np.where(own, 1.0, R.OTHERS_WEIGHT), []
    for s, y in zip(scores.T, targets.numpy().T):
        means = [np.average(s[y == k], weights=weights[y == k]) for k in (0, 1)]
        within = np.average((s - np.where(y == 1, means[1], means[0])) ** 2, weights=weights)
        prior = (y.sum() + 0.5) / (weights.sum() + 1)
        scale = max((means[1] - means[0]) / within, 1.0)
        calibration.append([scale, np.log(prior / (1 - prior)) - scale * sum(means) / 2, *means])
    return np.array(calibration).T


@pytest.mark.parametrize("leverage", [0.0, 0.2])
@pytest.mark.parametrize("t", [0, 1])
def test_calibration_matches_the_scores_of_single_images(two_experiences, t, leverage):
    stream, statistics, total = two_experiences
    weight, bias = (part[statistics.columns(t)] for part in R.solve_ridge(statistics)[:2])
    calibration = R.calibrate(weight, bias, statistics.moments(t), total, leverage=leverage)
    expected = calibration_of_raw_scores(stream, t, weight, bias, leverage)
    assert (calibration.scale > 1).any()  # where it is not clamped, the variance matters
    np.testing.assert_allclose(torch.stack(calibration), expected, rtol=1e-9)


def test_scale_is_that_of_linear_discriminant_analysis(two_experiences, feed):
    (features, targets), statistics = two_experiences[0][0], feed(two_experiences[0][:1])
    weight, bias, *_ = R.solve_ridge(statistics, ridge=1.0)
    calibration = R.calibrate(weight, bias, statistics.moments(0), R.sum_of_moments(statistics), leverage=0.0)
    scores = features @ weight.T + bias
    for k in range(2):
        analysis = LinearDiscriminantAnalysis(solver="lsqr").fit(scores[:, k : k + 1], targets[:, k])
        assert calibration.scale[k].item() == pytest.approx(analysis.coef_.item())
        prior = (targets[:, k].sum() + 0.5) / 61  # the share of positives is smoothed by half an image
        offset = analysis.intercept_.item() - np.log(np.divide(*analysis.priors_[::-1])) + prior.logit()
        assert calibration.offset[k].item() == pytest.approx(offset.item())
        standardised = R.standardise(scores, calibration)[:, k]
        for label in (0, 1):
            assert standardised[targets[:, k] == label].mean().item() == pytest.approx(label, abs=1e-9)


def test_probabilities_keep_the_order_of_scores_also_against_the_labels(two_experiences):
    """Of a classifier that is wrong throughout: the scale must not become negative."""
    stream, statistics, total = two_experiences
    classifiers = R.solve_ridge(statistics)
    scores = classifiers.scores(all_features(stream))
    probabilities = probabilities_of(classifiers, all_features(stream))
    assert torch.equal(scores.argsort(dim=0), probabilities.argsort(dim=0))
    assert ((probabilities > 0) & (probabilities < 1)).all()
    for t in range(2):
        own = statistics.columns(t)
        opposite = -classifiers.weight[own], -classifiers.bias[own]
        calibration = R.calibrate(*opposite, statistics.moments(t), total, leverage=0.0)
        assert (calibration.scale > 0).all()
        assert not R.standardise(torch.randn(5, 2), calibration).any()


def test_probabilities_are_not_overconfident(feed):
    """With nearly as many features as images, scores of fitted images say little about others."""
    features = torch.randn(2000, 60)
    targets = ((features[:, :1] + torch.randn(2000, 1)) > 0).double()
    statistics = feed([(features[:100], targets[:100])])
    classifiers = R.solve_ridge(statistics, ridge=10.0)
    sums = statistics.moments(0), R.sum_of_moments(statistics)
    naive = R.calibrate(classifiers.weight, classifiers.bias, *sums, leverage=0.0)

    def loss(calibration):
        logits = classifiers.scores(features[100:]) * calibration.scale + calibration.offset
        return F.binary_cross_entropy_with_logits(logits, targets[100:]).item()

    assert loss(classifiers.calibration) < 0.7 * loss(naive)


def test_all_images_positive_gives_high_probabilities(two_experiences, feed):
    (features, targets), _ = two_experiences[0]
    classifiers = R.solve_ridge(feed([(features, torch.ones_like(targets))]))
    assert (probabilities_of(classifiers, features) > 0.9).all()


def labelled_images(seed, n=600):
    """Labels of four classes, the last one often beside the first, and features that show them."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((n, 4)) < 0.3).astype(float)
    together = generator.random(n) < 0.7
    labels[:, 3] = np.maximum(labels[:, 3] * (generator.random(n) < 0.3), labels[:, 0] * together)
    features = 2 * labels @ generator.normal(size=(4, 12)) + generator.normal(size=(n, 12))
    return torch.from_numpy(features), torch.from_numpy(labels)


def relate(feed, features, labels):
    """Relate classes 0 and 1, of the first half of the images, to 2 and 3, of the second."""
    half = len(features) // 2
    statistics = feed([(features[:half], labels[:half, :2]), (features[half:], labels[half:, 2:])])
    classifiers = R.solve_ridge(statistics)
    return classifiers, R.estimate_relations(statistics, classifiers)


def refine(scores, classifiers, relations, beta):
    """Scores whose calibrated logits are the refined ones."""
    scale, offset = classifiers.calibration[:2]
    return (R.make_refinement(classifiers, relations, beta)(scores * scale + offset) - offset) / scale


def test_refined_scores_match_the_formula():
    scores, zeros, ones = torch.randn(7, 4), torch.zeros(4), torch.ones(4)
    relations = R.LabelRelations(torch.rand(4, 4), torch.rand(4) * 0.5)
    copies = scores.clone(), relations.conditional.clone()
    logits = R.Calibration(ones, zeros, zeros, ones)  # under which scores are logits
    plain = R.RidgeClassifiers(zeros, zeros, logits, zeros)
    expected = scores.clone()
    for i in range(4):
        for j in {0, 1, 2, 3} - {i}:
            gain = max(relations.conditional[i, j] - relations.prior[i], 0)
            expected[:, i] += 0.3 * gain * scores[:, j].clamp(0, 1)
    torch.testing.assert_close(refine(scores, plain, relations, 0.3), expected)
    assert torch.equal(refine(scores, plain, relations, 0.0), scores)
    independent = R.LabelRelations(relations.prior[:, None].expand(4, 4).clone(), relations.prior)
    assert torch.equal(refine(scores, plain, independent, 1.0), scores)
    assert torch.equal(scores, copies[0])
    assert torch.equal(relations.conditional, copies[1])


def test_relations_match_the_scores_of_single_images(feed):
    features, labels = labelled_images(0)
    classifiers, relations = relate(feed, features, labels)
    negative, positive = classifiers.calibration.negative_mean, classifiers.calibration.positive_mean
    shares = ((classifiers.scores(features) - negative) / (positive - negative)).numpy()
    y, halves = labels.numpy(), (slice(300), slice(300, None))
    for j in range(4):
        own = halves[j // 2]
        for i in range(4):
            seen = y[own, i] if i // 2 == j // 2 else shares[own, i]
            expected = np.clip(seen[y[own, j] == 1].mean(), 0, 1) if i != j else 1.0
            assert relations.conditional[i, j].item() == pytest.approx(expected)
    for i in range(4):
        parts = [y[h, i].mean() if t == i // 2 else shares[h, i].mean() for t, h in enumerate(halves)]
        assert relations.prior[i].item() == pytest.approx(np.clip(parts, 0, 1).mean())


def test_relations_across_experiences_are_found_and_lift_a_class_by_its_company(feed):
    """No image is labelled for both classes 0 and 3, and yet they are found to belong together."""
    features, labels = labelled_images(1, n=4000)
    classifiers, relations = relate(feed, features, labels)
    gain = relations.conditional - relations.prior[:, None]
    assert min(gain[3, 0], gain[0, 3]) > 0.2
    assert gain[1:3, 0].abs().max() < 0.1
    scores = classifiers.scores(features)
    lift = refine(scores, classifiers, relations, 0.2) - scores
    assert lift[labels[:, 0] == 1, 3].mean() > lift[labels[:, 0] == 0, 3].mean() + 0.01
    assert (lift >= -1e-12).all()


def test_a_class_without_positives_has_no_relations(feed):
    features, labels = labelled_images(0)
    labels[:, 2] = 0
    classifiers, relations = relate(feed, features, labels)
    assert relations.conditional.isfinite().all()
    scores = classifiers.scores(features)
    refined = refine(scores, classifiers, relations, 0.5)
    torch.testing.assert_close(refined[:, 2], scores[:, 2])
    without = torch.tensor([0, 1, 3])
    others = R.LabelRelations(relations.conditional[without][:, without], relations.prior[without])
    calibration = R.Calibration(*(part[without] for part in classifiers.calibration))
    part = classifiers._replace(calibration=calibration)
    torch.testing.assert_close(refined[:, without], refine(scores[:, without], part, others, 0.5))


def test_moments_of_logits_from_sums_are_those_of_the_corrected_scores():
    generator = torch.Generator().manual_seed(0)
    statistics = FeatureStatistics()
    features = torch.randn(90, 5, generator=generator, dtype=torch.float64)
    labels = (features[:, :3] + torch.randn(90, 3, generator=generator, dtype=torch.float64) > 0.5).double()
    targets = torch.full((90, 3), torch.nan, dtype=torch.float64)
    targets[:50, :2], targets[50:, 2:] = labels[:50, :2], labels[50:, 2:]
    for rows, columns in ((slice(50), slice(2)), (slice(50, 90), slice(2, 3))):
        statistics.begin(targets[:, columns].shape[1])
        statistics.update(features[rows], targets[rows, columns])
    solution = R.solve_ridge(statistics, gamma=0.3, ridge=20.0)
    leverage = solution.leverage[torch.tensor([0, 0, 1])]
    assert ((leverage > 0) & (leverage < 0.5)).all()
    scores = solution.scores(features)
    own = (scores - leverage * targets) / (1 - leverage)
    corrected = torch.where(targets.isnan(), scores / (1 - 0.3 * leverage), own)
    scale, offset, *_ = solution.calibration
    expected = measure_moments(corrected * scale + offset, targets)
    for found, wanted in zip(R.logit_moments(statistics, solution, 0.3), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_class_on_all_of_few_images_has_the_calibration_of_the_dense_sums():
    """With a share of exactly 1 there are no negatives: a rounding error would count as some."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(22, 256, generator=generator).relu()
        targets = torch.ones(22, 2)
        targets[:, 1] = torch.randint(0, 2, (22,), generator=generator).float()
        probabilities = []
        for keeps_factor in (False, True):
            sums = FeatureStatistics()
            sums.begin(2)
            sums.update(features, targets)
            if keeps_factor:
                sums.flush()
                assert sums.factor(0) is not None
                assert torch.equal(sums.label_sum(0), targets.double().sum(0))
            probabilities.append(probabilities_of(R.solve_ridge(sums), features))
        torch.testing.assert_close(probabilities[1], probabilities[0], atol=1e-6, rtol=0)
        assert probabilities[1][:, 0].min() > 0.5
