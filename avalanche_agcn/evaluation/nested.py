"""Nested test sets scored in one pass: every image goes through the network once, not once per set.

Nested set i is the images of increments 0..i with the classes seen by experience i, a prefix of the
columns. A score of an image serves every set the image is in, so one matrix of scores is all that is
kept, and ranking the increments once gives the figures of all sets (see `ranking`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.evaluation.buffer import ScoreBuffer
from avalanche_agcn.evaluation.functional import PredictionCounts, f1_from_counts
from avalanche_agcn.evaluation.inputs import as_array, check_shapes, check_threshold, split_targets
from avalanche_agcn.evaluation.metrics import MultiLabelMetric
from avalanche_agcn.evaluation.ranking import Increment, count_sets

if TYPE_CHECKING:
    from typing import Self

__all__ = ["NestedMetric", "NestedScores", "PerSetMetric", "nested_scores"]


class NestedScores(NamedTuple):
    """Figures of nested sets 0..t: one row of each nested matrix."""

    mAP: list[float]
    CF1: list[float]
    OF1: list[float]
    average_precision: Tensor
    """[sets, C] float64, average precision of each class; NaN for classes that are not in the set."""


def nested_scores(
    scores: Tensor,
    targets: Tensor,
    *,
    set_sizes: Sequence[int],
    class_counts: Sequence[int],
    threshold: float,
) -> NestedScores:
    """Score nested sets: set i is the first ``set_sizes[i]`` images and ``class_counts[i]`` classes.

    Args:
        scores: [N, C] logits or probabilities, images in the order of their increments.
        targets: [N, C] of 0, 1 and NaN (unlabelled).
        set_sizes: Number of images of each set; not decreasing, the last is N.
        class_counts: Number of classes of each set; not decreasing, the last is at most C.
        threshold: A score at or above it is predicted, in the unit of ``scores``.

    Raises:
        TypeError: If ``scores`` are not floating point.
        ValueError: If shapes, sizes or values do not fit.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [-1.0, 1.0], [1.0, 3.0]])
        >>> targets = torch.tensor([[1, 0], [0, 0], [0, 1]])
        >>> result = nested_scores(logits, targets, set_sizes=[2, 3], class_counts=[1, 2], threshold=0.0)
        >>> result.mAP, [round(value, 3) for value in result.OF1]
        ([1.0, 1.0], [1.0, 0.667])
    """
    check_shapes(scores, targets)
    check_threshold(threshold)
    ends, counts = [0, *set_sizes], [0, *class_counts]
    grow = ends == sorted(ends) and counts == sorted(counts)
    if len(ends) != len(counts) or ends[-1] != len(scores) or not grow:
        raise ValueError(
            f"set_sizes {list(set_sizes)} and class_counts {list(class_counts)} do not describe nested sets "
            f"of {len(scores)} images: one number per set, growing up to all images, and as many classes as "
            "the set before or more"
        )
    values = as_array(scores)
    positive, annotated = split_targets(targets)
    increments = [
        Increment(values[a:b], positive[a:b], None if annotated is None else annotated[a:b])
        for a, b in pairwise(ends)
    ]
    return _score_sets(increments, class_counts, threshold)


class _KeepsBuffers(MultiLabelMetric[NestedScores]):
    """Several `ScoreBuffer`, filled increment by increment.

    Args:
        threshold: A score at or above it is predicted, in the unit of the scores: 0.0 for logits or 0.5 for
            probabilities is p ≥ 0.5.
    """

    def __init__(self, *, threshold: float) -> None:
        check_threshold(threshold)
        self.threshold = threshold
        self.reset()

    def reset(self) -> None:
        """Forget all increments."""
        self.class_counts: list[int] = []
        self._buffers: list[ScoreBuffer] = []

    def merge_state(self, other: Self) -> None:
        """Add what another metric has seen of the same increments."""
        self.class_counts += other.class_counts[len(self.class_counts) :]
        self._buffers += [ScoreBuffer() for _ in other._buffers[len(self._buffers) :]]
        for ours, theirs in zip(self._buffers, other._buffers, strict=False):
            if len(theirs):
                ours.extend(theirs.arrays)

    def state_dict(self) -> dict[str, Any]:
        """What was seen, as plain lists and tensors."""
        buffers = [buffer.state_dict() if len(buffer) else None for buffer in self._buffers]
        return {"class_counts": list(self.class_counts), "buffers": buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was seen."""
        self.reset()
        self.class_counts += state["class_counts"]
        for content in state["buffers"]:
            self._buffers.append(ScoreBuffer())
            if content is not None:
                self._buffers[-1].load_state_dict(content)


