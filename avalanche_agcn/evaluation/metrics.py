"""Standalone metrics: `update` with batches, `result` over all of them.

They follow Avalanche's `Metric` protocol (``reset``, ``result``) without importing it. The result does not
depend on how the images were split into batches or over processes:

- ``merge_state(other)`` adds what another metric has seen;
- ``gather()`` returns one metric over what all processes of ``torch.distributed`` have seen.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from avalanche_agcn.evaluation.buffer import ScoreBuffer
from avalanche_agcn.evaluation.functional import (
    PrecisionRecallF1,
    PredictionCounts,
    count_predictions,
    f1_from_counts,
)
from avalanche_agcn.evaluation.inputs import check_threshold, check_top_k
from avalanche_agcn.evaluation.ranking import count_sets

if TYPE_CHECKING:
    from typing import Self

__all__ = ["AveragePrecision", "MeanAveragePrecision", "MultiLabelF1", "MultiLabelMetric"]

TResult = TypeVar("TResult", covariant=True)


class MultiLabelMetric(ABC, Generic[TResult]):
    """What the metrics share beside ``update``; see the module's docstring."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images seen."""

    @abstractmethod
    def merge_state(self, other: Self) -> None:
        """Add what another metric with the same settings has seen."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What was seen, as plain tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was seen by the state of another metric with the same settings."""

    @abstractmethod
    def _result(self) -> TResult: ...

    def result(self) -> TResult:
        """The figures over all batches since the last reset.

        Raises:
            ValueError: If there was none.
        """
        if len(self) == 0:
            raise ValueError(
                f"{type(self).__name__} has seen no image; evaluate a stream with images, or call update()"
            )
        return self._result()

    def gather(self) -> Self:
        """The metric over what all processes have seen, equal in each of them; self without processes.

        Every process must call it. Metrics stay as they are, so that batches may follow.
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return self
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.state_dict())
        merged, part = copy.copy(self), copy.copy(self)  # reset() and load_state_dict() leave ours alone
        merged.reset()
        for state in states:
            part.load_state_dict(state)
            merged.merge_state(part)
        return merged


class _KeepsScores(MultiLabelMetric[TResult]):
    """A metric of the ranking, which needs all scores: N×C float32 and a byte per label.

    Args:
        capacity: Number of images to make room for; see `ScoreBuffer`.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._buffer = ScoreBuffer(self._capacity)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        self._buffer.append(scores, targets)

    def __len__(self) -> int:
        return len(self._buffer)

    def merge_state(self, other: Self) -> None:
        """Add what another metric has seen."""
        if len(other):
            self._buffer.extend(other._buffer.arrays)

    def state_dict(self) -> dict[str, Any]:
        """What was seen, as plain tensors."""
        return self._buffer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was seen."""
        self.reset()
        self._buffer.load_state_dict(state)

    def _average_precision(self) -> Tensor:
        counts = count_sets([self._buffer.arrays], threads=torch.get_num_threads())
        return torch.from_numpy(counts.average_precision[0])


class AveragePrecision(_KeepsScores[Tensor]):
    """Average precision of each class, [C] float64; NaN where a class has no positive.

    Example:
        >>> metric = AveragePrecision()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[1, 0], [0, 0]]))
        >>> metric.update(torch.tensor([[0.1, 0.3]]), torch.tensor([[1, 0]]))
        >>> metric.result()
        tensor([0.8333,    nan], dtype=torch.float64)
    """

    def _result(self) -> Tensor:
        return self._average_precision()


class MeanAveragePrecision(_KeepsScores[float]):
    """Mean of the average precision over the classes that have a positive; NaN if none has.

    Example:
        >>> metric = MeanAveragePrecision()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[1, 0], [0, 0]]))
        >>> metric.update(torch.tensor([[0.1, 0.3]]), torch.tensor([[1, 1]]))
        >>> round(metric.result(), 4)
        0.9167
    """

    def _result(self) -> float:
        return self._average_precision().nanmean().item()


class MultiLabelF1(MultiLabelMetric[PrecisionRecallF1]):
    """Class-wise and overall precision, recall and F1; keeps four counts per class.

    Args:
        threshold: A score at or above it is predicted, in the unit of the scores: 0.0 for logits or 0.5 for
            probabilities is p ≥ 0.5.
        top_k: Keep only the k highest scores of an image.

    Raises:
        ValueError: For a threshold or ``top_k`` that makes no sense.

    Example:
        >>> metric = MultiLabelF1(threshold=0.0)
        >>> metric.update(torch.tensor([[2.0, -1.0], [1.0, 3.0]]), torch.tensor([[1, 0], [0, 1]]))
        >>> metric.update(torch.tensor([[-2.0, -1.0]]), torch.tensor([[0, 1]]))
        >>> round(metric.result().OF1, 3)
        0.667
    """

    def __init__(self, *, threshold: float, top_k: int | None = None) -> None:
        check_threshold(threshold)
        check_top_k(top_k)
        self.threshold = threshold
        self.top_k = top_k
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._length = 0
        self._counts: np.ndarray | None = None  # [4, C]

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take a batch: scores [B, C], targets [B, C] of 0, 1 and NaN (unlabelled)."""
        counts = count_predictions(scores, targets, threshold=self.threshold, top_k=self.top_k)
        self._add(np.stack(counts), len(scores))

    def __len__(self) -> int:
        return self._length

    def merge_state(self, other: Self) -> None:
        """Add what another metric with the same threshold and ``top_k`` has seen."""
        if (other.threshold, other.top_k) != (self.threshold, self.top_k):
            raise ValueError(
                f"cannot merge counts at threshold {other.threshold}, top_k {other.top_k} into those at "
                f"threshold {self.threshold}, top_k {self.top_k}"
            )
        if other._counts is not None:
            self._add(other._counts, len(other))

    def state_dict(self) -> dict[str, Any]:
        """What was seen, as plain tensors."""
        counts = None if self._counts is None else torch.from_numpy(self._counts)
        return {"counts": counts, "length": self._length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was seen."""
        self.reset()
        if state["counts"] is not None:
            self._add(state["counts"].numpy(), state["length"])

    def _add(self, counts: np.ndarray, length: int) -> None:
        if self._counts is not None and self._counts.shape != counts.shape:
            raise ValueError(
                f"scores have {counts.shape[1]} classes, those before had {self._counts.shape[1]}; "
                "reset() before the number of classes changes"
            )
        self._counts = counts.copy() if self._counts is None else self._counts + counts
        self._length += length

    def _result(self) -> PrecisionRecallF1:
        assert self._counts is not None
        return f1_from_counts(PredictionCounts(*self._counts))
