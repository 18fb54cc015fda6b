"""Multi-label metrics as functions of whole tensors: scores [N, C] in, figures out, as fractions of 1.

The definitions are those of the multi-label literature (ML-GCN, PRS, AGCN); where a class counts and
where it does not is said in each docstring. Scores are ranked as they are: a sigmoid would make ties of
all large logits. Nothing here knows Avalanche.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.evaluation.inputs import (
    as_array,
    check_shapes,
    check_threshold,
    check_top_k,
    split_targets,
)
from avalanche_agcn.evaluation.ranking import Counts, Increment, Mask, count_sets

__all__ = [
    "NestedSummary",
    "PrecisionRecallF1",
    "StageScores",
    "TailScores",
    "average_precision",
    "mean_average_precision",
    "mean_class_f1",
    "nested_summary",
    "precision_recall_f1",
    "stage_average",
    "stage_scores",
    "tail_scores",
]


class PrecisionRecallF1(NamedTuple):
    """Class-wise (C) and overall (O) precision, recall and F1."""

    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float


class NestedSummary(NamedTuple):
    """What a nested matrix comes down to; see `nested_summary`."""

    last: float
    nested: float
    average: float
    forgetting_absolute: float
    forgetting_relative: float


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Average precision of each class: the mean of the precision at each of its positives.

    Equal to scikit-learn's ``average_precision_score``: all points, no interpolation, tied scores taken as
    one group. The ranking is done by NumPy on the CPU; a CUDA matrix is brought over once.

    Args:
        scores: [N, C] logits or probabilities, any float type; only their order matters.
        targets: [N, C] of 0, 1 and NaN. Cells with NaN (unlabelled) are left out.

    Returns:
        [C] float64, on the device of ``scores`` where that has float64; NaN where a class has no positive.

    Raises:
        TypeError: If ``scores`` are not floating point.
        ValueError: If the shapes do not fit, there is no image, a target is not 0, 1 or NaN, or a score is
            NaN.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.3]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        >>> average_precision(scores, targets)
        tensor([0.8333,    nan], dtype=torch.float64)
    """
    check_shapes(scores, targets)
    images = Increment(as_array(scores), *split_targets(targets))
    counts = count_sets([images], threads=torch.get_num_threads())
    device = "cpu" if scores.device.type == "mps" else scores.device  # MPS has no float64
    return torch.from_numpy(counts.average_precision[0]).to(device)


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean of `average_precision` over the classes that have a positive; NaN if none has.

    Args:
        scores: [N, C] logits or probabilities.
        targets: [N, C] of 0, 1 and NaN (unlabelled).

    Raises:
        TypeError: As `average_precision`.
        ValueError: As `average_precision`.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.3]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
        >>> round(mean_average_precision(scores, targets), 4)
        0.9167
    """
    return average_precision(scores, targets).nanmean().item()


def precision_recall_f1(
    scores: Tensor, targets: Tensor, *, threshold: float, top_k: int | None = None
) -> PrecisionRecallF1:
    """Class-wise and overall precision, recall and F1 at a decision threshold.

    CP and CR are class means of N_correct / N_predicted and N_correct / N_true, CF1 = 2·CP·CR / (CP + CR);
    OP, OR and OF1 are made of the sums over classes. 0/0 is 0 and nothing is added to a denominator: a class
    that is never predicted has precision 0, one without positives recall 0. A class without any annotated
    cell is left out.

    Args:
        scores: [N, C] logits or probabilities.
        targets: [N, C] of 0, 1 and NaN (unlabelled, left out).
        threshold: A score at or above it is predicted, **in the unit of** ``scores``: p ≥ 0.5 is 0.5 for
            probabilities and 0.0 for logits.
        top_k: Keep only the k highest scores of an image, and of them those at or above the threshold (the
            "top-3" columns of ML-GCN's tables). Of equal scores the first columns are kept.

    Raises:
        TypeError: If ``scores`` are not floating point.
        ValueError: As `average_precision`, or for a threshold or ``top_k`` that makes no sense.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [1.0, 3.0], [-2.0, -1.0]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> [round(value, 3) for value in precision_recall_f1(logits, targets, threshold=0.0)]
        [0.75, 0.75, 0.75, 0.667, 0.667, 0.667]
    """
    return f1_from_counts(count_predictions(scores, targets, threshold=threshold, top_k=top_k))


def mean_class_f1(scores: Tensor, targets: Tensor, *, threshold: float) -> float:
    """Mean over classes of each class's own F1, the "CF1" of some newer work (often at p > 0.8).

    Not the CF1 of `precision_recall_f1`, which is made of mean precision and mean recall. 0/0 is 0; a class
    without any annotated cell is left out.

    Args:
        scores: [N, C] logits or probabilities.
        targets: [N, C] of 0, 1 and NaN (unlabelled, left out).
        threshold: A score at or above it is predicted, in the unit of ``scores``.

    Raises:
        TypeError: As `precision_recall_f1`.
        ValueError: As `precision_recall_f1`.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [1.0, 3.0], [-2.0, -1.0]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(mean_class_f1(logits, targets, threshold=0.0), 3)
        0.667
    """
    correct, predicted, true, annotated = count_predictions(scores, targets, threshold=threshold)
    values = _ratio(2 * correct, predicted + true)[annotated > 0]
    return float(values.mean()) if len(values) else math.nan


def nested_summary(matrix: Sequence[Sequence[float]]) -> NestedSummary:
    """Summarise a nested matrix a[t][i]: after experience t, the score on the classes of experiences 0..i.

    With T the last experience:

    - ``last`` = a[T][T], what most of the field reports;
    - ``nested`` = mean over i of a[T][i], what the AGCN paper reports;
    - ``average`` = mean over t of a[t][t];
    - ``forgetting_absolute`` = mean over i < T of a[i][i] − a[T][i], first minus final;
    - ``forgetting_relative`` = mean over i < T of (a[i][i] − a[T][i]) / a[i][i], over sets whose first
      score is not 0.

    After one experience nothing can have been forgotten: both kinds are 0.

    Args:
        matrix: Row t has t + 1 entries; further ones (of a square matrix) are not looked at. A row may be
            empty if nothing was evaluated then; figures that need it are NaN.

    Raises:
        ValueError: If there is no row, the last one is empty or a row is too short.

    Example:
        >>> summary = nested_summary([[0.8], [0.6, 0.7]])
        >>> summary.last, summary.average, round(summary.forgetting_absolute, 4)
        (0.7, 0.75, 0.2)
    """
    rows = [[float(value) for value in row[: t + 1]] for t, row in enumerate(matrix)]
    if not rows or not rows[-1]:
        raise ValueError("the nested matrix has no last row; evaluate the model after its last experience")
    for t, row in enumerate(rows):
        if row and len(row) < t + 1:
            raise ValueError(
                f"row {t} of the nested matrix has {len(row)} entries and needs {t + 1}: "
                f"after experience {t}, evaluate test_stream[:{t + 1}]"
            )
    final = rows[-1]
    first = [row[-1] if row else math.nan for row in rows]
    lost = [a - b for a, b in zip(first[:-1], final[:-1], strict=True)]
    shares = [loss / a for loss, a in zip(lost, first[:-1], strict=True) if a != 0]
    return NestedSummary(final[-1], _mean(final), _mean(first), _mean(lost), _mean(shares))


class StageScores(NamedTuple):
    """What the papers of the B protocols (KRT, CSC, L3A) report of a stage; see `stage_scores`."""

    mAP: float
    mean_class_F1: float
    """Their CF1: not the CF1 of `precision_recall_f1`."""
    OF1: float


def stage_scores(logits: Tensor, targets: Tensor, *, probability: float = 0.8) -> StageScores:
    """Scores of a stage under a B protocol: mAP, mean of per-class F1, overall F1, over the seen classes.

    Args:
        logits: [N, C], of the test images with at least one seen class, over the seen classes.
        targets: [N, C] of 0, 1 and NaN (unlabelled, left out).
        probability: a class is predicted where its probability is **above** it; 0.8 in KRT and CSC, 0.525 in
            L3A.

    Raises:
        TypeError: as `average_precision`.
        ValueError: as `average_precision`, or if ``probability`` is not between 0 and 1.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [1.0, 3.0], [-2.0, -1.0]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> [round(value, 3) for value in stage_scores(logits, targets)]
        [0.917, 0.833, 0.8]
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, but is {probability}.")
    ranking = mean_average_precision(logits, targets)
    threshold = math.nextafter(math.log(probability / (1 - probability)), math.inf)  # above, not at
    return StageScores(
        ranking,
        mean_class_f1(logits, targets, threshold=threshold),
        precision_recall_f1(logits, targets, threshold=threshold).OF1,
    )


def stage_average(stages: Sequence[StageScores]) -> StageScores:
    """Mean of each score over all stages, the first (base) included: the "Avg" of these papers.

    For mAP it is `nested_summary`'s ``average``.

    Raises:
        ValueError: if there is no stage.

    Example:
        >>> stage_average([StageScores(0.8, 0.5, 0.5), StageScores(0.6, 0.25, 0.75)])
        StageScores(mAP=0.7, mean_class_F1=0.375, OF1=0.625)
    """
    if not stages:
        raise ValueError("There is no stage to average; evaluate the model after each experience.")
    return StageScores(*(_mean(values) for values in zip(*stages, strict=True)))


class TailScores(NamedTuple):
    """Mean scores of classes with few, some and many train images; see `tail_scores`."""

    few: float
    medium: float
    many: float


def tail_scores(
    per_class: Sequence[float] | Tensor, counts: Sequence[int] | Tensor, *, few: int = 200, many: int = 900
) -> TailScores:
    """Mean of a per-class score over classes with few, some and many train images, as PRS reports it.

    Args:
        per_class: a score of each class, such as `average_precision`; classes of NaN are left out.
        counts: number of train images of each class.
        few: classes below it are minor; PRS's is 200.
        many: classes above it are major; PRS's is 900.

    Returns:
        The three means; NaN for a group without classes.

    Raises:
        ValueError: if the lengths differ or ``few`` is above ``many``.

    Example:
        >>> tail_scores([0.25, 0.5, 0.6, 0.9], [50, 150, 500, 2000])
        TailScores(few=0.375, medium=0.6, many=0.9)
    """
    values, n = np.asarray(per_class, dtype=float), np.asarray(counts)
    if values.shape != n.shape or few > many:
        raise ValueError(
            f"Scores of shape {values.shape} and counts of shape {n.shape} must be equally many, and "
            f"few={few} not above many={many}."
        )
    groups = (n < few, (n >= few) & (n <= many), n > many)
    known = [values[group & ~np.isnan(values)] for group in groups]
    return TailScores(*(_mean(part.tolist()) if len(part) else math.nan for part in known))


class PredictionCounts(NamedTuple):
    """Counts of each class, [C]."""

    correct: Counts
    predicted: Counts
    true: Counts
    annotated: Counts


def count_predictions(
    scores: Tensor, targets: Tensor, *, threshold: float, top_k: int | None = None
) -> PredictionCounts:
    """Count what `precision_recall_f1` is made of; counts of batches add up."""
    check_shapes(scores, targets)
    check_threshold(threshold)
    check_top_k(top_k)
    values = as_array(scores)
    if np.isnan(values).any():
        raise ValueError("scores contain NaN; has the training diverged?")
    positive, annotated = split_targets(targets)
    if annotated is None:
        annotated = np.ones_like(positive)
    predicted = (values >= threshold) & annotated
    if top_k is not None:
        predicted &= _highest(np.where(annotated, values, -math.inf), top_k)
    masks = (predicted & positive, predicted, positive, annotated)
    return PredictionCounts(*(mask.sum(axis=0) for mask in masks))


def f1_from_counts(counts: PredictionCounts) -> PrecisionRecallF1:
    """The six figures; a class with nothing annotated is left out, and all are NaN if that is every class."""
    correct, predicted, true, annotated = counts
    present = annotated > 0
    if not present.any():
        return PrecisionRecallF1(*[math.nan] * 6)
    cp = float(_ratio(correct, predicted)[present].mean())
    cr = float(_ratio(correct, true)[present].mean())
    op = float(_ratio(correct.sum(), predicted.sum()))
    or_ = float(_ratio(correct.sum(), true.sum()))
    return PrecisionRecallF1(cp, cr, _harmonic_mean(cp, cr), op, or_, _harmonic_mean(op, or_))


def _highest(scores: np.ndarray, top_k: int) -> Mask:
    """[N, C] bool: exactly the k highest scores of each row; of equal ones the first."""
    top_k = min(top_k, scores.shape[1])
    lowest = np.partition(scores, -top_k, axis=1)[:, -top_k, None]
    higher, equal = scores > lowest, scores == lowest
    room = top_k - higher.sum(axis=1, keepdims=True)
    return higher | (equal & (equal.cumsum(axis=1) <= room))


def _ratio(numerator: Counts, denominator: Counts) -> np.ndarray:
    """Quotient of counts; 0/0 is 0."""
    return numerator / np.maximum(denominator, 1)


def _harmonic_mean(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def _mean(values: Sequence[float]) -> float:
    """Mean; 0 of nothing, as nothing can be forgotten before the second experience."""
    return math.fsum(values) / len(values) if values else 0.0
