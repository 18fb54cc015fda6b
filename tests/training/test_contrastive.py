import math

import pytest
import torch
from avalanche.training.losses import SCRLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.contrastive import MultiLabelContrastiveLoss, label_overlap


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


def test_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be above 0"):
        MultiLabelContrastiveLoss(0)
