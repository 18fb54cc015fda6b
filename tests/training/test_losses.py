import math

import pytest
import torch
import torch.nn.functional as F
from avalanche.training.losses import SCRLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.losses import (
    AsymmetricLoss,
    MultiLabelContrastiveLoss,
    PartialBCEWithLogitsLoss,
    add_pseudo_labels,
    confidence_penalty,
    distillation_loss,
    feature_distillation_loss,
    label_overlap,
    lwf_loss,
    newer_as_negative,
    relationship_preserving_loss,
)

NAN = float("nan")


@st.composite
def partial_batches(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    n, seen, extra = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    logits = 5 * torch.randn(n, seen, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 2, (n, seen + extra), generator=generator).double()
    hidden = torch.rand(targets.shape, generator=generator) < draw(st.floats(0, 1))
    return logits, targets.masked_fill(hidden, NAN)


@settings(max_examples=50, deadline=None)
@given(partial_batches())
def test_partial_bce_equals_mean_over_annotated_cells(batch):
    logits, targets = batch
    cells = [
        F.binary_cross_entropy_with_logits(logits[i, j], targets[i, j])
        for i in range(logits.shape[0])
        for j in range(logits.shape[1])
        if not targets[i, j].isnan()
    ]
    expected = torch.stack(cells).mean() if cells else torch.tensor(0.0, dtype=torch.float64)
    torch.testing.assert_close(PartialBCEWithLogitsLoss()(logits, targets), expected)


@settings(max_examples=50, deadline=None)
@given(partial_batches())
def test_partial_bce_gradient_is_zero_exactly_where_unannotated(batch):
    logits, targets = batch
    logits.requires_grad_()
    PartialBCEWithLogitsLoss()(logits, targets).backward()
    assert torch.equal(logits.grad == 0, targets[:, : logits.shape[1]].isnan())


def test_partial_bce_is_pytorchs_when_all_is_annotated():
    logits, targets = torch.randn(4, 3), torch.randint(0, 2, (4, 3)).float()
    expected = F.binary_cross_entropy_with_logits(logits, targets)
    torch.testing.assert_close(PartialBCEWithLogitsLoss()(logits, targets), expected)


def test_partial_bce_without_annotated_cell_is_zero_with_a_gradient():
    logits = torch.randn(2, 3, requires_grad=True)
    loss = PartialBCEWithLogitsLoss()(logits, torch.full((2, 3), NAN))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_partial_bce_of_nothing_is_zero(shape):
    logits = torch.zeros(shape, requires_grad=True)
    loss = PartialBCEWithLogitsLoss()(logits, torch.zeros(shape[0], 3))
    loss.backward()
    assert loss.item() == 0


def test_partial_bce_leaves_targets_as_they_are():
    targets = torch.tensor([[1.0, NAN]])
    PartialBCEWithLogitsLoss()(torch.zeros(1, 2), targets)
    torch.testing.assert_close(targets, torch.tensor([[1.0, NAN]]), equal_nan=True)


def test_partial_bce_takes_bfloat16_logits():
    logits = torch.tensor([[0.5, -1.0]], dtype=torch.bfloat16, requires_grad=True)
    loss = PartialBCEWithLogitsLoss()(logits, torch.tensor([[1.0, NAN]]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0.4741, abs=1e-4)


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), "one_hot"),
        (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long), "float matrix"),
        (torch.zeros(2, 3), torch.zeros(2), "float matrix"),
        (torch.zeros(2, 4), torch.zeros(2, 3), "4 columns"),
        (torch.zeros(3, 3), torch.zeros(2, 3), "same images"),
        (torch.zeros(3), torch.zeros(2, 3), "same images"),
    ],
)
def test_partial_bce_rejects_what_does_not_fit(logits, targets, message):
    with pytest.raises(ValueError, match=message):
        PartialBCEWithLogitsLoss()(logits, targets)


def test_distillation_gradient_is_zero_when_student_is_teacher():
    teacher = torch.randn(5, 3, dtype=torch.float64)
    student = torch.cat([teacher, torch.randn(5, 2)], dim=1).requires_grad_()
    distillation_loss(student, teacher).backward()
    assert student.grad.abs().max() < 1e-15


def test_distillation_pulls_towards_the_teacher_on_old_classes_only():
    teacher = torch.randn(5, 3, requires_grad=True)
    student = torch.zeros(5, 5, requires_grad=True)
    distillation_loss(student, teacher, reduction="sum").backward()
    # d BCE / d logit = sigmoid(logit) − soft label, averaged over the five images
    torch.testing.assert_close(student.grad[:, :3], (0.5 - teacher.detach().sigmoid()) / 5)
    assert student.grad[:, 3:].eq(0).all()
    assert teacher.grad is None


