"""Multi-label metrics as functions of whole tensors: scores [N, C] in, metrics out, as fractions of 1.

The definitions are those of the multi-label literature (ML-GCN, PRS, AGCN); each docstring states which
classes count. Scores are ranked as they are: a sigmoid would turn all large logits into ties. This module
does not import Avalanche.
"""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.checks import check_range, check_shape
from avalanche_agcn.evaluation._ranking import Batch, Counts, Mask, count_sets

STAGE_PROBABILITY = 0.8  # KRT and CSC predict a class above it


class PrecisionRecallF1(NamedTuple):
    """Class-wise (C) and overall (O) precision, recall and F1."""

    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float


class StageScores(NamedTuple):
    """Metrics that papers with B protocols (KRT, CSC, L3A) report for a stage; see `stage_scores`."""

    mAP: float
    mean_class_F1: float  # their CF1, which is not the CF1 of precision_recall_f1
    OF1: float


class NestedScores(NamedTuple):
    """Metrics of the nested sets 0..t: one row of each nested matrix."""

    mAP: list[float]
    CF1: list[float]
    OF1: list[float]
    average_precision: Tensor  # [sets, C] float64; NaN for classes that are not in the set
    stage: StageScores  # of the last set


class NestedSummary(NamedTuple):
    """Summary of a nested matrix; see `nested_summary`."""

    last: float
    nested: float
    average: float
    forgetting_absolute: float
    forgetting_relative: float


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the average precision of each class, [C] float64: the mean of the precision at its positives.

    Equal to scikit-learn's ``average_precision_score``: all points, no interpolation, tied scores as one
    group; NaN where a class has no positive. NumPy ranks on the CPU; a CUDA tensor is copied once.

    Args:
        scores: [N, C] logits or probabilities, any float type; only their order matters. Not NaN.
        targets: [N, C] of 0, 1 and NaN. Cells with NaN (unlabelled) are ignored.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.3]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        >>> average_precision(scores, targets)
        tensor([0.8333,    nan], dtype=torch.float64)
    """
    counts = count_sets([[make_batch(scores, targets)]], threads=torch.get_num_threads())
    return _to_device_of(scores, counts.average_precision[0])


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Return the mean of `average_precision` over the classes that have a positive; NaN if none has."""
    return average_precision(scores, targets).nanmean().item()


def roc_auc(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the area under the ROC curve of each class, [C] float64.

    This is the probability that a random positive scores above a random negative; ties count half. Equal to
    scikit-learn's ``roc_auc_score``; NaN where a class has no positive or no negative. Unlike average
    precision, it does not depend on how frequent a class is: random scores give 0.5. For ``scores`` and
    ``targets`` see `average_precision`.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.3]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        >>> roc_auc(scores, targets)
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    counts = count_sets([[make_batch(scores, targets)]], roc_auc=True, threads=torch.get_num_threads())
    assert counts.roc_auc is not None
    return _to_device_of(scores, counts.roc_auc[0])


def mean_roc_auc(scores: Tensor, targets: Tensor) -> float:
    """Return the mean of `roc_auc` over the classes that have a positive and a negative; NaN if none has."""
    return roc_auc(scores, targets).nanmean().item()


def precision_recall_f1(
    scores: Tensor, targets: Tensor, *, threshold: float, top_k: int | None = None
) -> PrecisionRecallF1:
    """Return class-wise and overall precision, recall and F1 at a decision threshold.

    CP and CR are class means of N_correct / N_predicted and N_correct / N_true, CF1 = 2·CP·CR / (CP + CR);
    OP, OR and OF1 use the sums over classes. 0/0 is 0 and nothing is added to a denominator: a class that is
    never predicted has precision 0, a class without positives has recall 0. A class without any annotated
    cell is ignored.

    Args:
        scores: [N, C] logits or probabilities.
        targets: [N, C] of 0, 1 and NaN (unlabelled, ignored).
        threshold: a score at or above it is predicted, **in the unit of** ``scores``: p ≥ 0.5 is 0.5 for
            probabilities and 0.0 for logits. Not NaN.
        top_k: predict only those of the k ≥ 1 highest scores of an image that reach the threshold (the
            "top-3" columns of ML-GCN's tables). Of equal scores the first columns are kept.

    Example:
        >>> logits, targets = torch.tensor([[2.0, -1.0], [1.0, 3.0]]), torch.tensor([[1, 0], [0, 1]])
        >>> precision_recall_f1(logits, targets, threshold=0.0).CF1
        0.8571428571428571
    """
    return f1_from_counts(count_predictions(scores, targets, threshold, top_k))


def mean_class_f1(scores: Tensor, targets: Tensor, *, threshold: float) -> float:
    """Return the mean over classes of each class's own F1, the "CF1" of some newer work (often at p > 0.8).

    The CF1 of `precision_recall_f1` combines mean precision and mean recall instead. 0/0 is 0; a class
    without any annotated cell is ignored.
    """
    return _mean_class_f1(count_predictions(scores, targets, threshold))


