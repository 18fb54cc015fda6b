"""The counterpart of Avalanche's ``default_evaluator`` for images with several labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation import PluginMetric
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics
from avalanche_agcn.evaluation import plugins
from avalanche_agcn.evaluation.loggers import ProgressLogger


def multilabel_evaluator(
    *metrics: PluginMetric | Sequence[PluginMetric],
    loggers: BaseLogger | Sequence[BaseLogger] | None = None,
    train_map: bool = True,
    plots: bool = False,
    class_names: Sequence[str] | None = None,
    strict_checks: bool = False,
    **nested_settings: Any,
) -> EvaluationPlugin:
    """Return an evaluator: loss and mAP in training; loss, nested mAP, CF1, OF1 and forgetting in evaluation.

    After experience t, call ``strategy.eval(benchmark.test_stream[: t + 1])``: each image passes through the
    network once and every nested set 0..t is scored. `find_nested` returns the metric with the matrices.

    Args:
        *metrics: further plugin metrics.
        loggers: loggers; if None, a `ProgressLogger` on standard output, in the main process only.
        train_map: emit the mAP of each training epoch, which keeps and ranks the scores of all its images.
        plots: emit the learning curve and the ACM as plots, for TensorBoard and Weights & Biases.
        class_names: names of the columns; those of the benchmark if None.
        strict_checks: as in Avalanche: raise an error if an evaluation is not of a whole stream, which
            ``test_stream[: t + 1]`` is not.
        **nested_settings: ``threshold``, ``saved_graphs``, ``stages``, ``per_class``: see `nested_metrics`.

    Raises:
        ValueError: if a metric takes the argmax of its targets, such as accuracy.
    """
    if loggers is None:
        loggers = [ProgressLogger()] if DistributedHelper.is_main_process else []
    evaluator = EvaluationPlugin(
        plugins.loss_metrics(epoch=True, stream=True),
        plugins.mean_average_precision_metrics(epoch=train_map),
        plugins.nested_metrics(
            nested=True, stream=True, plot=plots, class_names=class_names, **nested_settings
        ),
        plugins.correlation_plot_metrics(class_names=class_names) if plots else [],
        *metrics,
        loggers=loggers,
        strict_checks=strict_checks,
    )
    check_no_argmax_metrics(evaluator)
    return evaluator
