"""Calibrated probabilities and a threshold per class, from the moments of logits.

A class is labelled in the images of its own experience only. So three groups of logits are known: of
positives, of negatives, and of images that are unlabelled for the class. Their means and variances
(`LogitMoments`) are enough; a closed-form method has them without any image, from its sums.

**Probabilities**: if logits of positives and negatives are normal, with means m₊ and m₋ and one variance v:

    P(positive | logit) = sigmoid(scale · logit + offset)
    scale = (m₊ − m₋) / v        offset = log(p / (1 − p)) − scale · (m₊ + m₋) / 2

with p the share of positives among all images. p is not the share in the own experience, whose images were
chosen because they show one of its classes: it is counted where the labels are known, or estimated
(`estimate_shares`). m₋ is the mean of all negatives, those among the unlabelled included.

**Separation**: m₊ − m₋, in standard deviations, is the uncertain part. If the scored images were not trained
on, it is noisy with few positives, so it moves towards that of all classes: half of the way with
`SEPARATION_WEIGHT` positives. If they were, positives score too high and negatives too low: then it is at
most `MOST_SEPARATION`, around the mean of all images, which training hardly moves.

**Thresholds**: the same normal distributions give the expected precision and F1 of a class at every
threshold. The best F1 among the thresholds with a precision of at least `LEAST_PRECISION` decides. A class
with fewer than `LEAST_POSITIVES` positives uses the one threshold that is best for all classes together (by
the F1 over all labels); with more, its own threshold moves towards that one: half of the way with
`SHRINKAGE` positives. `runs/studies/thresholds.py` measures what is found.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_PRECISION = 0.2
LEAST_RECALL = 0.05  # of the positives; with fewer, a precision means nothing
SHRINKAGE = 15.0
LEAST_POSITIVES = 200
"""With fewer positives, or without a threshold that reaches the least precision, the global one is used."""
LEAST_TYPICAL_SEPARATION = 1.5  # of all classes; leaving one image out underestimates it with few positives
SEPARATION_WEIGHT = 60.0
MOST_SEPARATION = 2.25
GRID = torch.arange(2, 99, dtype=torch.float64) / 100  # thresholds that are compared
LEAST_SCALE = 0.05  # for positives that do not score higher: their probability hardly depends on the logit
LEAST_VARIANCE = 1e-4


class LogitMoments(NamedTuple):
    """Numbers, means and variances of the logits of C classes; each entry is ``[C]``, float64."""

    n_positives: Tensor
    positive_mean: Tensor
    n_negatives: Tensor
    negative_mean: Tensor
    variance: Tensor  # within positives and within negatives, both together
    n_unlabelled: Tensor
    unlabelled_mean: Tensor
    unlabelled_variance: Tensor


class LogitCalibration(NamedTuple):
    """Maps logits of C classes to probabilities, with the threshold at which each class counts as found."""

    scale: Tensor  # [C], positive
    offset: Tensor  # [C]
    thresholds: Tensor  # [C], of the probability
    is_global: Tensor  # [C], bool: whether the class uses the global threshold
    global_threshold: float

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities ``[N, C]`` of logits, in float64."""
        return (logits.double() * self.scale + self.offset).sigmoid()


def measure_moments(logits: Tensor, targets: Tensor) -> LogitMoments:
    """Moments of logits ``[N, C]``, with targets 0, 1, or NaN for unlabelled, ``[N, C]``.

    Example:
        >>> logits = torch.tensor([[2.0], [4.0], [-1.0], [0.0]])
        >>> moments = measure_moments(logits, torch.tensor([[1.0], [1.0], [0.0], [torch.nan]]))
        >>> moments.positive_mean.item(), moments.negative_mean.item(), moments.n_unlabelled.item()
        (3.0, -1.0, 1.0)
    """
    if not logits.isfinite().all():
        raise ValueError("Some logits are NaN or infinite: thresholds of all classes would be wrong.")
    logits = logits.double()
    n_positives, positive_mean, positive_squares = _sum_up(logits, targets == 1)
    n_negatives, negative_mean, negative_squares = _sum_up(logits, targets == 0)
    n_unlabelled, unlabelled_mean, unlabelled_squares = _sum_up(logits, targets.isnan())
    n_labelled = (n_positives + n_negatives).clamp(min=1)
    return LogitMoments(
        n_positives=n_positives,
        positive_mean=positive_mean,
        n_negatives=n_negatives,
        negative_mean=negative_mean,
        variance=(positive_squares + negative_squares) / n_labelled,
        n_unlabelled=n_unlabelled,
        unlabelled_mean=unlabelled_mean,
        unlabelled_variance=unlabelled_squares / n_unlabelled.clamp(min=1),
    )