def nested_scores(
    scores: Tensor,
    targets: Tensor,
    *,
    set_sizes: Sequence[int],
    class_counts: Sequence[int],
    threshold: float,
) -> NestedScores:
    """Score nested sets: set i is the first ``set_sizes[i]`` images and ``class_counts[i]`` classes.

    Neither may decrease, and the last set has all images. An empty set scores NaN. For ``scores``,
    ``targets`` and ``threshold`` see `precision_recall_f1`.
    """
    values, positive, annotated = make_batch(scores, targets)
    check_decision(threshold)
    ends = [0, *set_sizes]
    counts = [0, *class_counts]
    grow = ends == sorted(ends) and counts == sorted(counts)
    if len(ends) != len(counts) or ends[-1] != len(scores) or not grow:
        raise ValueError(
            f"set_sizes {list(set_sizes)} and class_counts {list(class_counts)} do not describe nested sets "
            f"of {len(scores)} images; pass numbers that do not decrease, with all images in the last set."
        )
    increments = []
    for start, end in pairwise(ends):
        mask = None if annotated is None else annotated[start:end]
        increments.append([Batch(values[start:end], positive[start:end], mask)])
    return score_sets(increments, class_counts, threshold)


def nested_summary(matrix: Sequence[Sequence[float]]) -> NestedSummary:
    """Summarise a nested matrix `a[t][i]`: after experience t, the score on the classes of experiences 0..i.

    With T the last experience:

    - ``last`` = `a[T][T]`, reported by most papers;
    - ``nested`` = mean over i of `a[T][i]`, reported by the AGCN paper;
    - ``average`` = mean over t of `a[t][t]`;
    - ``forgetting_absolute`` = mean over i < T of `a[i][i] − a[T][i]`, first minus final;
    - ``forgetting_relative`` = mean over i < T of `(a[i][i] − a[T][i]) / a[i][i]`, over sets whose first
      score is not 0.

    After one experience, both kinds of forgetting are 0. Row t of the matrix has t + 1 entries; more (of a
    square matrix) are ignored. It is empty if there was no evaluation after experience t; values that need it
    are NaN.

    Example:
        >>> summary = nested_summary([[0.8], [0.6, 0.7]])
        >>> summary.last, summary.average, round(summary.forgetting_absolute, 4)
        (0.7, 0.75, 0.2)
    """
    rows = [[float(value) for value in row[: t + 1]] for t, row in enumerate(matrix)]
    if not rows or not rows[-1]:
        raise ValueError("The nested matrix has no last row; evaluate the model after its last experience.")
    for t, row in enumerate(rows):
        if row and len(row) < t + 1:
            raise ValueError(
                f"Row {t} of the nested matrix has {len(row)} entries but needs {t + 1}; after experience "
                f"{t}, evaluate test_stream[:{t + 1}]."
            )
    final = rows[-1]
    first = [row[-1] if row else math.nan for row in rows]  # a[t][t]
    losses = [before - after for before, after in zip(first[:-1], final[:-1], strict=True)]
    shares = [loss / before for loss, before in zip(losses, first[:-1], strict=True) if before != 0]
    return NestedSummary(
        last=final[-1],
        nested=fmean(final),
        average=fmean(first),
        forgetting_absolute=fmean(losses or [0.0]),
        forgetting_relative=fmean(shares or [0.0]),
    )


def stage_scores(logits: Tensor, targets: Tensor, *, probability: float = STAGE_PROBABILITY) -> StageScores:
    """Return mAP, mean of per-class F1 and overall F1 of a stage under a B protocol, over the seen classes.

    A class is predicted where its probability is **above** ``probability``: 0.8 in KRT and CSC, 0.525 in L3A.
    ``logits`` and ``targets`` are [N, C], of the test images with at least one seen class.
    """
    check_range("probability", probability, above=0, below=1)
    counts = count_predictions(logits, targets, _just_above(probability))
    mean_ap = mean_average_precision(logits, targets)
    return StageScores(mean_ap, _mean_class_f1(counts), f1_from_counts(counts).OF1)


def _mean_class_f1(counts: Counts) -> float:
    correct, predicted, true, annotated = counts
    f1 = _ratio(2 * correct, predicted + true)[annotated > 0]
    return float(f1.mean()) if len(f1) else math.nan


def _just_above(probability: float) -> float:
    """The lowest logit whose probability is above the given one."""
    return math.nextafter(math.log(probability / (1 - probability)), math.inf)


def count_predictions(scores: Tensor, targets: Tensor, threshold: float, top_k: int | None = None) -> Counts:
    """Return [4, C] counts of correct, predicted, true and annotated cells; those of batches add up."""
    check_decision(threshold, top_k)
    batch = make_batch(scores, targets)
    if np.isnan(batch.scores).any():
        raise ValueError("The scores contain NaN; check whether training diverged.")
    return _count_batch(batch, threshold, top_k)


