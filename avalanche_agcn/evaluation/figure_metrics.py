"""The Augmented Correlation Matrix as a figure in the loggers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue

from avalanche_agcn.evaluation.batches import benchmark_class_names, metric_name
from avalanche_agcn.evaluation.figures import TextFigure, correlation_heatmap

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

__all__ = ["CorrelationFigure", "correlation_figure_metrics"]


def correlation_figure_metrics(*, class_names: Sequence[str] | None = None) -> list[CorrelationFigure]:
    """Plugin metric that draws the ACM after each experience of training, for TensorBoard and W&B.

    Args:
        class_names: Names of the columns; those of the benchmark if None.
    """
    return [CorrelationFigure(class_names=class_names)]


class CorrelationFigure(PluginMetric[TextFigure]):
    """Draws ``plugin.acm.matrix()`` of the strategy's `ACMPlugin`; without one it emits nothing.

    Args:
        class_names: Names of the columns; those of the benchmark if None.
    """

    def __init__(self, *, class_names: Sequence[str] | None = None) -> None:
        super().__init__()
        self._class_names = class_names
        self.reset()

    def __str__(self) -> str:
        return "ACM"

    def reset(self) -> None:
        """Forget the last figure."""
        self._last: TextFigure | None = None

    def result(self) -> TextFigure | None:
        """The last figure."""
        return self._last

    def after_training_exp(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Draw the matrix as the experience left it."""
        acm = _find_acm(strategy)
        if acm is None:
            return []
        names = self._class_names or benchmark_class_names(strategy)
        self._last = correlation_heatmap(
            {f"after experience {len(acm.block_sizes)}": acm.matrix().cpu()},
            class_names=None if names is None else names[: acm.n_seen],
            block_sizes=acm.block_sizes,
        )
        return [MetricValue(self, metric_name("ACM", strategy), self._last, strategy.clock.train_iterations)]


def _find_acm(strategy: SupervisedTemplate) -> Any:
    """The `AugmentedCorrelationMatrix` of the first plugin that has one."""
    matrices = (getattr(plugin, "acm", None) for plugin in strategy.plugins)
    return next((acm for acm in matrices if hasattr(acm, "block_sizes")), None)
