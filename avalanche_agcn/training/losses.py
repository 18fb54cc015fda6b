"""Losses of multi-label continual learning: classification, distillation, relationships, contrast, negatives.

Targets are ``[B, n_classes]``, 0 or 1, and NaN where an image is not annotated for a class. Logits cover the
classes seen so far, ``[B, n_seen]``: a prefix of the targets' columns.
"""

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.checks import check_choice, check_range, check_shape
from avalanche_agcn.training.distributed import mean_of

Reduction = Literal["mean", "sum"]

TEMPERATURE = 0.07  # of supervised contrastive replay (Mai et al., 2021)
_SKIPPED = -1e9  # its exponential is 0, and unlike infinity it gives no NaN in a row without any pair
LEAST_VARIANCE = 1e-12  # of a score: the square root has no gradient at 0
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(9)


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


def confidence_penalty(logits: Tensor) -> Tensor:
    """Σ p log p over classes, the mean over images: the negative entropy that CSC adds to its loss.

    CSC (Du et al., 2024) penalises confident outputs. Like its program, this has no term for 1 − p, so that
    the entropy is largest at p = 1/e, not at 1/2.
    """
    logits = _at_least_float32(logits)
    return mean_of((logits.sigmoid() * F.logsigmoid(logits)).sum(), len(logits))


def add_pseudo_labels(
    targets: Tensor, teacher_logits: Tensor, *, threshold: float, soft: bool = False
) -> Tensor:
    """Return targets whose first columns, the old classes, are the teacher's predictions.

    Predictions are 1 where the probability is above the threshold, or with ``soft`` the probabilities.
    """
    probabilities = teacher_logits.detach().to(targets.dtype).sigmoid()
    predictions = probabilities if soft else (probabilities > threshold).to(targets.dtype)
    return torch.cat([predictions, targets[:, teacher_logits.shape[1] :]], dim=1)


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """ℓ_dst (Eq. 7): cross-entropy of the student with the teacher's soft labels; 0 without old classes.

    Only the student's first ``n_old`` columns are used; ``teacher_logits`` are ``[B, n_old]`` and get no
    gradient. The gradient, not the value, is zero when both agree. ``"mean"`` is over images and old classes
    (the authors' code); ``"sum"`` is over old classes (Eq. 7), the mean over images.
    """
    check_choice("reduction", reduction, Reduction)
    check_shape("teacher_logits", teacher_logits, ("images", "old classes"))
    n_images, n_old = teacher_logits.shape
    student = _at_least_float32(logits[..., :n_old])
    check_shape("logits of the old classes", student, (n_images, n_old), " as the teacher's")
    soft_labels = teacher_logits.detach().to(student.dtype).sigmoid()
    total = F.binary_cross_entropy_with_logits(student, soft_labels, reduction="sum")
    return mean_of(total, student.numel() if reduction == "mean" else len(student))


def feature_distillation_loss(features: Tensor, teacher_features: Tensor) -> Tensor:
    """Mean squared difference of features ``[B, D]`` from the teacher's, which get no gradient."""
    student = _at_least_float32(features)
    total = F.mse_loss(student, teacher_features.detach().to(student.dtype), reduction="sum")
    return mean_of(total, student.numel())


def lwf_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """`distillation_loss` of logits divided by a temperature, which is AGCN's ℓ_dst at temperature 1.

    Multiplied by the square of the temperature, to preserve the size of the gradient (Hinton et al., 2015).
    """
    return temperature**2 * distillation_loss(logits / temperature, teacher_logits / temperature)


