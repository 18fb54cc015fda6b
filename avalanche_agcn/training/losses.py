"""The losses of multi-label continual learning: classification, distillation, relationships.

=========  =====================================  ===========
symbol     name                                   equation
=========  =====================================  ===========
ℓ_cls      `PartialBCEWithLogitsLoss`             9
ℓ_dst      `distillation_loss`                    7
ℓ_gph      `relationship_preserving_loss`         8
=========  =====================================  ===========
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Reduction = Literal["mean", "sum"]


class PartialBCEWithLogitsLoss(nn.Module):
    """Binary cross-entropy over the annotated cells of multi-hot targets.

    A cell of the targets is 0 or 1 where the image is annotated for that class and NaN where it
    is not. The loss is the mean over the annotated cells; the others add neither to it nor to
    its gradient.

    Example:
        >>> import torch
        >>> logits = torch.zeros(2, 2, requires_grad=True)  # two classes seen so far
        >>> targets = torch.tensor([[1.0, float("nan"), 0.0], [float("nan"), 0.0, 0.0]])
        >>> round(PartialBCEWithLogitsLoss()(logits, targets).item(), 4)
        0.6931
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of a batch, a scalar.

        Args:
            logits: raw scores over the classes seen so far, ``[B, n_seen]``.
            targets: 0, 1 or NaN, ``[B, n_classes]`` with ``n_classes >= n_seen``. Logits belong
                to the first ``n_seen`` columns; the rest is not looked at.

        Returns:
            The loss. A batch without an annotated cell gives 0, with zero gradients.

        Raises:
            ValueError: if the shapes do not fit or the targets are class numbers.
        """
        _check_targets(logits, targets)
        logits = _at_least_float32(logits)
        targets = targets[:, : logits.shape[1]].to(logits.dtype)
        annotated = ~targets.isnan()
        # A constant in place of NaN, and a weight of 0: no NaN reaches the backward pass.
        total = F.binary_cross_entropy_with_logits(
            logits, targets.nan_to_num(0.0), weight=annotated.to(logits.dtype), reduction="sum"
        )
        return total / annotated.sum().clamp(min=1)


def distillation_loss(logits: Tensor, expert_logits: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """ℓ_dst (Eq. 7): cross-entropy of the student with the expert's soft labels.

    Its gradient, not its value, is zero when student and expert agree.

    Args:
        logits: the student's, ``[B, n_seen]``; the first ``n_old`` columns are used.
        expert_logits: the expert's, ``[B, n_old]``; no gradient flows into them.
        reduction: ``"mean"`` over images and old classes (the authors' program) or ``"sum"`` over
            old classes (Eq. 7), the mean over images.

    Returns:
        The loss, a scalar; 0 when there is no old class.

    Raises:
        ValueError: if the student has fewer images or classes than the expert.

    Example:
        >>> import torch
        >>> student = torch.zeros(1, 3)
        >>> round(distillation_loss(student, torch.zeros(1, 2), reduction="sum").item(), 4)
        1.3863
    """
    check_reduction(reduction)
    _check_extends("logits", logits, expert_logits, dim=1)
    student = _at_least_float32(logits[:, : expert_logits.shape[1]])
    soft_labels = expert_logits.detach().to(student.dtype).sigmoid()
    total = F.binary_cross_entropy_with_logits(student, soft_labels, reduction="sum")
    return total / max(1, student.numel() if reduction == "mean" else len(student))


def relationship_preserving_loss(
    embeddings: Tensor, old_embeddings: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """ℓ_gph (Eq. 8): squared distance of the old classes' embeddings from what they were.

    Args:
        embeddings: H of the current experience, ``[n_seen, D]``; rows after ``n_old`` are free.
        old_embeddings: G of the previous experience, ``[n_old, D]``; no gradient flows into it.
        reduction: ``"mean"`` over all entries (the authors' program: λ₃ = 1e5 belongs to it) or
            ``"sum"`` of squared norms (Eq. 8 as written), which is ``n_old * D`` times larger.

    Returns:
        The loss, a scalar; 0 when there is no old class.

    Raises:
        ValueError: if there are fewer rows than old ones, or rows of another length.

    Example:
        >>> import torch
        >>> relationship_preserving_loss(torch.ones(3, 4), torch.zeros(2, 4), reduction="sum")
        tensor(8.)
    """
    check_reduction(reduction)
    _check_extends("embeddings", embeddings, old_embeddings, dim=0)
    old = _at_least_float32(embeddings[: len(old_embeddings)])
    total = F.mse_loss(old, old_embeddings.detach().to(old.dtype), reduction="sum")
    return total / max(1, old.numel()) if reduction == "mean" else total


def check_reduction(reduction: str) -> None:
    """Refuse a reduction that is not one of `Reduction`.

    Raises:
        ValueError: naming the choices.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}, not {reduction!r}.")


def _at_least_float32(values: Tensor) -> Tensor:
    """Half precision in, as under autocast, but no sum over a batch in it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _check_targets(logits: Tensor, targets: Tensor) -> None:
    if targets.ndim != 2 or not targets.is_floating_point():
        raise ValueError(
            "targets must be a float matrix [images, classes] of 0, 1 and NaN, but they are "
            f"{targets.dtype} of shape {tuple(targets.shape)}. For class numbers use "
            "torch.nn.functional.one_hot(targets, n_classes).float()."
        )
    if logits.ndim != 2 or len(logits) != len(targets):
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must both be "
            "[images, classes] of the same images."
        )
    if logits.shape[1] > targets.shape[1]:
        raise ValueError(
            f"logits have {logits.shape[1]} columns but targets only {targets.shape[1]}. Logits "
            "cover the classes seen so far, a prefix of the target's columns: build the "
            "benchmark with all its classes or the model with fewer outputs."
        )


def _check_extends(name: str, new: Tensor, old: Tensor, *, dim: int) -> None:
    """In one dimension the new may be longer."""
    matrices = new.ndim == old.ndim == 2
    if not matrices or new.shape[1 - dim] != old.shape[1 - dim] or new.shape[dim] < old.shape[dim]:
        raise ValueError(
            f"{name} and their old counterpart have shapes that do not fit: the new must extend "
            f"the old, but they are {tuple(new.shape)} and {tuple(old.shape)}."
        )