def _count_batch(batch: Batch, threshold: float, top_k: int | None = None) -> Counts:
    values, positive, annotated = batch
    annotated = np.ones_like(positive) if annotated is None else annotated
    predicted = (values >= threshold) & annotated
    if top_k is not None:
        # Exactly the k highest annotated scores of each row: those above the k-th, then the first ties of it.
        values = np.where(annotated, values, -math.inf)
        top_k = min(top_k, values.shape[1])
        lowest = np.partition(values, -top_k, axis=1)[:, -top_k, None]
        higher = values > lowest
        equal = values == lowest
        room = top_k - higher.sum(axis=1, keepdims=True)
        predicted &= higher | (equal & (equal.cumsum(axis=1) <= room))
    masks = (predicted & positive, predicted, positive, annotated)
    return np.stack([mask.sum(axis=0) for mask in masks])


def f1_from_counts(counts: Counts) -> PrecisionRecallF1:
    """Return the metrics over the classes with an annotated cell; NaN if there is no such class."""
    correct, predicted, true, annotated = counts
    present = annotated > 0
    if not present.any():
        return PrecisionRecallF1(*[math.nan] * 6)
    cp = float(_ratio(correct, predicted)[present].mean())
    cr = float(_ratio(correct, true)[present].mean())
    op = float(_ratio(correct.sum(), predicted.sum()))
    or_ = float(_ratio(correct.sum(), true.sum()))
    return PrecisionRecallF1(cp, cr, _harmonic_mean(cp, cr), op, or_, _harmonic_mean(op, or_))


def score_sets(
    increments: Sequence[Sequence[Batch]], class_counts: Sequence[int], threshold: float
) -> NestedScores:
    """Score nested sets; set i is the increments 0..i and the first ``class_counts[i]`` classes."""
    if not any(increments):  # no image at all: all scores are NaN
        empty = np.zeros((0, max(class_counts)))
        increments = [[Batch(empty, empty > 0)], *increments[1:]]
    batches = list(chain.from_iterable(increments))
    n_scored = batches[0].scores.shape[1]
    if max(class_counts) > n_scored:
        raise ValueError(
            f"A nested set has {max(class_counts)} classes, but the scores have {n_scored}; evaluate only "
            "experiences that the model was trained on."
        )
    counted = count_sets(increments, threshold=threshold, threads=torch.get_num_threads())
    ap = torch.from_numpy(counted.average_precision)
    f1 = []
    for i, n_classes in enumerate(class_counts):
        ap[i, n_classes:] = math.nan
        f1.append(f1_from_counts(counted.counts[:, i, :n_classes]))
    mean_ap = ap.nanmean(dim=1).tolist()

    stage_counts = np.zeros((4, n_scored), dtype=np.int64)  # of the last set, at the threshold of stages
    for batch in batches:
        stage_counts += _count_batch(batch, _just_above(STAGE_PROBABILITY))
    seen = stage_counts[:, : class_counts[-1]]
    stage = StageScores(mean_ap[-1], _mean_class_f1(seen), f1_from_counts(seen).OF1)
    return NestedScores(mean_ap, [row.CF1 for row in f1], [row.OF1 for row in f1], ap, stage)


def _ratio(numerator: Counts, denominator: Counts) -> np.ndarray:
    """Quotient of counts; 0/0 is 0."""
    return numerator / np.maximum(denominator, 1)


def _harmonic_mean(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def make_batch(scores: Tensor, targets: Tensor) -> Batch:
    """Check scores and targets, both [images, classes], and return them as arrays."""
    check_shape("scores", scores, ("images", "classes"))
    n = scores.shape[1]
    fix = f"multi-hot rows (class numbers: one_hot(targets, {n}); seen classes only: targets[:, :{n}])"
    check_shape("targets", targets, tuple(scores.shape), f" as the scores, {fix}")
    if not scores.is_floating_point():
        raise TypeError(f"Scores must be floating point, got {scores.dtype}; pass logits or probabilities.")
    if scores.numel() == 0:
        raise ValueError(f"The scores are empty, of shape {tuple(scores.shape)}; pass at least one image.")
    return Batch(_as_array(scores), *_split_targets(targets))


def check_decision(threshold: float, top_k: int | None = None) -> None:
    """Raise a ValueError if the threshold is NaN or ``top_k`` is below 1."""
    if math.isnan(threshold):
        raise ValueError("The threshold is NaN; for p >= 0.5 use 0.5 with probabilities and 0.0 with logits.")
    check_range("top_k", top_k, least=1)


def _to_device_of(scores: Tensor, values: np.ndarray) -> Tensor:
    """Return float64 values on the device of the scores; on the CPU for MPS, which has no float64."""
    device = "cpu" if scores.device.type == "mps" else scores.device
    return torch.from_numpy(values).to(device)


def _as_array(tensor: Tensor) -> np.ndarray:
    """Return the tensor as a NumPy array; half precision, which is slow in NumPy, becomes float32."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.detach().cpu().numpy()


def _split_targets(targets: Tensor) -> tuple[Mask, Mask | None]:
    """Return which cells are positive and which are annotated (None if all are)."""
    values = _as_array(targets)
    positive = values == 1
    negative = values == 0
    if np.count_nonzero(positive) + np.count_nonzero(negative) == values.size:
        return positive, None
    annotated = positive | negative
    invalid = values[~annotated & (values == values)]
    if len(invalid):
        raise ValueError(f"Targets must be 0, 1 or NaN (unlabelled), got {invalid[0]:g}.")
    return positive, annotated
