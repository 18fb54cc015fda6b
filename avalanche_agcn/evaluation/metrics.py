"""Standalone metrics: call `update` with batches, then `result` for the value over all of them.

They follow Avalanche's `Metric` protocol (``reset``, ``result``) without importing it. The result does not
depend on how the images are split into batches or over processes.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor

from avalanche_agcn.evaluation import functional
from avalanche_agcn.evaluation._ranking import Batch, count_sets
from avalanche_agcn.evaluation.functional import NestedScores, PrecisionRecallF1


class MultiLabelMetric(ABC):
    """Base class of the metrics: keeps a record of each batch.

    To write a metric, implement ``update(scores, targets)`` and `_result`. If the metric ranks images,
    ``update`` keeps all scores with ``self._keep(self._make_batch(scores, targets), scores.shape[1])``;
    otherwise it keeps a smaller record, such as counts. `_result` computes the value from ``self._records``,
    the records of all batches and processes; nothing else is reset or gathered. Metrics are merged only if
    their attributes in ``settings`` are equal.
    """

    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all batches."""
        self._records: list[Any] = []
        self._n_classes: int | None = None  # of all records

    @property
    def is_empty(self) -> bool:
        """Whether no image has been seen."""
        return not self._records

    def result(self) -> Any:
        """Return the value over all batches since the last reset; a ValueError if there was none."""
        if not self._can_score():
            raise ValueError(
                f"{type(self).__name__} has seen no image; evaluate a stream with images, or call update()."
            )
        return self._result()

    def _can_score(self) -> bool:
        return not self.is_empty

    @abstractmethod
    def _result(self) -> Any: ...

    def merge_state(self, other: Self) -> None:
        """Add the images of another metric with the same settings and increments."""
        for name in self.settings:
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise ValueError(
                    f"A {type(self).__name__} with {name}={there} cannot be merged into one with "
                    f"{name}={here}; use the same for both."
                )
        for record in other._records:
            self._keep(record, other._n_classes)

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

    def _keep(self, record: Any, n_classes: int | None) -> None:
        """Append the record of a batch with scores of ``n_classes``, which may not change."""
        if self._n_classes is None:
            self._n_classes = n_classes
        if n_classes != self._n_classes:
            raise ValueError(
                f"The scores have {n_classes} classes, but those before had {self._n_classes}; call reset() "
                "first."
            )
        self._records.append(record)

    @staticmethod
    def _make_batch(scores: Tensor, targets: Tensor) -> Batch:
        """Check scores and targets and return them as arrays of their own."""
        batch = functional.make_batch(scores, targets)
        # Copied, because the caller may overwrite the scores with those of the next batch.
        return batch._replace(scores=batch.scores.copy())


class RankingMetric(MultiLabelMetric):
    """Base class of metrics that rank all images."""

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        self._keep(self._make_batch(scores, targets), scores.shape[1])


class AveragePrecision(RankingMetric):
    """`average_precision` of each class, [C] float64; NaN where a class has no positive."""

    def _result(self) -> Any:
        counts = count_sets([self._records], threads=torch.get_num_threads())
        return torch.from_numpy(counts.average_precision[0])


class MeanAveragePrecision(AveragePrecision):
    """Mean of the average precision over the classes that have a positive; NaN if none has."""

    def _result(self) -> float:
        return super()._result().nanmean().item()


class ROCAUC(RankingMetric):
    """`roc_auc` of each class, [C] float64; NaN where a class has no positive or no negative."""

    def _result(self) -> Any:
        counts = count_sets([self._records], roc_auc=True, threads=torch.get_num_threads())
        assert counts.roc_auc is not None
        return torch.from_numpy(counts.roc_auc[0])


class MeanROCAUC(ROCAUC):
    """Mean of the ROC-AUC over the classes that have a positive and a negative; NaN if none has."""

    def _result(self) -> float:
        return super()._result().nanmean().item()


class MultiLabelF1(MultiLabelMetric):
    """Class-wise and overall precision, recall and F1; for the arguments see `precision_recall_f1`."""

    settings = ("threshold", "top_k")

    def __init__(self, *, threshold: float, top_k: int | None = None) -> None:
        functional.check_decision(threshold, top_k)
        self.threshold = threshold
        self.top_k = top_k
        super().__init__()

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        counts = functional.count_predictions(scores, targets, self.threshold, self.top_k)
        self._keep(counts, scores.shape[1])
        self._records = [sum(self._records)]  # a single record, four counts per class

    def _result(self) -> PrecisionRecallF1:
        return functional.f1_from_counts(sum(self._records))


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

    settings = ("threshold",)

    def __init__(self, *, threshold: float) -> None:
        functional.check_decision(threshold)
        self.threshold = threshold
        super().__init__()

    def reset(self) -> None:
        """Discard all batches and sets."""
        super().reset()
        self.class_counts: list[int] = []  # of each nested set

    def start_increment(self, *, n_classes: int) -> None:
        """Start the next nested set, with ``n_classes``; the following batches are its new images."""
        self.class_counts.append(n_classes)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores and targets [B, C] over the classes of the **last** set to come."""
        if not self.class_counts:
            raise ValueError("There is no nested set yet; call start_increment(n_classes=...) first.")
        increment = len(self.class_counts) - 1
        self._keep((increment, self._make_batch(scores, targets)), scores.shape[1])

    def merge_state(self, other: Self) -> None:
        """Add the images of another metric with the same sets, or with more."""
        super().merge_state(other)
        self.class_counts += other.class_counts[len(self.class_counts) :]

    def _can_score(self) -> bool:
        return bool(self.class_counts)  # a set without images scores NaN

    def _result(self) -> NestedScores:
        increments: list[list[Batch]] = [[] for _ in self.class_counts]
        for increment, batch in self._records:
            increments[increment].append(batch)
        return functional.score_sets(increments, self.class_counts, self.threshold)
