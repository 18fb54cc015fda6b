import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.losses import (
    PartialBCEWithLogitsLoss,
    distillation_loss,
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
def test_partial_bce_refuses_what_does_not_fit(logits, targets, message):
    with pytest.raises(ValueError, match=message):
        PartialBCEWithLogitsLoss()(logits, targets)


def test_unknown_reduction_is_refused():
    for loss in (distillation_loss, relationship_preserving_loss):
        with pytest.raises(ValueError, match="'mean', 'sum'"):
            loss(torch.zeros(1, 1), torch.zeros(1, 1), reduction="max")


def test_distillation_gradient_is_zero_when_student_is_expert():
    expert = torch.randn(5, 3, dtype=torch.float64)
    student = torch.cat([expert, torch.randn(5, 2)], dim=1).requires_grad_()
    distillation_loss(student, expert).backward()
    assert student.grad.abs().max() < 1e-15


def test_distillation_pulls_towards_the_expert_on_old_classes_only():
    expert = torch.randn(5, 3, requires_grad=True)
    student = torch.zeros(5, 5, requires_grad=True)
    distillation_loss(student, expert, reduction="sum").backward()
    # d BCE / d logit = sigmoid(logit) − soft label, averaged over the five images
    torch.testing.assert_close(student.grad[:, :3], (0.5 - expert.detach().sigmoid()) / 5)
    assert student.grad[:, 3:].eq(0).all()
    assert expert.grad is None


def test_distillation_reductions_differ_by_the_number_of_old_classes():
    student, expert = torch.randn(5, 4), torch.randn(5, 3)
    mean = distillation_loss(student, expert)
    torch.testing.assert_close(distillation_loss(student, expert, reduction="sum"), 3 * mean)


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
def test_relationship_loss_refuses_embeddings_that_do_not_extend_the_old(old):
    with pytest.raises(ValueError, match=r"must extend .* they are \(2, 4\) and "):
        relationship_preserving_loss(torch.zeros(2, 4), old)
