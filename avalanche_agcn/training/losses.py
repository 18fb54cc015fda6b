"""Losses of logits and multi-hot targets, of which some cells may be unlabelled.

Targets are ``[B, n_classes]``, 0 or 1, and NaN where an image is not annotated for a class. Logits cover the
classes seen so far, ``[B, n_seen]``: a prefix of the targets' columns.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.checks import check_range
from avalanche_agcn.training.distributed import mean_of, sum_over_processes

Reduction = Literal["mean", "sum"]


class PartialBCEWithLogitsLoss(nn.Module):
    """ℓ_cls (Eq. 9): mean binary cross-entropy over the annotated cells of multi-hot targets.

    NaN cells, where an image is not annotated for a class, add neither to the loss nor to its gradient.

    Args:
        soft: whether targets may be probabilities between 0 and 1.

    Example:
        >>> logits = torch.zeros(2, 2, requires_grad=True)  # two classes seen so far
        >>> targets = torch.tensor([[1.0, float("nan"), 0.0], [float("nan"), 0.0, 0.0]])
        >>> round(PartialBCEWithLogitsLoss()(logits, targets).item(), 4)
        0.6931
    """

    def __init__(self, *, soft: bool = False) -> None:
        super().__init__()
        self.soft = soft

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of a batch, a scalar; 0 with zero gradients if it has no annotated cell.

        Only the first ``n_seen`` columns of the targets are used.
        """
        logits, y, annotated = _cells(logits, targets, soft=self.soft)
        weight = annotated.to(logits.dtype)
        total = F.binary_cross_entropy_with_logits(logits, y, weight, reduction="sum")
        return mean_of(total, annotated.sum())


class AsymmetricLoss(nn.Module):
    """Asymmetric loss (ASL, Ridnik et al., 2021) over the annotated cells of multi-hot targets.

    With p the probability of a class, p_m = max(p − clip, 0) and y its target, the loss of a cell is

        −y (1 − p)^γ₊ log p − (1 − y) p_m^γ₋ log(1 − p_m),

    so that easy negatives, the majority in multi-label data, count little, and those below ``clip`` not at
    all. As in `PartialBCEWithLogitsLoss`, which it equals at 0, 0, 0, NaN cells are skipped and the loss is
    the mean over the others. (The authors' code takes the sum: with SGD, its learning rates are smaller by
    that factor; with Adam there is no difference.) With ``detach_weights``, the default of the authors'
    program, (1 − p)^γ₊ and p_m^γ₋ get no gradient.
    """

    def __init__(
        self,
        gamma_neg: float = 4.0,
        gamma_pos: float = 0.0,
        clip: float = 0.05,
        *,
        detach_weights: bool = False,
    ) -> None:
        super().__init__()
        check_range("gamma_neg", gamma_neg, least=0)
        check_range("gamma_pos", gamma_pos, least=0)
        check_range("clip", clip, least=0, below=1)
        self.gamma_neg, self.gamma_pos, self.clip = gamma_neg, gamma_pos, clip
        self.detach_weights = detach_weights

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of a batch, as in `PartialBCEWithLogitsLoss`."""
        logits, y, annotated = _cells(logits, targets)
        positive = self._focus((-logits).sigmoid(), self.gamma_pos) * F.softplus(-logits)
        if self.clip:  # −log(1 − p_m), from logits, because 1 − p rounds to 0 where p is near 1
            clip = torch.full_like(logits, math.log(self.clip))
            cost = -torch.logaddexp(F.logsigmoid(-logits), clip).clamp(max=0.0)
        else:
            cost = F.softplus(logits)
        negative = self._focus(logits.sigmoid() - self.clip, self.gamma_neg) * cost
        cells = y * positive + (1 - y) * negative
        return mean_of(cells.where(annotated, 0.0).sum(), annotated.sum())

    def _focus(self, probabilities: Tensor, power: float) -> Tensor:
        """Power of a probability that is clamped above 0, where the slope of a root would be infinite."""
        weights = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).pow(power)
        return weights.detach() if self.detach_weights else weights


def check_loss_weights(**weights: float) -> None:
    """Raise a ValueError if a weight is negative, infinite or NaN, or if all are 0."""
    for name, weight in weights.items():
        check_range(name, weight, least=0)
    if not any(weights.values()):
        raise ValueError(f"All of {sorted(weights)} are 0, so nothing would be learned: set one above 0.")


def labels_per_image(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean number of annotated classes of an image of the global batch, among those that have a logit.

    A loss that is the mean over annotated cells, multiplied by this, is the sum over classes.
    """
    annotated = ~targets[:, : logits.shape[1]].isnan()
    counts = torch.stack([annotated.sum(), annotated.any(dim=1).sum()]).to(logits.dtype)
    (n_cells, n_images) = sum_over_processes(counts)[0]
    return n_cells / n_images.clamp(min=1)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision, as from autocast, so that no sum over a batch is computed in it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _cells(logits: Tensor, targets: Tensor, *, soft: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets of the same columns, and which of them are annotated.

    Targets have a constant in place of NaN, so that no NaN reaches the backward pass.
    """
    _check_shapes(logits, targets)
    inside = (targets >= 0) & (targets <= 1) if soft else (targets == 0) | (targets == 1)
    wrong = ~(inside | targets.isnan())
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        wanted = "between 0 and 1" if soft else "0 or 1 (for probabilities pass soft=True)"
        raise ValueError(
            f"targets must be {wanted}, or NaN where unlabelled, but are {targets[row, column].item()} for "
            f"image {row}, class {column}."
        )
    logits = at_least_float32(logits)
    targets = targets[:, : logits.shape[1]].to(logits.dtype)
    return logits, targets.nan_to_num(0.0), ~targets.isnan()


def _check_shapes(logits: Tensor, targets: Tensor) -> None:
    if targets.ndim != 2 or not targets.is_floating_point():
        raise ValueError(
            f"targets must be a float matrix [images, classes] of 0, 1 and NaN, but they are {targets.dtype} "
            f"of shape {tuple(targets.shape)}. For class numbers use "
            "torch.nn.functional.one_hot(targets, n_classes).float()."
        )
    if logits.ndim != 2 or len(logits) != len(targets):
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must both be [images, classes] "
            "of the same images."
        )
    if logits.shape[1] > targets.shape[1]:
        raise ValueError(
            f"logits have {logits.shape[1]} columns but targets only {targets.shape[1]}. Logits cover the "
            "classes seen so far, a prefix of the target's columns: make the benchmark with all its classes "
            "or the model with fewer outputs."
        )
