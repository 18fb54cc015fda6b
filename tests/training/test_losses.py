import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from avalanche.training.losses import SCRLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

import avalanche_agcn.training.losses as L
from avalanche_agcn.agcn.losses import distillation_loss, relationship_preserving_loss
from avalanche_agcn.methods.csc import confidence_penalty
from avalanche_agcn.methods.lwf import lwf_loss
from avalanche_agcn.methods.replay import MultiLabelContrastiveLoss, label_overlap
from avalanche_agcn.training.memory import newer_as_negative
from avalanche_agcn.training.statistics.drift import feature_distillation_loss
from avalanche_agcn.training.statistics.negatives import (
    expected_softplus,
    score_variances,
    statistical_negative_loss,
)
from avalanche_agcn.training.teacher import add_pseudo_labels

NAN = float("nan")
SEEDS = st.integers(0, 1000)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def random64(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def partial_batches(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    n, seen, extra = draw(st.integers(0, 6)), draw(st.integers(0, 5)), draw(st.integers(0, 3))
    logits = 5 * torch.randn(n, seen, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 2, (n, seen + extra), generator=generator).double()
    hidden = torch.rand(targets.shape, generator=generator) < draw(st.floats(0, 1))
    return logits, targets.masked_fill(hidden, NAN)


def asymmetric_cell(logit, y, gamma_neg, gamma_pos, clip):
    """One cell in plain Python, from the formula; without powers and clip it is the cross-entropy."""
    p = 1 / (1 + math.exp(-logit))
    shifted = max(p - clip, 0)
    return -y * (1 - p) ** gamma_pos * math.log(p) - (1 - y) * shifted**gamma_neg * math.log(1 - shifted)


ASL_SETTINGS = [(4.0, 0.0, 0.05), (2.0, 1.0, 0.0), (0.5, 0.5, 0.2), (0.0, 0.0, 0.0)]
LOSSES = [(L.AsymmetricLoss(*setting), setting) for setting in ASL_SETTINGS]
LOSSES += [(L.PartialBCEWithLogitsLoss(), (0.0, 0.0, 0.0))]


@pytest.mark.parametrize(("loss", "setting"), LOSSES)
@settings(max_examples=50)
@given(partial_batches())
def test_loss_is_the_mean_of_the_formula_over_annotated_cells(loss, setting, batch):
    logits, targets = batch
    before = targets.clone()
    seen = targets[:, : logits.shape[1]]
    pairs = zip(logits.flatten().tolist(), seen.flatten().tolist())
    cells = [asymmetric_cell(logit, y, *setting) for logit, y in pairs if y == y]
    found = loss(logits.requires_grad_(), targets)
    assert found.item() == pytest.approx(sum(cells) / max(1, len(cells)), rel=1e-9, abs=1e-12)
    found.backward()
    assert not logits.grad[seen.isnan()].any()
    assert setting[2] > 0 or torch.equal(logits.grad == 0, seen.isnan())  # no cell is left out
    torch.testing.assert_close(targets, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("setting", [*ASL_SETTINGS, (0.5, 0.0, 0.05)])
def test_asymmetric_loss_has_the_gradient_of_the_formula_and_is_finite_for_saturated_logits(setting):
    loss, logits = L.AsymmetricLoss(*setting), (3 * random64(4, 3, seed=0)).requires_grad_()
    targets = torch.randint(0, 2, (4, 4)).double()
    targets[0, 1] = targets[2, 2] = NAN
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), logits)
    saturated = torch.tensor([[-200.0, -20.0, 0.0, 20.0, 200.0]]).requires_grad_()
    for targets in (torch.zeros(1, 5), torch.ones(1, 5), torch.full((1, 5), NAN)):
        (gradient,) = torch.autograd.grad(loss(saturated, targets), saturated)
        assert gradient.isfinite().all()


def test_asymmetric_weights_can_be_detached():
    logits, targets = torch.tensor([[1.0]], requires_grad=True), torch.zeros(1, 1)
    loss = L.AsymmetricLoss(2.0, 0.0, 0.0, detach_weights=True)(logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    p = logits.detach().sigmoid()
    torch.testing.assert_close(gradient, p**2 * p)  # p^γ times the gradient of BCE


def test_confidence_penalty_is_the_negative_entropy_of_the_authors_program():
    logits = torch.tensor([[0.5, -2.0, 3.0], [1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    rows = [[1 / (1 + math.exp(-x)) for x in row] for row in logits.tolist()]
    expected = sum(p * math.log(p) for row in rows for p in row) / 2
    assert confidence_penalty(logits).item() == pytest.approx(expected)
    assert torch.autograd.gradcheck(confidence_penalty, logits)
    assert confidence_penalty(torch.tensor([[-300.0, 300.0]])) == 0


@given(partial_batches(), st.floats(0.05, 0.95), st.booleans(), st.integers(0, 5))
def test_pseudo_labels_fill_old_columns_only(batch, threshold, soft, n_old):
    logits, targets = batch
    n_old = min(n_old, logits.shape[1])
    before = targets.clone()
    found = add_pseudo_labels(targets, logits[:, :n_old], threshold=threshold, soft=soft)
    torch.testing.assert_close(targets, before, equal_nan=True)
    torch.testing.assert_close(found[:, n_old:], targets[:, n_old:], equal_nan=True)
    for logit, answer in zip(logits[:, :n_old].flatten().tolist(), found[:, :n_old].flatten().tolist()):
        p = 1 / (1 + math.exp(-logit))
        assert answer == pytest.approx(p if soft else float(p > threshold))


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 6))
def test_newer_as_negative_changes_only_seen_columns_behind_the_annotated(start, width, n_seen):
    targets = torch.full((2, 6), torch.nan)
    targets[0, start : start + width] = 1.0
    expected = targets.clone()
    if width:
        expected[0, start + width : n_seen] = 0.0
    torch.testing.assert_close(newer_as_negative(targets, n_seen), expected, equal_nan=True)


@given(seed=SEEDS, temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_distillation_pulls_towards_the_teacher_on_old_classes_only(seed, temperature):
    """d BCE / d logit = sigmoid(logit) − soft label, T² / T of it, the mean over images and old classes."""
    student = random64(4, 5, seed=seed).requires_grad_()
    teacher = random64(4, 3, seed=seed + 1).requires_grad_()
    lwf_loss(student, teacher, temperature=temperature).backward()
    difference = (student[:, :3] / temperature).sigmoid() - (teacher / temperature).sigmoid()
    torch.testing.assert_close(student.grad[:, :3], temperature * difference.detach() / 12)
    assert not student.grad[:, 3:].any()
    assert teacher.grad is None
    mean = distillation_loss(student, teacher)
    torch.testing.assert_close(lwf_loss(student, teacher), mean)
    torch.testing.assert_close(distillation_loss(student, teacher, reduction="sum"), 3 * mean)
    torch.testing.assert_close(mean, F.binary_cross_entropy_with_logits(student[:, :3], teacher.sigmoid()))
    assert distillation_loss(student, teacher[:, :0]).item() == 0


def test_relationship_loss_is_the_mean_squared_error_of_old_rows():
    old, new = torch.randn(3, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    loss = relationship_preserving_loss(new, old)
    torch.testing.assert_close(loss, ((new[:3] - old) ** 2).mean())
    torch.testing.assert_close(relationship_preserving_loss(new, old, reduction="sum"), 24 * loss)
    loss.backward()
    assert new.grad[:3].ne(0).any()
    assert new.grad[3:].eq(0).all()
    assert old.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_feature_distillation_does_not_overflow_in_half_precision(dtype):
    features = torch.full((32, 2048), 3.0, dtype=dtype, requires_grad=True)
    teacher = torch.ones(32, 2048, dtype=dtype, requires_grad=True)
    loss = feature_distillation_loss(features, teacher)
    assert loss.item() == 4
    (2.0**16 * loss).backward()  # as a GradScaler does
    assert (features.grad == 4).all()
    assert teacher.grad is None


def literal_loss(features, targets, temperature):
    """Image by image, with sets."""
    labels = [{c for c, v in enumerate(row) if v == 1} for row in targets.tolist()]
    known = [{c for c, v in enumerate(row) if v == v} for row in targets.tolist()]
    z = [row / row.norm() for row in features.double()]
    losses = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i and known[i] & known[j]]
        scores = {j: math.exp(float(z[i] @ z[j]) / temperature) for j in others}
        weights = {}
        for j in others:
            both = known[i] & known[j]
            union = (labels[i] | labels[j]) & both
            weights[j] = len(labels[i] & labels[j] & both) / len(union) if union else 0.0
        if sum(weights.values()) > 0:
            total = sum(w * -math.log(scores[j] / sum(scores.values())) for j, w in weights.items())
            losses.append(total / sum(weights.values()))
    return sum(losses) / len(losses) if losses else 0.0


@given(n=st.integers(1, 7), n_classes=st.integers(1, 4), seed=SEEDS)
def test_contrastive_loss_equals_the_literal_loss_in_any_order(n, n_classes, seed):
    features, draws = random64(n, 5, seed=seed).float(), random64(2, n, n_classes, seed=seed + 1)
    targets = (draws[0] < -0.25).float().masked_fill(draws[1] < -0.5, NAN)
    loss = MultiLabelContrastiveLoss(0.2)
    assert loss(features, targets).item() == pytest.approx(literal_loss(features, targets, 0.2), abs=1e-4)
    torch.testing.assert_close(loss(features.flip(0), targets.flip(0)), loss(features, targets))


@settings(max_examples=25)
@given(seed=SEEDS)
def test_one_label_an_image_gives_the_single_label_loss(seed):
    generator = torch.Generator().manual_seed(seed)
    views = F.normalize(torch.randn(6, 2, 5, generator=generator), dim=2)
    labels = torch.randint(0, 3, (6,), generator=generator)
    targets = F.one_hot(labels, 3).float()
    ours = MultiLabelContrastiveLoss()(torch.cat(views.unbind(1)), torch.cat([targets, targets]))
    torch.testing.assert_close(ours, SCRLoss(temperature=0.07)(views, labels), rtol=1e-4, atol=1e-4)


def test_nothing_in_common_gives_zero_and_no_gradient():
    alone, apart, unlabelled = torch.eye(2)[:1], torch.eye(2), torch.full((3, 2), NAN)
    for targets in (alone, apart, unlabelled, torch.zeros(3, 2), torch.zeros(0, 2)):
        features = torch.ones(len(targets), 4, requires_grad=True)
        loss = MultiLabelContrastiveLoss()(features, targets)
        loss.backward()
        assert loss == 0
        assert torch.equal(features.grad, torch.zeros_like(features))
    for n_classes, n_experiences in ((0, 2), (2, 0)):
        weight = torch.randn(n_classes, 4, requires_grad=True)
        loss = statistical_negative_loss(weight, None, *random_experiences(n_experiences))
        loss.backward()
        assert loss == 0
        assert not weight.grad.any()


def test_overlap_by_hand_and_sharing_more_labels_draws_nearer():
    targets = torch.tensor([[1.0, 1.0, 0.0, NAN], [1.0, 0.0, 1.0, 1.0], [NAN, NAN, NAN, 0.0]])
    overlap, comparable = label_overlap(targets)
    assert overlap[0, 1] == overlap[1, 0] == pytest.approx(1 / 3)
    assert comparable.tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert overlap[1, 2] == 0
    features = torch.eye(3, requires_grad=True)
    targets = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    MultiLabelContrastiveLoss(1.0)(features, targets).backward()
    pull = -features.grad[0]  # how the first image moves
    assert pull[1] > pull[2]


def integral(mean, deviation):
    """E softplus of a normal variable, by adaptive integration on both sides of the bend."""

    def integrand(x):
        return np.logaddexp(0, mean + deviation * x) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    bend = np.clip(-mean / deviation, -12, 12)
    return sum(quad(integrand, *ends, epsabs=0, epsrel=1e-9)[0] for ends in ((-14, bend), (bend, 14)))


def random_experiences(n, width=4, seed=0):
    """Means, covariances and counts."""
    draws = random64(n, 2 * width + 1, width, seed=seed)
    covariances = draws[:, 1:].mT @ draws[:, 1:] / (2 * width)
    return draws[:, 0], covariances, torch.randint(1, 100, (n,))


@pytest.mark.parametrize(
    ("deviations", "means", "tolerance"),
    [
        ((0.1, 1, 2, 3), (-10, -5, -1, 0, 2, 10), 0.01),
        ((4, 6, 10, 15, 20), (-5, -3, -1, 0, 2, 5, 10), 0.06),
    ],
)
def test_expected_softplus_is_near_the_integral(deviations, means, tolerance):
    grid = torch.cartesian_prod(torch.tensor(means).double(), torch.tensor(deviations).double())
    expected = [integral(mean, deviation) for mean, deviation in grid.tolist()]
    np.testing.assert_allclose(expected_softplus(grid[:, 0], grid[:, 1] ** 2), expected, rtol=tolerance)
    without_variance = expected_softplus(grid[:, 0], torch.zeros(len(grid)))
    torch.testing.assert_close(without_variance, F.softplus(grid[:, 0]), rtol=1e-6, atol=0)


def test_statistical_loss_is_near_the_mean_over_drawn_images_and_training_on_it_silences_a_classifier():
    means, covariances, counts = random_experiences(2)
    weight, bias = random64(2, 4, seed=1).requires_grad_(), random64(2, seed=2).requires_grad_()
    normal = torch.distributions.MultivariateNormal
    drawn = [normal(*both).sample((200_000,)) for both in zip(means, covariances)]

    def drawn_loss():
        losses = torch.stack([F.softplus(images @ weight.T + bias).mean() for images in drawn])
        return ((counts * losses).sum() / counts.sum()).item()

    before, optimizer = drawn_loss(), torch.optim.Adam([weight, bias], lr=0.05)
    loss = statistical_negative_loss(weight, bias, means, covariances, counts).item()
    assert loss == pytest.approx(before, rel=0.02)
    cells = [  # the mean over classes, weighted by images
        n / 2 * expected_softplus(w @ mean + b, w @ covariance @ w)
        for mean, covariance, n in zip(means, covariances, counts)
        for w, b in zip(weight, bias)
    ]
    assert loss == pytest.approx(sum(cells).item() / counts.sum().item())
    for _ in range(100):
        optimizer.zero_grad()
        statistical_negative_loss(weight, bias, means, covariances, counts).backward()
        optimizer.step()
    assert drawn_loss() < 0.2 * before


def test_statistical_gradients_match_finite_differences():
    means, covariances, counts = random_experiences(3)
    weight, bias = random64(2, 4, seed=1).requires_grad_(), random64(2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w, b: statistical_negative_loss(w, b, means, covariances, counts), (weight, bias)
    )
    assert torch.autograd.gradcheck(lambda w: score_variances(w, covariances), (weight,))


@pytest.mark.parametrize("weight", [torch.zeros(2, 4), torch.ones(2, 4)])
def test_statistical_gradients_are_finite_without_variance(weight):
    """One image has no covariance, and a classifier may start at 0."""
    weight = weight.requires_grad_()
    loss = statistical_negative_loss(weight, None, torch.ones(1, 4), torch.zeros(1, 4, 4), torch.ones(1))
    loss.backward()
    expected = torch.sigmoid(weight.sum(1, keepdim=True)).expand(2, 4) / 2
    torch.testing.assert_close(weight.grad, expected.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    means, covariances, counts = random_experiences(3)
    weight = torch.randn(2, 4).to(dtype)
    loss = statistical_negative_loss(weight, None, means.float(), covariances.float(), counts)
    expected = statistical_negative_loss(weight.double(), None, means, covariances, counts)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    logits = torch.tensor([[0.5, -1.0]], dtype=dtype, requires_grad=True)
    loss = L.PartialBCEWithLogitsLoss()(logits, torch.tensor([[1.0, NAN]]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0.4741, abs=1e-4)


@pytest.mark.parametrize(
    ("loss", "shapes", "message"),
    [
        (L.PartialBCEWithLogitsLoss(), [(2, 3), (2,)], "float matrix"),
        (L.PartialBCEWithLogitsLoss(), [(2, 4), (2, 3)], "4 columns"),
        (L.PartialBCEWithLogitsLoss(), [(3, 3), (2, 3)], "same images"),
        (L.PartialBCEWithLogitsLoss(), [(3,), (2, 3)], "same images"),
        (relationship_preserving_loss, [(2, 4), (3, 4)], r"old classes must be \[3, 4\] .*, not \[2, 4\]"),
        (relationship_preserving_loss, [(2, 4), (2, 5)], r"old classes must be \[2, 5\] .*, not \[2, 4\]"),
        (distillation_loss, [(4, 2), (4, 3)], r"old classes must be \[4, 3\] .*, not \[4, 2\]"),
        (distillation_loss, [(4, 2), (5, 2)], r"old classes must be \[5, 2\] .*, not \[4, 2\]"),
        (distillation_loss, [(2, 4), (4,)], r"must be \[.*old classes.*\], not \[4\]"),
        (relationship_preserving_loss, [(2, 4), (4,)], r"must be \[.*old classes.*\], not \[4\]"),
        (statistical_negative_loss, [(2, 4), (1,), (3, 4), (3, 4, 4), (3,)], "bias must be"),
        (statistical_negative_loss, [(2, 4), (2,), (2, 4), (3, 4, 4), (3,)], "means must be"),
        (statistical_negative_loss, [(2, 4), (2,), (3, 4), (2, 4, 4), (3,)], "covariances must be"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected(loss, shapes, message):
    if loss is statistical_negative_loss:
        message += ".* 2 classifiers of 4 features and 3 experiences"
    with pytest.raises(ValueError, match=message):
        loss(*map(torch.zeros, shapes))


def test_targets_of_whole_numbers_are_rejected():
    for targets, message in ((torch.tensor([0, 1]), "one_hot"), (torch.zeros(2, 3).long(), "float matrix")):
        with pytest.raises(ValueError, match=message):
            L.PartialBCEWithLogitsLoss()(torch.zeros(2, 3), targets)
