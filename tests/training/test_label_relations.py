import numpy as np
import pytest
import torch

from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.ridge import (
    Calibration,
    LabelRelations,
    RidgeClassifiers,
    estimate_relations,
    make_refinement,
    solve_ridge,
)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def labelled_images(seed, n=600):
    """Labels of four classes, the last one often beside the first, and features that show them."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((n, 4)) < 0.3).astype(float)
    together = generator.random(n) < 0.7
    labels[:, 3] = np.maximum(labels[:, 3] * (generator.random(n) < 0.3), labels[:, 0] * together)
    directions = generator.normal(size=(4, 12))
    features = 2 * labels @ directions + generator.normal(size=(n, 12))
    return torch.from_numpy(features), torch.from_numpy(labels)


def feed(features, labels):
    """Classes 0 and 1 in the first half of the images, 2 and 3 in the second."""
    statistics, half = FeatureStatistics(), len(features) // 2
    for t, rows in enumerate((slice(half), slice(half, None))):
        statistics.begin(2)
        statistics.update(features[rows], labels[rows, 2 * t : 2 * t + 2])
    return statistics


def random_relations(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return LabelRelations(torch.rand(n, n, generator=generator), torch.rand(n, generator=generator) * 0.5)


def refine(scores, classifiers, relations, beta):
    """Scores whose calibrated logits are the refined ones."""
    scale, offset = classifiers.calibration[:2]
    return (make_refinement(classifiers, relations, beta)(scores * scale + offset) - offset) / scale


def uncalibrated(n):
    """Classifiers with scores that are 0 for negatives, 1 for positives, and logits already."""
    zeros, ones = torch.zeros(n), torch.ones(n)
    return RidgeClassifiers(zeros, zeros, Calibration(ones, zeros, zeros, ones), zeros)


def test_refined_scores_match_the_formula():
    scores, relations = torch.randn(7, 4), random_relations(4)
    copies = scores.clone(), relations.conditional.clone()
    refined = refine(scores, uncalibrated(4), relations, 0.3)
    for n in range(7):
        for i in range(4):
            lift = sum(
                max(relations.conditional[i, j].item() - relations.prior[i].item(), 0)
                * min(max(scores[n, j].item(), 0), 1)
                for j in range(4)
                if j != i
            )
            assert refined[n, i].item() == pytest.approx(scores[n, i].item() + 0.3 * lift, abs=1e-5)
    assert torch.equal(scores, copies[0])
    assert torch.equal(relations.conditional, copies[1])


def test_without_weight_or_relations_nothing_is_refined():
    scores, prior = torch.randn(5, 4), torch.rand(4)
    independent = LabelRelations(prior[:, None].expand(4, 4).clone(), prior)
    assert torch.equal(refine(scores, uncalibrated(4), random_relations(4), 0.0), scores)
    assert torch.equal(refine(scores, uncalibrated(4), independent, 1.0), scores)


def test_relations_match_the_scores_of_single_images():
    features, labels = labelled_images(0)
    statistics = feed(features, labels)
    classifiers = solve_ridge(statistics)
    relations = estimate_relations(statistics, classifiers)
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


def test_relations_across_experiences_are_found():
    """No image is labelled for both classes 0 and 3, and yet they are found to belong together."""
    features, labels = labelled_images(1, n=4000)
    statistics = feed(features, labels)
    relations = estimate_relations(statistics, solve_ridge(statistics))
    gain = relations.conditional - relations.prior[:, None]
    assert gain[3, 0] > 0.2
    assert gain[0, 3] > 0.2
    assert gain[1:3, 0].abs().max() < 0.1


def test_refining_lifts_a_class_by_the_company_it_keeps():
    features, labels = labelled_images(2, n=4000)
    statistics = feed(features, labels)
    classifiers = solve_ridge(statistics)
    relations = estimate_relations(statistics, classifiers)
    scores = classifiers.scores(features)
    lift = refine(scores, classifiers, relations, 0.2) - scores
    assert lift[labels[:, 0] == 1, 3].mean() > lift[labels[:, 0] == 0, 3].mean() + 0.01
    assert (lift >= -1e-12).all()


def test_refining_does_not_depend_on_the_scale_of_a_class():
    """Half the score of a class, with means to match: what it adds to others stays as it was."""
    features, labels = labelled_images(3)
    statistics = feed(features, labels)
    classifiers = solve_ridge(statistics)
    relations = estimate_relations(statistics, classifiers)
    scores, half = classifiers.scores(features), torch.tensor([0.5, 1.0, 1.0, 1.0])
    calibration = classifiers.calibration._replace(
        negative_mean=classifiers.calibration.negative_mean * half,
        positive_mean=classifiers.calibration.positive_mean * half,
    )
    scaled = classifiers._replace(calibration=calibration)
    torch.testing.assert_close(
        refine(scores * half, scaled, relations, 0.3),
        refine(scores, classifiers, relations, 0.3) * half,
    )


def test_a_class_without_positives_has_no_relations():
    features, labels = labelled_images(0)
    labels[:, 2] = 0
    statistics = feed(features, labels)
    classifiers = solve_ridge(statistics)
    relations = estimate_relations(statistics, classifiers)
    assert relations.conditional.isfinite().all()
    scores = classifiers.scores(features)
    refined = refine(scores, classifiers, relations, 0.5)
    torch.testing.assert_close(refined[:, 2], scores[:, 2])
    without = torch.tensor([0, 1, 3])
    others = LabelRelations(relations.conditional[without][:, without], relations.prior[without])
    calibration = Calibration(*(part[without] for part in classifiers.calibration))
    part = classifiers._replace(calibration=calibration)
    torch.testing.assert_close(refined[:, without], refine(scores[:, without], part, others, 0.5))
