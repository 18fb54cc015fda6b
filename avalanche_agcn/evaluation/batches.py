"""What plugin metrics read from a strategy: the scores and targets of a batch, classes, names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation.metric_utils import (
    default_metric_name_template,
    generic_get_metric_name,
    phase_and_task,
)
from torch import Tensor

from avalanche_agcn.evaluation.guard import refuse_stock_accuracy

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

__all__ = [
    "BatchReader",
    "benchmark_class_names",
    "check_evaluation",
    "metric_name",
    "name_classes",
]


def check_evaluation(strategy: SupervisedTemplate) -> None:
    """Before an evaluation: something to evaluate, and no metric that means nothing.

    Raises:
        ValueError: If either does not hold.
    """
    refuse_stock_accuracy(strategy)
    stream = strategy.current_eval_stream
    if isinstance(stream, Iterator):  # looking at it would use it up
        raise ValueError("eval() was given an iterator; give it a stream or a list of experiences")
    if not len(list(stream)):
        raise ValueError(
            "nothing to evaluate: eval() was given a stream without experiences; "
            "after experience t, give it test_stream[: t + 1]"
        )


class BatchReader:
    """Reads each image of an evaluation once.

    With several processes, Avalanche's loader repeats images until every process has equally many. The
    repeated ones are the last that a process gets, and are left out here.
    """

    def __init__(self) -> None:
        self._left: int | None = None

    def start_experience(self, strategy: SupervisedTemplate) -> int:
        """Before the first batch of an experience that is evaluated; the number of images to come."""
        assert strategy.adapted_dataset is not None
        own = range(DistributedHelper.rank, len(strategy.adapted_dataset), DistributedHelper.world_size)
        self._left = len(own)
        return self._left

    def read(self, strategy: SupervisedTemplate) -> tuple[Tensor, Tensor]:
        """Scores and targets of the current batch, [B, C] both; C is the number of classes scored.

        Raises:
            ValueError: If the targets are not multi-hot, or narrower than the scores.
        """
        scores, targets = strategy.mb_output.detach(), strategy.mb_y
        if targets.ndim != 2 or targets.shape[1] < scores.shape[-1]:
            raise ValueError(
                f"the model gives scores of shape {tuple(scores.shape)} and the benchmark targets of shape "
                f"{tuple(targets.shape)}; multi-hot targets of at least as many classes are needed, as "
                "multilabel_benchmark(...) makes them"
            )
        targets = targets[:, : scores.shape[1]]
        if strategy.is_training or self._left is None:
            return scores, targets
        n = min(len(scores), self._left)
        self._left -= n
        return scores[:n], targets[:n]


def metric_name(
    name: str, strategy: SupervisedTemplate, *, stream: str | None = None, nested_set: int | None = None
) -> str:
    """The name as Avalanche writes it, ``name/eval_phase/test_stream/Exp003``, with any nested set.

    The stream is that of the current experience, unless its name is given.
    """
    assert strategy.experience is not None
    phase, _ = phase_and_task(strategy)
    fields = {
        "metric_name": name,
        "phase_name": phase,
        "stream_name": stream or strategy.experience.origin_stream.name,
        "task_label": None,  # a class-incremental stream has one task
        "experience_id": nested_set,
    }
    return generic_get_metric_name(default_metric_name_template, fields)


def name_classes(
    values: Tensor, strategy: SupervisedTemplate, class_names: Sequence[str] | None
) -> dict[str, float]:
    """Values of the first classes by name: those given, those of the benchmark, or numbers."""
    names = class_names or benchmark_class_names(strategy) or [f"class {c}" for c in range(len(values))]
    if len(names) < len(values):
        raise ValueError(f"{len(values)} classes are scored, but class_names has only {len(names)}")
    return dict(zip(names, values.tolist(), strict=False))


def benchmark_class_names(strategy: SupervisedTemplate) -> Sequence[str] | None:
    """Names of the columns, if the benchmark of the current experience has them."""
    stream = getattr(strategy.experience, "origin_stream", None)
    return getattr(getattr(stream, "benchmark", None), "class_names", None)