def relationship_preserving_loss(
    embeddings: Tensor, old_embeddings: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """ℓ_gph (Eq. 8): squared distance of the old classes' embeddings from their old values; 0 without any.

    Only the first ``n_old`` rows of H, ``[n_seen, D]``, are used; the old ones, G ``[n_old, D]``, get no
    gradient. ``"mean"`` is over all entries (the authors' code, whose λ₃ is 1e5); ``"sum"`` of squared
    norms (Eq. 8) is ``n_old * D`` times larger.
    """
    check_choice("reduction", reduction, Reduction)
    check_shape("old_embeddings", old_embeddings, ("old classes", "features"))
    n_old, width = old_embeddings.shape
    old = _at_least_float32(embeddings[:n_old])
    check_shape("embeddings of the old classes", old, (n_old, width), " as before")
    total = F.mse_loss(old, old_embeddings.detach().to(old.dtype), reduction="sum")
    return total / max(1, old.numel()) if reduction == "mean" else total


class MultiLabelContrastiveLoss(nn.Module):
    """Supervised contrastive loss whose positive weights are the overlap of labels.

    With z the normalised features, τ the temperature and w_ij the Jaccard overlap of two images' labels
    (`label_overlap`), the loss of image i is the weighted mean, over the other images j, of
    −log(exp(z_i·z_j/τ) / Σ_a exp(z_i·z_a/τ)) with weights w_ij. If every image has one label, w is 0 or 1 and
    this is the single-label loss (Khosla et al., 2020). How SCR was made multi-label for the AGCN paper is
    not known: this is our adaptation.

    Two images without a column that is annotated for both cannot be compared: they are neither a pair nor a
    term a of the sum. An image that shares no label with any other contributes nothing.
    """

    def __init__(self, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        check_range("temperature", temperature, above=0)
        self.temperature = temperature

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the images that share a label with another, by features ``[B, D]``; 0 if none does."""
        z = F.normalize(_at_least_float32(features), dim=1)
        overlap, comparable = label_overlap(targets.to(z.dtype))
        other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        weights = overlap * other
        logits = (z @ z.T / self.temperature).masked_fill(~(comparable & other), _SKIPPED)
        log_probabilities = logits - logits.logsumexp(dim=1, keepdim=True)
        totals = weights.sum(1)
        has_positive = totals > 0
        losses = -(weights * log_probabilities.masked_fill(weights == 0, 0.0)).sum(1)[has_positive]
        return (losses / totals[has_positive]).sum() / has_positive.sum().clamp(min=1)


def label_overlap(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Jaccard overlap of the labels of all pairs of images, and whether they are comparable, both ``[B, B]``.

    Only columns annotated for both images count; a pair without any is not comparable. The overlap is 0 where
    neither has a label.
    """
    annotated = (~targets.isnan()).to(targets.dtype)
    positive = targets.nan_to_num(0.0)
    both = positive @ positive.T
    either = positive @ annotated.T + annotated @ positive.T - both  # labels on the jointly annotated columns
    return both / either.clamp(min=1), annotated @ annotated.T > 0


def newer_as_negative(targets: Tensor, n_seen: int) -> Tensor:
    """Return targets with 0 for seen classes that are newer than those an image is annotated for."""
    columns = torch.arange(targets.shape[1], device=targets.device)
    last_annotated = columns.where(~targets.isnan(), -1).amax(dim=1, keepdim=True)  # -1: none
    newer = (columns > last_annotated) & (last_annotated >= 0) & (columns < n_seen)
    return targets.masked_fill(newer, 0.0)


def statistical_negative_loss(
    weight: Tensor, bias: Tensor | None, means: Tensor, covariances: Tensor, counts: Tensor
) -> Tensor:
    """Expected loss of classifiers on negatives of which only mean and covariance are known, a scalar.

    Features of an earlier experience s are modelled as a Gaussian N(μ_s, Σ_s). The score of a classifier w
    with bias b is then Gaussian too, with mean m = w·μ_s + b and variance v = wᵀΣ_s w, and its expected loss
    on images without its class is E softplus(a), a ~ N(m, v). No image and no sampling is needed.

    The result is the mean over the K classifiers, ``weight [K, D]`` and ``bias [K]``, and over the T
    experiences, ``means [T, D]`` and symmetric ``covariances [T, D, D]``, weighted by their ``counts [T]`` of
    images; 0 with no classifier or no image. It can be differentiated once. The dtype of the covariances is
    that of the product, which takes most of the time: float32 is enough.
    """
    (classes, width), n = weight.shape, len(counts)
    reason = f" for {classes} classifiers of {width} features and {n} experiences"
    check_shape("means", means, (n, width), reason)
    check_shape("covariances", covariances, (n, width, width), reason)
    if bias is not None:
        check_shape("bias", bias, (classes,), reason)
    weight = _at_least_float32(weight)
    mean = means.to(weight) @ weight.T  # [T, K]
    if bias is not None:
        mean = mean + bias
    expected = expected_softplus(mean, score_variances(weight, covariances)).sum(dim=1)  # [T]
    counts = counts.to(weight)
    return (counts * expected).sum() / (counts.sum() * len(weight)).clamp(min=1)


def score_variances(weight: Tensor, covariances: Tensor) -> Tensor:
    """Variances wᵀΣw of classifiers ``[K, D]`` under symmetric covariances ``[T, D, D]``, ``[T, K]``.

    All products are one matrix product, and the gradient 2Σw reuses it instead of multiplying again, so the
    result can be differentiated only once.
    """
    n, width, _ = covariances.shape
    with torch.no_grad():
        products = covariances.reshape(n * width, width) @ weight.T.to(covariances)
        products = products.view(n, width, len(weight)).to(weight)  # Σw, [T, D, K]
    variances = (products * weight.T).sum(dim=1)  # with Σw taken as constant its gradient is halved
    return 2 * variances - variances.detach()


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E softplus(a) for a ~ N(mean, variance), entry by entry.

    By Gauss–Hermite quadrature with 9 nodes: within 1 % for deviations up to 3 and means from −10 to 10, and
    within 7 % for deviations up to 20 and means from −5 to 10.
    """
    nodes = torch.as_tensor(_NODES, dtype=mean.dtype, device=mean.device)
    weights = torch.as_tensor(_WEIGHTS / math.sqrt(math.pi), dtype=mean.dtype, device=mean.device)
    deviation = (2 * variance.clamp(min=LEAST_VARIANCE)).sqrt()
    return F.softplus(mean[..., None] + deviation[..., None] * nodes) @ weights


def _at_least_float32(values: Tensor) -> Tensor:
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
    logits = _at_least_float32(logits)
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
