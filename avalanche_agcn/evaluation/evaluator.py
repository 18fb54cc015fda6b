"""What Avalanche's ``default_evaluator`` should have been for images with several labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation.metrics import loss_metrics
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.evaluation.figure_metrics import correlation_figure_metrics
from avalanche_agcn.evaluation.guard import refuse_stock_accuracy
from avalanche_agcn.evaluation.nested_metrics import forgetting_metrics
from avalanche_agcn.evaluation.plugin_metrics import mean_average_precision_metrics
from avalanche_agcn.evaluation.progress import ProgressLogger

if TYPE_CHECKING:
    from avalanche.evaluation import PluginMetric
    from avalanche.logging import BaseLogger

__all__ = ["multilabel_evaluator"]


def multilabel_evaluator(
    *metrics: PluginMetric | Sequence[PluginMetric],
    loggers: BaseLogger | Sequence[BaseLogger] | None = None,
    threshold: float = 0.0,
    saved_graphs: bool = False,
    per_class: bool = False,
    figures: bool = False,
    class_names: Sequence[str] | None = None,
    strict_checks: bool = False,
) -> EvaluationPlugin:
    """Loss and mAP in training; loss, nested mAP, CF1 and OF1, and forgetting in evaluation.

    Evaluate ``strategy.eval(benchmark.test_stream[: t + 1])`` after experience t: each image goes through the
    network once and every nested set 0..t is scored (see `forgetting_metrics`).

    Args:
        *metrics: Further plugin metrics.
        loggers: Loggers; if None, a `ProgressLogger` on standard output. With several processes only the
            first one logs.
        threshold: Decision threshold in the unit of what the model returns; 0.0 is p ≥ 0.5, as models return
            logits.
        saved_graphs: Also score set i with the graph saved at experience i; see `forgetting_metrics`.
        per_class: Emit the average precision of each class after an evaluation.
        figures: Emit the learning curve and the ACM as figures, for TensorBoard and Weights & Biases.
        class_names: Names of the columns; those of the benchmark if None.
        strict_checks: As Avalanche's: insist that every evaluation is of a whole stream, which
            ``test_stream[: t + 1]`` is not.

    Returns:
        Avalanche's `EvaluationPlugin`; `find_nested` gives its nested matrices.

    Raises:
        ValueError: If a metric takes the argmax of its targets, such as accuracy.

    Example:
        >>> evaluator = multilabel_evaluator()
        >>> [str(metric) for metric in evaluator.metrics]
        ['Loss_Epoch', 'Loss_Stream', 'AveragePrecision_Epoch', 'Nested']
    """
    refuse_stock_accuracy(metrics)
    if loggers is None:
        loggers = [ProgressLogger()] if DistributedHelper.is_main_process else []
    return EvaluationPlugin(
        loss_metrics(epoch=True, stream=True),
        mean_average_precision_metrics(epoch=True),
        forgetting_metrics(
            nested=True,
            stream=True,
            threshold=threshold,
            saved_graphs=saved_graphs,
            per_class=per_class,
            figure=figures,
            class_names=class_names,
        ),
        correlation_figure_metrics(class_names=class_names) if figures else [],
        *metrics,
        loggers=loggers,
        strict_checks=strict_checks,
    )
