"""AGCN's losses: distillation (Eq. 7) and preservation of relationships (Eq. 8)."""

import torch.nn.functional as F
from torch import Tensor

from avalanche_agcn.checks import check_choice, check_shape
from avalanche_agcn.training.distributed import mean_of
from avalanche_agcn.training.losses import Reduction, at_least_float32


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """ℓ_dst (Eq. 7): cross-entropy of the student with the teacher's soft labels.

    Only the student's first ``n_old`` columns are used; ``teacher_logits`` are ``[B, n_old]`` and get no
    gradient. Where both agree, the gradient is 0 but the loss is not. ``"mean"`` is over images and old
    classes (the authors' code); ``"sum"`` is over old classes (Eq. 7), the mean over images.
    """
    check_choice("reduction", reduction, Reduction)
    check_shape("teacher_logits", teacher_logits, ("images", "old classes"))
    n_images, n_old = teacher_logits.shape
    student = at_least_float32(logits[..., :n_old])
    check_shape("logits of the old classes", student, (n_images, n_old), " as the teacher's")
    soft_labels = teacher_logits.detach().to(student.dtype).sigmoid()  # ẑ
    total = F.binary_cross_entropy_with_logits(student, soft_labels, reduction="sum")  # Eq. 7, over x
    return mean_of(total, student.numel() if reduction == "mean" else len(student))


def relationship_preserving_loss(
    embeddings: Tensor, old_embeddings: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """ℓ_gph (Eq. 8): squared distance of the old classes' embeddings H from the teacher's, G.

    Only the first ``n_old`` rows of H, ``[n_seen, D]``, are used; the old ones, G ``[n_old, D]``, get no
    gradient. ``"mean"`` is over all entries (the authors' code, whose λ₃ is 1e5); ``"sum"`` of squared
    norms (Eq. 8) is ``n_old * D`` times larger.
    """
    check_choice("reduction", reduction, Reduction)
    check_shape("old_embeddings", old_embeddings, ("old classes", "features"))
    n_old, width = old_embeddings.shape
    old = at_least_float32(embeddings[:n_old])
    check_shape("embeddings of the old classes", old, (n_old, width), " as before")
    total = F.mse_loss(old, old_embeddings.detach().to(old.dtype), reduction="sum")  # Eq. 8
    return total / max(1, old.numel()) if reduction == "mean" else total