def _sum_up(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and sum of squared deviations of the chosen cells of each class; mean 0 without any."""
    count = chosen.sum(0).double()
    mean = logits.where(chosen, 0.0).sum(0) / count.clamp(min=1)
    squares = (logits - mean).where(chosen, 0.0).square().sum(0)
    return count, mean, squares


def estimate_shares(moments: LogitMoments) -> Tensor:
    """Share of positives of each class among all images, ``[C]``, where labels are partly unknown.

    If a share π of the unlabelled images is positive, their mean lies at π between those of negatives and
    positives, and their variance exceeds that within the groups by π (1 − π) (m₊ − m₋)². The smaller of the
    two solutions is used: images of other experiences look different, which alone shifts their mean.
    """
    distance = moments.positive_mean - moments.negative_mean
    by_mean = ((moments.unlabelled_mean - moments.negative_mean) / distance).clamp(0, 1)
    excess = ((moments.unlabelled_variance - moments.variance) / distance**2).clamp(0, 0.25)
    by_variance = 0.5 - (0.25 - excess).sqrt()
    is_known = (distance > 0) & (moments.n_positives > 0) & (moments.n_negatives > 0)
    hidden = torch.where(is_known, torch.minimum(by_mean, by_variance), 0.0) * moments.n_unlabelled
    n_images = moments.n_positives + moments.n_negatives + moments.n_unlabelled
    return (moments.n_positives + hidden) / n_images.clamp(min=1)


def calibrate_logits(
    moments: LogitMoments, shares: Tensor | None = None, *, trained_on: bool = False
) -> LogitCalibration:
    """Calibration and thresholds of C classes; ``shares``, ``[C]``, are estimated if None.

    ``trained_on`` says that the moments are, uncorrected, those of images that the model was trained on.

    Example:
        >>> logits = torch.tensor([[-1.5], [-0.5], [0.0], [0.5], [1.5], [3.0]])
        >>> targets = torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
        >>> calibration = calibrate_logits(measure_moments(logits, targets))
        >>> calibration.probabilities(logits).mean().item()  # a third are positives
        0.33...
    """
    shares = estimate_shares(moments) if shares is None else shares.double()
    n_images = moments.n_positives + moments.n_negatives + moments.n_unlabelled
    prior = (shares * n_images + 0.5) / (n_images + 1)  # never 0 or 1, so that its logit is finite
    positive_mean, negative_mean, variance = _separate(moments, prior)
    if trained_on:
        positive_mean, negative_mean, variance = _limit_separation(
            moments, prior, positive_mean, negative_mean, variance
        )
    else:
        positive_mean, negative_mean = _shrink_separation(
            moments.n_positives, prior, positive_mean, negative_mean, variance
        )
    scale = ((positive_mean - negative_mean) / variance).clamp(min=LEAST_SCALE)
    offset = prior.logit() - scale * (positive_mean + negative_mean) / 2
    # Shares of images that are right and wrong at each threshold of the grid, [G, C].
    limits = (GRID.logit()[:, None] - offset) / scale
    deviation = variance.sqrt()
    right = prior * torch.special.ndtr((positive_mean - limits) / deviation)
    wrong = (1 - prior) * torch.special.ndtr((negative_mean - limits) / deviation)
    f1 = 2 * right / (right + wrong + prior)
    f1_of_all = 2 * right.sum(1) / (right.sum(1) + wrong.sum(1) + prior.sum())
    global_threshold = GRID[f1_of_all.argmax()]
    is_precise = (right >= LEAST_PRECISION * (right + wrong)) & (right >= LEAST_RECALL * prior)
    best = GRID[f1.where(is_precise, -1.0).argmax(0)]
    is_global = (moments.n_positives < LEAST_POSITIVES) | ~is_precise.any(0)
    weight = moments.n_positives / (moments.n_positives + SHRINKAGE)
    shrunk = torch.lerp(global_threshold.logit(), best.logit(), weight).sigmoid()
    thresholds = torch.where(is_global, global_threshold, shrunk)
    return LogitCalibration(scale, offset, thresholds, is_global, global_threshold.item())


def _separate(moments: LogitMoments, prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of positives and of all negatives, and the variance within both, ``[C]`` each."""
    n_labelled = moments.n_positives + moments.n_negatives
    n_images = (n_labelled + moments.n_unlabelled).clamp(min=1)
    sums = (
        moments.n_positives * moments.positive_mean
        + moments.n_negatives * moments.negative_mean
        + moments.n_unlabelled * moments.unlabelled_mean
    )
    squares = (
        n_labelled * moments.variance
        + moments.n_positives * moments.positive_mean**2
        + moments.n_negatives * moments.negative_mean**2
        + moments.n_unlabelled * (moments.unlabelled_variance + moments.unlabelled_mean**2)
    )
    mean = sums / n_images
    positive_mean = torch.where(moments.n_positives > 0, moments.positive_mean, mean)
    negative_mean = (mean - prior * positive_mean) / (1 - prior)
    between = prior * (1 - prior) * (positive_mean - negative_mean) ** 2
    within = squares / n_images - mean**2 - between
    # Positives of other experiences may score lower than labelled ones, so the difference could be too small.
    return positive_mean, negative_mean, torch.maximum(within, moments.variance).clamp(min=LEAST_VARIANCE)


def _shrink_separation(
    n_positives: Tensor, prior: Tensor, positive_mean: Tensor, negative_mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of positives and negatives whose separation has moved towards that of all classes."""
    deviation = variance.sqrt()
    own = (positive_mean - negative_mean) / deviation
    known = own[n_positives > 0].clamp(min=0)
    typical = known.square().mean().sqrt().nan_to_num(0.0).clamp(min=LEAST_TYPICAL_SEPARATION)
    weight = n_positives / (n_positives + SEPARATION_WEIGHT)
    distance = torch.lerp(typical, own, weight) * deviation
    mean = torch.lerp(negative_mean, positive_mean, prior)  # of all images, which stays as it is
    lower = mean - prior * distance
    return lower + distance, lower


def _limit_separation(
    moments: LogitMoments, prior: Tensor, positive_mean: Tensor, negative_mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variance as if the labelled images, which were trained on, had a limited separation.

    The mean over all images stays: training moves positives up and negatives down, but both hardly together.
    Where all images are labelled, their variance stays as well.
    """
    n_labelled = moments.n_positives + moments.n_negatives
    labelled = n_labelled / (n_labelled + moments.n_unlabelled).clamp(min=1)
    positives = moments.n_positives / n_labelled.clamp(min=1)
    own_distance = moments.positive_mean - moments.negative_mean
    own_mean = torch.lerp(moments.negative_mean, moments.positive_mean, positives)
    own_separation = _limited(own_distance, moments.variance)
    own_total = moments.variance * (1 + positives * (1 - positives) * own_separation**2)
    every = variance + prior * (1 - prior) * (positive_mean - negative_mean) ** 2  # without a limit
    mean = torch.lerp(moments.unlabelled_mean, own_mean, labelled)
    between = labelled * (1 - labelled) * (own_mean - moments.unlabelled_mean) ** 2
    total = torch.lerp(moments.unlabelled_variance, own_total, labelled) + between
    total = torch.where(moments.n_unlabelled > 0, total, every)
    separation = _limited(positive_mean - negative_mean, variance)
    within = (total / (1 + prior * (1 - prior) * separation**2)).clamp(min=LEAST_VARIANCE)
    distance = separation * within.sqrt()
    lower = mean - prior * distance
    return lower + distance, lower, within


def _limited(distance: Tensor, variance: Tensor) -> Tensor:
    """A distance of means in standard deviations, at most `MOST_SEPARATION`."""
    return (distance / variance.clamp(min=LEAST_VARIANCE).sqrt()).clamp(max=MOST_SEPARATION)