def test_distillation_reductions_differ_by_the_number_of_old_classes():
    student, teacher = torch.randn(5, 4), torch.randn(5, 3)
    mean = distillation_loss(student, teacher)
    torch.testing.assert_close(distillation_loss(student, teacher, reduction="sum"), 3 * mean)


def test_distillation_without_old_classes_is_zero():
    assert distillation_loss(torch.zeros(2, 3), torch.zeros(2, 0)).item() == 0


def test_relationship_loss_is_the_mean_squared_error_of_old_rows():
    old = torch.randn(3, 8, requires_grad=True)
    new = torch.randn(5, 8, requires_grad=True)
    loss = relationship_preserving_loss(new, old)
    torch.testing.assert_close(loss, ((new[:3] - old) ** 2).mean())
    loss.backward()
    assert new.grad[:3].ne(0).any()
    assert new.grad[3:].eq(0).all()
    assert old.grad is None
    summed = relationship_preserving_loss(new, old, reduction="sum")
    torch.testing.assert_close(summed, 24 * loss)


@pytest.mark.parametrize("old", [torch.zeros(3, 4), torch.zeros(2, 5)])
def test_relationship_loss_rejects_embeddings_that_do_not_extend_the_old(old):
    with pytest.raises(ValueError, match=r"must extend .* they are \(2, 4\) and "):
        relationship_preserving_loss(torch.zeros(2, 4), old)


@given(seed=st.integers(0, 100), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_no_gradient_when_student_and_teacher_agree(seed, temperature):
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    student = logits.clone().requires_grad_()
    lwf_loss(student, logits[:, :3], temperature=temperature).backward()
    torch.testing.assert_close(student.grad, torch.zeros_like(student))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_gradient_by_hand(temperature):
    student = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[0.0, 3.0]], dtype=torch.float64)
    lwf_loss(student, teacher, temperature=temperature).backward()
    difference = (student[:, :2] / temperature).sigmoid() - (teacher / temperature).sigmoid()
    expected = torch.cat([temperature * difference / 2, torch.zeros(1, 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(student.grad, expected)


def test_temperature_1_is_agcns_distillation():
    logits, teacher = torch.randn(3, 5), torch.randn(3, 2)
    torch.testing.assert_close(lwf_loss(logits, teacher), distillation_loss(logits, teacher))


def random_batch(n, n_classes, seed, unlabelled=0.3):
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(n, n_classes, generator=generator) < 0.4).float()
    targets[torch.rand(n, n_classes, generator=generator) < unlabelled] = torch.nan
    return torch.randn(n, 5, generator=generator), targets


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


@given(n=st.integers(1, 7), n_classes=st.integers(1, 4), seed=st.integers(0, 500))
def test_equals_the_literal_loss(n, n_classes, seed):
    features, targets = random_batch(n, n_classes, seed)
    ours = MultiLabelContrastiveLoss(0.2)(features, targets).item()
    assert ours == pytest.approx(literal_loss(features, targets, 0.2), abs=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_one_label_an_image_gives_the_single_label_loss(seed):
    generator = torch.Generator().manual_seed(seed)
    views = torch.nn.functional.normalize(torch.randn(6, 2, 5, generator=generator), dim=2)
    labels = torch.randint(0, 3, (6,), generator=generator)
    single = SCRLoss(temperature=0.07)(views, labels)
    targets = torch.nn.functional.one_hot(labels, 3).float()
    ours = MultiLabelContrastiveLoss()(torch.cat(views.unbind(1)), torch.cat([targets, targets]))
    torch.testing.assert_close(ours, single, rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_order_of_the_batch_does_not_matter(seed):
    features, targets = random_batch(8, 4, seed)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    loss = MultiLabelContrastiveLoss()
    torch.testing.assert_close(loss(features[order], targets[order]), loss(features, targets))


def test_images_with_nothing_annotated_for_both_do_not_touch_each_other():
    targets = torch.tensor([[1.0, torch.nan], [1.0, torch.nan], [torch.nan, 1.0], [torch.nan, 1.0]])
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    MultiLabelContrastiveLoss()(features, targets).backward()
    halves = [features.detach()[part].requires_grad_() for part in (slice(0, 2), slice(2, 4))]
    for half, part in zip(halves, (slice(0, 2), slice(2, 4))):
        (MultiLabelContrastiveLoss()(half, targets[part]) / 2).backward()
    torch.testing.assert_close(features.grad, torch.cat([half.grad for half in halves]))


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.full((3, 2), torch.nan),
        torch.zeros(3, 2),
        torch.zeros(0, 2),
    ],
)
def test_nothing_in_common_gives_zero_and_no_gradient(targets):
    features = torch.ones(len(targets), 4, requires_grad=True)
    loss = MultiLabelContrastiveLoss()(features, targets)
    loss.backward()
    assert loss == 0
    assert torch.equal(features.grad, torch.zeros_like(features))


def test_sharing_more_labels_draws_nearer():
    targets = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    features = torch.eye(3, requires_grad=True)
    MultiLabelContrastiveLoss(1.0)(features, targets).backward()
    pull = -features.grad[0]  # how the first image moves
    assert pull[1] > pull[2]


def test_overlap_by_hand():
    nan = torch.nan
    targets = torch.tensor([[1.0, 1.0, 0.0, nan], [1.0, 0.0, 1.0, 1.0], [nan, nan, nan, 0.0]])
    overlap, comparable = label_overlap(targets)
    assert overlap[0, 1] == overlap[1, 0] == pytest.approx(1 / 3)
    assert comparable.tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert overlap[1, 2] == 0


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 6))
def test_newer_as_negative_changes_only_seen_columns_behind_the_annotated(start, width, n_seen):
    targets = torch.full((2, 6), torch.nan)
    targets[0, start : start + width] = 1.0
    filled = newer_as_negative(targets, n_seen)
    stop = min(start + width, 6)
    expected = targets.clone()
    if stop > start:
        expected[0, stop:n_seen] = 0.0
    torch.testing.assert_close(filled, expected, equal_nan=True)


