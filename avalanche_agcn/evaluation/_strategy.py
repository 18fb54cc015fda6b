"""What plugin metrics read from a strategy: its metrics, the scores and targets of a batch, class names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation import PluginMetric
from avalanche.training import Cumulative, JointTraining
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics


def check_no_joint_training(strategy: Any) -> None:
    """Reject Avalanche's strategies for an upper bound, which train on partial labels here."""
    if isinstance(strategy, (JointTraining, Cumulative)):
        raise ValueError(
            f"Avalanche's {type(strategy).__name__} trains on partial labels, those of each image's own "
            "experience, which is no upper bound; use avalanche_agcn's MultiTask, which has all labels."
        )


class BatchReader(PluginMetric[Any]):
    """Base of plugin metrics that read the batches of a strategy, and each image of an evaluation once.

    With several processes, Avalanche's loader repeats images until every process has equally many. The
    repeated ones are the last that a process receives, and are left out here.
    """

    _remaining: int | None = None  # images of this process in the evaluated experience

    def before_training(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics and the strategy."""
        check_no_argmax_metrics(strategy)
        check_no_joint_training(strategy)
        super().before_training(strategy)

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        """Check the other metrics and the stream."""
        check_no_argmax_metrics(strategy)
        stream = strategy.current_eval_stream
        if isinstance(stream, Iterator):  # reading it here would use it up
            raise ValueError("eval() was called with an iterator; pass a stream or a list of experiences.")
        if not len(list(stream)):
            raise ValueError("eval() was called with an empty stream; pass for example test_stream[: t + 1].")
        super().before_eval(strategy)

    def before_eval_exp(self, strategy: SupervisedTemplate) -> None:
        """Count the images to come."""
        assert strategy.adapted_dataset is not None
        n_images, rank = len(strategy.adapted_dataset), DistributedHelper.rank
        self._remaining = len(range(rank, n_images, DistributedHelper.world_size))
        super().before_eval_exp(strategy)

    def read_batch(self, strategy: SupervisedTemplate) -> tuple[Tensor, Tensor]:
        """Return scores and targets of the current batch, both [B, C] with C the number of scored classes."""
        scores, targets = strategy.mb_output.detach(), strategy.mb_y
        if targets.ndim != 2 or targets.shape[1] < scores.shape[-1]:
            raise ValueError(
                f"The scores have shape {tuple(scores.shape)} and the targets {tuple(targets.shape)}; use "
                "multi-hot targets with at least as many classes, as multilabel_benchmark(...) makes them."
            )
        targets = targets[:, : scores.shape[1]]
        if strategy.is_training or self._remaining is None:
            return scores, targets
        n = min(len(scores), self._remaining)
        self._remaining -= n
        return scores[:n], targets[:n]


def name_classes(
    values: Tensor, strategy: SupervisedTemplate, class_names: Sequence[str] | None
) -> dict[str, float]:
    """Return the values of the first classes by name: as given, as in the benchmark, or numbered."""
    names = class_names or benchmark_class_names(strategy) or [f"class {c}" for c in range(len(values))]
    if len(names) < len(values):
        raise ValueError(
            f"class_names has {len(names)} names, but {len(values)} classes are scored; name all."
        )
    return dict(zip(names, values.tolist(), strict=False))


def benchmark_class_names(strategy: SupervisedTemplate) -> Sequence[str] | None:
    """Return the names of the columns, if the benchmark of the current experience has them."""
    stream = getattr(strategy.experience, "origin_stream", None)
    return getattr(getattr(stream, "benchmark", None), "class_names", None)
