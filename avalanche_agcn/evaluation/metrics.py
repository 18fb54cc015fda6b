"""Standalone metrics: call `update` with batches, then `result` for the value over all of them.

They follow Avalanche's `Metric` protocol (``reset``, ``result``) without importing it. The result does not
depend on how the images are split into batches or over processes.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from avalanche_agcn.evaluation import functional
from avalanche_agcn.evaluation._ranking import count_sets
from avalanche_agcn.evaluation.functional import NestedScores, PrecisionRecallF1


class MultiLabelMetric(ABC):
    """Base class of the metrics: keeps records of the batches, in one list per increment of a nested stream.

    To write a metric, implement ``update(scores, targets)`` and `_result`. If it ranks, ``update`` keeps all
    scores by ``self._keep_scores(0, scores, targets)``; otherwise it keeps a record of its own, arrays with
    classes as their last axis, by ``self._keep(0, [record])``. `_result` computes the value from
    ``self._increments[0]``, the records of all batches and processes; nothing else is reset or gathered.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all batches."""
        self.class_counts: list[int] = []  # of each nested set
        self._increments: list[list[Any]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no image has been seen."""
        return not any(self._increments)

    def result(self) -> Any:
        """Return the value over all batches since the last reset; a ValueError if there was none."""
        if not self._increments:
            raise ValueError(
                f"{type(self).__name__} has seen no image; evaluate a stream with images, or call update()."
            )
        return self._result()

    @abstractmethod
    def _result(self) -> Any: ...

    def merge_state(self, other: Self) -> None:
        """Add the images of another metric with the same settings and increments."""
        self.class_counts += other.class_counts[len(self.class_counts) :]
        for i, records in enumerate(other._increments):
            self._keep(i, records)

    def gather(self) -> Self:
        """Collective: return a metric over the images of all processes; self if there is only one."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return self
        metrics: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(metrics, self)
        merged = copy.copy(self)
        merged.reset()
        for metric in metrics:
            merged.merge_state(metric)
        return merged

    def _keep(self, increment: int, records: Iterable[Any]) -> None:
        """Append records to an increment, which is created if needed."""
        self._increments += [[] for _ in range(len(self._increments), increment + 1)]
        kept = self._increments[increment]
        for record in records:
            n, n_before = record[0].shape[-1], (kept or [record])[0][0].shape[-1]
            if n != n_before:
                raise ValueError(
                    f"The scores have {n} classes, but those before had {n_before}; call reset() first."
                )
            kept.append(record)

    def _keep_scores(self, increment: int, scores: Tensor, targets: Tensor) -> None:
        batch = functional.make_batch(scores, targets)
        # Copied, because the caller may overwrite the scores with those of the next batch.
        self._keep(increment, [batch._replace(scores=batch.scores.copy())])


class AveragePrecision(MultiLabelMetric):
    """`average_precision` of each class, [C] float64; NaN where a class has no positive."""

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        self._keep_scores(0, scores, targets)

    def _result(self) -> Any:
        counts = count_sets(self._increments, threads=torch.get_num_threads())
        return torch.from_numpy(counts.average_precision[0])


class MeanAveragePrecision(AveragePrecision):
    """Mean of the average precision over the classes that have a positive; NaN if none has."""

    def _result(self) -> float:
        return super()._result().nanmean().item()


class MultiLabelF1(MultiLabelMetric):
    """Class-wise and overall precision, recall and F1; for the arguments see `precision_recall_f1`."""

    def __init__(self, *, threshold: float, top_k: int | None = None) -> None:
        functional.check_decision(threshold, top_k)
        self.threshold, self.top_k = threshold, top_k
        super().__init__()

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        self._keep(0, [functional.count_predictions(scores, targets, self.threshold, self.top_k)])
        self._increments = [[sum(self._increments[0])]]  # a single record, four counts per class

    def merge_state(self, other: Self) -> None:
        """Add the counts of another metric with the same threshold and ``top_k``."""
        own, others = (self.threshold, self.top_k), (other.threshold, other.top_k)
        if own != others:
            raise ValueError(f"Merge counts at equal (threshold, top_k) only, not {others} into {own}.")
        super().merge_state(other)

    def _result(self) -> PrecisionRecallF1:
        return functional.f1_from_counts(sum(self._increments[0]))


class NestedMetric(MultiLabelMetric):
    """`nested_scores` of batches that come increment by increment; a set without images has the score NaN.

    Example:
        >>> metric = NestedMetric(threshold=0.0)
        >>> metric.start_increment(n_classes=1)
        >>> metric.update(torch.tensor([[2.0, -1.0], [-1.0, 1.0]]), torch.tensor([[1, 0], [0, 0]]))
        >>> metric.start_increment(n_classes=2)
        >>> metric.update(torch.tensor([[1.0, 3.0]]), torch.tensor([[0, 1]]))
        >>> metric.result().mAP
        [1.0, 1.0]
    """

    def __init__(self, *, threshold: float) -> None:
        functional.check_decision(threshold)
        self.threshold = threshold
        super().__init__()

    def start_increment(self, *, n_classes: int) -> None:
        """Start the next nested set, with ``n_classes``; the following batches are its new images."""
        self._keep(len(self.class_counts), [])
        self.class_counts.append(n_classes)

    def update(self, scores: Any, targets: Tensor) -> None:
        """Add a batch: scores and targets [B, C] over the classes of the **last** set to come."""
        self._keep_scores(len(self.class_counts) - 1, scores, targets)

    def _result(self) -> NestedScores:
        return functional.score_sets(self._increments, self.class_counts, self.threshold)


class PerSetMetric(NestedMetric):
    """Nested sets with scores of their own: set i as scored by the graph saved at experience i.

    An image has one row of scores for each set it is in, so a matrix is kept for every set: for ten equal
    increments 3.85 times as much as `NestedMetric` keeps.
    """

    def update(self, scores: Sequence[Tensor], targets: Tensor) -> None:
        """Add a batch: scores [B, C_i] of every set i, also of those to come, and targets of the widest."""
        for i in range(len(self.class_counts) - 1, len(scores)):  # the sets that have these images
            self._keep_scores(i, scores[i], targets[:, : scores[i].shape[1]])

    def _result(self) -> NestedScores:
        sets = zip(self._increments, self.class_counts, strict=True)
        scored = [functional.score_sets([batches], [n], self.threshold) for batches, n in sets]
        rows = [own.average_precision[0] for own in scored]
        ap = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)
        mean_ap, cf1, of1 = ([getattr(own, name)[0] for own in scored] for name in ("mAP", "CF1", "OF1"))
        return NestedScores(mean_ap, cf1, of1, ap, scored[-1].stage)