def asymmetric_cell(logit, y, gamma_neg, gamma_pos, clip):
    """One cell in plain Python, from the formula."""
    p = 1 / (1 + math.exp(-logit))
    shifted = max(p - clip, 0)
    return -y * (1 - p) ** gamma_pos * math.log(p) - (1 - y) * shifted**gamma_neg * math.log(1 - shifted)


ASL_SETTINGS = [(4.0, 0.0, 0.05), (2.0, 1.0, 0.0), (0.5, 0.5, 0.2), (0.0, 0.0, 0.0)]


@pytest.mark.parametrize("setting", ASL_SETTINGS)
@settings(max_examples=25, deadline=None)
@given(partial_batches())
def test_asymmetric_loss_equals_the_formula_over_annotated_cells(setting, batch):
    logits, targets = batch
    pairs = zip(logits.flatten().tolist(), targets[:, : logits.shape[1]].flatten().tolist())
    cells = [asymmetric_cell(logit, y, *setting) for logit, y in pairs if y == y]
    expected = sum(cells) / max(1, len(cells))
    assert AsymmetricLoss(*setting)(logits, targets).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(partial_batches())
def test_asymmetric_loss_without_powers_and_clip_is_bce(batch):
    logits, targets = batch
    torch.testing.assert_close(
        AsymmetricLoss(0, 0, 0)(logits, targets), PartialBCEWithLogitsLoss()(logits, targets)
    )


@pytest.mark.parametrize("setting", ASL_SETTINGS)
def test_asymmetric_loss_has_the_gradient_of_the_formula(setting):
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(0, 2, (4, 4), generator=generator).double()
    targets[0, 1] = targets[2, 2] = NAN
    loss = AsymmetricLoss(*setting)
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), logits)
    loss(logits, targets).backward()
    assert logits.grad[0, 1] == logits.grad[2, 2] == 0


@pytest.mark.parametrize("setting", [*ASL_SETTINGS, (0.5, 0.0, 0.05)])
def test_asymmetric_loss_is_finite_for_saturated_logits(setting):
    logits = torch.tensor([[-200.0, -20.0, 0.0, 20.0, 200.0]]).requires_grad_()
    for targets in (torch.zeros(1, 5), torch.ones(1, 5), torch.full((1, 5), NAN)):
        (gradient,) = torch.autograd.grad(AsymmetricLoss(*setting)(logits, targets), logits)
        assert gradient.isfinite().all()


def test_asymmetric_weights_can_be_constants_to_the_gradient():
    logits, targets = torch.tensor([[1.0]], requires_grad=True), torch.zeros(1, 1)
    loss = AsymmetricLoss(2.0, 0.0, 0.0, detach_weights=True)(logits, targets)
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
    for i in range(len(targets)):
        for j in range(targets.shape[1]):
            if j >= n_old:
                assert torch.equal(found[i, j].nan_to_num(2), targets[i, j].nan_to_num(2))
                continue
            p = 1 / (1 + math.exp(-logits[i, j].item()))
            assert found[i, j].item() == pytest.approx(p if soft else float(p > threshold))
    torch.testing.assert_close(targets, before, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_feature_distillation_does_not_overflow_in_half_precision(dtype):
    features = torch.full((32, 2048), 3.0, dtype=dtype, requires_grad=True)
    teacher = torch.ones(32, 2048, dtype=dtype, requires_grad=True)
    loss = feature_distillation_loss(features, teacher)
    assert loss.item() == 4
    (2.0**16 * loss).backward()  # as a GradScaler does
    assert (features.grad == 4).all()
    assert teacher.grad is None
