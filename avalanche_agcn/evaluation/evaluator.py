"""The counterpart of Avalanche's ``default_evaluator``, with plugin metrics of the loss and the ACM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metrics.loss import LossPluginMetric
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.benchmarks.experience import check_no_argmax_metrics
from avalanche_agcn.evaluation import plugins
from avalanche_agcn.evaluation.loggers import ProgressLogger
from avalanche_agcn.evaluation.plots import Plot, correlation_heatmap


def multilabel_evaluator(
    *metrics: PluginMetric | Sequence[PluginMetric],
    loggers: BaseLogger | Sequence[BaseLogger] | None = None,
    train_map: bool = True,
    plots: bool = False,
    class_names: Sequence[str] | None = None,
    strict_checks: bool = False,
    threshold: float = 0.0,
    stages: bool = False,
    per_class: bool = False,
) -> EvaluationPlugin:
    """Return an evaluator: loss and mAP in training; loss, nested mAP, CF1, OF1 and forgetting in evaluation.

    After experience t, call ``strategy.eval(benchmark.test_stream[: t + 1])``: each image passes through the
    network once and every nested set 0..t is scored. `find_nested` returns the metric with the matrices.
    With another strategy the matrices start again: strategies that take turns need an evaluator each.

    Args:
        *metrics: further plugin metrics.
        loggers: if None, a `ProgressLogger` on standard output, in the main process only.
        train_map: emit the mAP of each training epoch, which keeps and ranks the scores of all its images.
        plots: emit the learning curve and the ACM as plots, for TensorBoard and Weights & Biases.
        class_names: names of the columns; those of the benchmark if None.
        strict_checks: as in Avalanche: raise an error if only part of a stream is evaluated, such as
            ``test_stream[: t + 1]``.
        threshold: of CF1 and OF1, in the unit of the model's output: 0.0 is p ≥ 0.5 for logits.
        stages: emit the metrics of papers with B protocols; see `nested_metrics`.
        per_class: emit the average precision of each class.
    """
    if loggers is None:
        loggers = [ProgressLogger()] if DistributedHelper.is_main_process else []
    evaluator = EvaluationPlugin(
        [LossPlugin("epoch"), LossPlugin("stream")],
        plugins.mean_average_precision_metrics(epoch=train_map),
        plugins.nested_metrics(
            nested=True,
            stream=True,
            threshold=threshold,
            stages=stages,
            per_class=per_class,
            plot=plots,
            class_names=class_names,
        ),
        correlation_plot_metrics(class_names=class_names) if plots else [],
        *metrics,
        loggers=loggers,
        strict_checks=strict_checks,
    )
    check_no_argmax_metrics(evaluator)
    plugins.check_loggers(evaluator.loggers)
    return evaluator


def correlation_plot_metrics(*, class_names: Sequence[str] | None = None) -> list[CorrelationPlot]:
    """Return a plugin metric that draws the ACM after each training experience (TensorBoard, W&B)."""
    return [CorrelationPlot(class_names)]


class CorrelationPlot(PluginMetric[Plot]):
    """Draws ``plugin.acm.matrix()`` of the strategy's `ACMPlugin`; emits nothing if there is none."""

    def __init__(self, class_names: Sequence[str] | None) -> None:
        super().__init__()
        self._class_names = class_names
        self.reset()

    def __str__(self) -> str:
        return "ACM"

    def reset(self) -> None:
        """Discard the last plot."""
        self._last: Plot | None = None

    def result(self) -> Plot | None:
        """Return the last plot."""
        return self._last

    def after_training_exp(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Draw the matrix at the end of the experience."""
        acm = _find_acm(strategy)
        if acm is None:
            return []
        names = self._class_names or plugins.benchmark_class_names(strategy)
        self._last = correlation_heatmap(
            {f"after experience {len(acm.block_sizes)}": acm.matrix().cpu()},
            class_names=None if names is None else names[: acm.n_seen],
            block_sizes=acm.block_sizes,
        )
        return plugins.metric_values(self, strategy, {("ACM", None): self._last})


def _find_acm(strategy: SupervisedTemplate) -> Any:
    """The correlation matrix of the strategy's `ACMPlugin`; None if it has no such plugin."""
    for plugin in strategy.plugins:
        acm = getattr(plugin, "acm", None)
        if hasattr(acm, "block_sizes"):
            return acm
    return None


class LossPlugin(LossPluginMetric):
    """Avalanche's metric of the loss, over all processes, in one of the `SCOPES`.

    Nothing is emitted for a loss of exactly 0: the method has none, such as `StreamingRidge` in training.
    """

    def __init__(self, scope: str) -> None:
        event, mode, self._suffix = plugins.SCOPES[scope]
        super().__init__(reset_at=event, emit_at=event, mode=mode)

    def __str__(self) -> str:
        return f"Loss_{self._suffix}"

    def update(self, strategy: SupervisedTemplate) -> None:
        """Add a batch, unless it is padding."""
        if not getattr(strategy, "is_padding", False):
            super().update(strategy)

    def _package_result(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        values: Any = super()._package_result(strategy)
        return [value for value in values if value.value != 0]

    def result(self) -> float:
        """Collective: return the mean over the images of all processes."""
        means = [self._metric._mean_loss]
        if DistributedHelper.is_distributed:
            means = DistributedHelper.gather_all_objects(means[0])
        return sum(means[1:], means[0]).result()