class NestedMetric(_KeepsBuffers):
    """`nested_scores` of batches that come increment by increment.

    Keeps one float32 matrix of images × classes and a byte per label.

    Example:
        >>> metric = NestedMetric(threshold=0.0)
        >>> metric.start_increment(n_classes=1)
        >>> metric.update(torch.tensor([[2.0, -1.0], [-1.0, 1.0]]), torch.tensor([[1, 0], [0, 0]]))
        >>> metric.start_increment(n_classes=2)
        >>> metric.update(torch.tensor([[1.0, 3.0]]), torch.tensor([[0, 1]]))
        >>> metric.result().mAP
        [1.0, 1.0]
    """

    def start_increment(self, *, n_classes: int, n_images: int = 0) -> None:
        """Let the next batches be what the next nested set adds to the one before it.

        Args:
            n_classes: Number of classes of that set.
            n_images: Number of images to come, if known; saves memory.
        """
        self.class_counts.append(n_classes)
        self._buffers.append(ScoreBuffer(n_images))

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take a batch: scores [B, C] over the classes of the **last** set to come, targets likewise."""
        self._buffers[-1].append(scores, targets)

    def __len__(self) -> int:
        return sum(map(len, self._buffers))

    def _result(self) -> NestedScores:
        width = max(buffer.n_classes for buffer in self._buffers)
        increments = [_arrays(buffer, width) for buffer in self._buffers]
        return _score_sets(increments, self.class_counts, self.threshold)


class PerSetMetric(_KeepsBuffers):
    """Nested sets with scores of their own: set i as the graph saved at experience i scores it.

    An image goes through the backbone once, but has one row of scores for each set it is in. Keeps a matrix
    for every set, of its images and classes: for ten equal increments 3.85 times what `NestedMetric` keeps.
    """

    def start_increment(self, *, n_classes: int) -> None:
        """Let the next batches be what the next nested set, of ``n_classes``, adds to the one before it."""
        self.class_counts.append(n_classes)

    def update(self, scores: Sequence[Tensor], targets: Tensor) -> None:
        """Take a batch.

        Args:
            scores: For every set i that will be evaluated, [B, C_i] scores of its classes.
            targets: [B, C] of 0, 1 and NaN (unlabelled), at least as wide as the widest scores.
        """
        self._buffers += [ScoreBuffer() for _ in scores[len(self._buffers) :]]
        for i in range(len(self.class_counts) - 1, len(scores)):  # the sets that these images are in
            self._buffers[i].append(scores[i], targets[:, : scores[i].shape[1]])

    def __len__(self) -> int:
        return len(self._buffers[-1]) if self._buffers else 0

    def _result(self) -> NestedScores:
        alone = [
            _score_sets([_arrays(buffer, n_classes)], [n_classes], self.threshold)
            for buffer, n_classes in zip(self._buffers, self.class_counts, strict=True)
        ]
        ap = torch.full((len(alone), max(self.class_counts)), math.nan, dtype=torch.float64)
        for row, scored in zip(ap, alone, strict=True):
            row[: scored.average_precision.shape[1]] = scored.average_precision[0]
        return NestedScores(
            [scored.mAP[0] for scored in alone],
            [scored.CF1[0] for scored in alone],
            [scored.OF1[0] for scored in alone],
            ap,
        )


def _arrays(buffer: ScoreBuffer, n_classes: int) -> Increment:
    """What the buffer holds; an increment may well have no image."""
    if len(buffer):
        return buffer.arrays
    return Increment(np.empty((0, n_classes), np.float32), np.empty((0, n_classes), bool))


def _score_sets(
    increments: Sequence[Increment], class_counts: Sequence[int], threshold: float
) -> NestedScores:
    width = increments[0].scores.shape[1]
    if max(class_counts) > width:
        raise ValueError(
            f"a nested set of {max(class_counts)} classes cannot be scored with scores of {width}; "
            "evaluate only the experiences the model has been trained on"
        )
    counts = count_sets(increments, threshold=threshold, threads=torch.get_num_threads())
    ap = torch.from_numpy(counts.average_precision)
    rows = []
    for i, n_classes in enumerate(class_counts):
        ap[i, n_classes:] = math.nan
        correct, predicted, true, annotated = (field[i, :n_classes] for field in counts[1:])
        rows.append(f1_from_counts(PredictionCounts(correct, predicted, true, annotated)))
    return NestedScores(ap.nanmean(dim=1).tolist(), [row.CF1 for row in rows], [row.OF1 for row in rows], ap)
