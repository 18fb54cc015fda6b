"""Checks of scores and targets, and their way from tensors to the arrays that are ranked and counted."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.evaluation.ranking import Mask

__all__ = ["as_array", "check_shapes", "check_threshold", "check_top_k", "split_targets"]


def check_shapes(scores: Tensor, targets: Tensor) -> None:
    """Refuse scores and targets that do not belong together, saying what to do."""
    if targets.ndim == 1 and scores.ndim == 2:
        raise ValueError(
            f"targets are a vector of {len(targets)} numbers, but multi-hot rows are needed; "
            f"torch.nn.functional.one_hot(targets, {scores.shape[1]}) makes them from class numbers"
        )
    if scores.ndim != 2 or scores.shape != targets.shape:
        raise ValueError(
            f"scores and targets must both be [images, classes], got {tuple(scores.shape)} and "
            f"{tuple(targets.shape)}; compare scores of the classes seen so far with "
            "targets[:, : scores.shape[1]]"
        )
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; give logits or probabilities")
    if scores.numel() == 0:
        raise ValueError(f"nothing to evaluate: scores have shape {tuple(scores.shape)}")


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that is not a number."""
    if math.isnan(threshold):
        raise ValueError("threshold is NaN; p >= 0.5 is 0.5 for probabilities and 0.0 for logits")


def check_top_k(top_k: int | None) -> None:
    """Refuse a number of scores that keeps none."""
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}; None keeps every score")


def as_array(tensor: Tensor) -> np.ndarray:
    """The tensor as NumPy sees it; half precision, which NumPy is slow at, becomes float32, exactly."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.detach().cpu().numpy()


def split_targets(targets: Tensor) -> tuple[Mask, Mask | None]:
    """Which cells are positive and which are annotated (None if all are); refuses values but 0, 1, NaN."""
    values = as_array(targets)
    positive, negative = values == 1, values == 0
    if np.count_nonzero(positive) + np.count_nonzero(negative) == values.size:
        return positive, None
    annotated = positive | negative
    strange = values[~annotated & (values == values)]
    if len(strange):
        raise ValueError(f"targets must be 0, 1 or NaN (unlabelled), got {strange[0]:g}")
    return positive, annotated
