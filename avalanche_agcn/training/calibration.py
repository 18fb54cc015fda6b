"""Probabilities from linear scores, per class, from sums of features alone.

With scores s = f·w + b, sums give their mean over positives, m₊, and mean and variance over all images. If
scores of positives and of negatives are two normal distributions of one variance v (linear discriminant
analysis in one dimension), then

    P(positive | s) = sigmoid(scale · s + offset)
    scale = (m₊ − m₋) / v        offset = log(p / (1 − p)) − scale · (m₊ + m₋) / 2

with p the share of positives. It is increasing in s, so average precision does not change.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

OTHERS_WEIGHT = 0.15
"""Weight of images of other experiences as negatives. They are unlabelled: with weight 1 the share of
positives would come out too low, with 0 too high. Chosen on held-out train photos; it holds for 2 to 18
experiences."""
LEAST_SCALE = 1.0
"""Where positives do not score higher than negatives: the probability then hardly depends on the score."""
LEAST_VARIANCE = 1e-4
"""Of scores between 0 and 1 that separate all images."""
MOST_LEVERAGE = 0.9


class Calibration(NamedTuple):
    """How the scores of K classes are distributed; each entry is ``[K]``."""

    scale: Tensor
    """Positive."""
    offset: Tensor
    negative_mean: Tensor
    """m₋, the mean score of negatives."""
    positive_mean: Tensor
    """m₊, the mean score of positives."""


def calibrate(
    weight: Tensor, bias: Tensor, moments: Tensor, total: Tensor, *, leverage: float
) -> Calibration:
    """Calibration of an experience's classifiers.

    An image's own label pulls its score: by leave-one-out, its score without itself is (s − h·y) / (1 − h),
    with h its leverage, here the mean over images. Without this step probabilities are too confident.

    Args:
        weight: ``[K, D]``, fitted to the targets by least squares.
        bias: ``[K]``.
        moments: sums of the experience, ``[1 + D + K, 1 + D + K]``.
        total: sums of all experiences, ``[1 + D, 1 + D]``.
        leverage: mean leverage of images, degrees of freedom / number of images; 0 if the images were not
            used to fit the weights.
    """
    width = len(total)
    population = torch.lerp(moments[:width, :width], total, OTHERS_WEIGHT)
    count, positives = population[0, 0].clamp(min=1), moments[0, width:]
    classifiers = torch.cat([bias[:, None], weight], dim=1)  # [K, 1 + D]: scores are [1, f] · classifiers
    summed = classifiers @ population
    mean, square = summed[:, 0] / count, (summed * classifiers).sum(dim=1) / count
    of_positives = (classifiers * moments[:width, width:].T).sum(dim=1) / positives
    positive_mean = torch.where(positives > 0, of_positives, mean)
    share = positives / count
    scores = _leave_one_out(share, mean, square - mean**2, positive_mean, min(leverage, MOST_LEVERAGE))
    return _discriminant(*scores, prior=(positives + 0.5) / (count + 1))


def standardise(scores: Tensor, calibration: Calibration) -> Tensor:
    """Scores with 0 for the mean of negatives and 1 for that of positives, ``[N, K]``.

    Classes whose positives do not score higher get 0.
    """
    distance = calibration.positive_mean - calibration.negative_mean
    return torch.where(distance > 0, (scores - calibration.negative_mean) / distance, 0.0)


def _leave_one_out(
    share: Tensor, mean: Tensor, variance: Tensor, positive_mean: Tensor, h: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same moments of (s − h·y) / (1 − h)."""
    covariance = share * (positive_mean - mean)  # of scores and labels
    variance = variance - 2 * h * covariance + h**2 * share * (1 - share)
    positive = torch.where(share > 0, (positive_mean - h) / (1 - h), mean / (1 - h))
    return share, (mean - h * share) / (1 - h), variance / (1 - h) ** 2, positive


def _discriminant(
    share: Tensor, mean: Tensor, variance: Tensor, positive_mean: Tensor, *, prior: Tensor
) -> Calibration:
    rest = 1 - share  # share of negatives
    negative_mean = torch.where(rest > 0, (mean - share * positive_mean) / rest, mean)
    distance = positive_mean - negative_mean
    within = (variance - share * rest * distance**2).clamp(min=LEAST_VARIANCE)
    scale = (distance / within).clamp(min=LEAST_SCALE)
    offset = prior.logit() - scale * (positive_mean + negative_mean) / 2
    return Calibration(scale, offset, negative_mean, positive_mean)
