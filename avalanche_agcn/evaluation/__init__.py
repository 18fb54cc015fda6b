"""Evaluation of images with several labels: mAP, CF1, OF1, nested scores and forgetting.

``functional`` and ``plots`` have further functions. Names are imported when used: Avalanche takes seconds.
"""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_getattr

if TYPE_CHECKING:
    from .evaluator import correlation_plot_metrics, multilabel_evaluator
    from .loggers import MultiLabelCSVLogger, MultiLabelWandBLogger, ProgressBar, ProgressLogger
    from .metrics import AveragePrecision, MeanAveragePrecision, MultiLabelF1, NestedMetric, PerSetMetric
    from .plugins import f1_metrics, find_nested, mean_average_precision_metrics, nested_metrics

__all__ = [
    "AveragePrecision",
    "MeanAveragePrecision",
    "MultiLabelCSVLogger",
    "MultiLabelF1",
    "MultiLabelWandBLogger",
    "NestedMetric",
    "PerSetMetric",
    "ProgressBar",
    "ProgressLogger",
    "correlation_plot_metrics",
    "f1_metrics",
    "find_nested",
    "mean_average_precision_metrics",
    "multilabel_evaluator",
    "nested_metrics",
]

__getattr__ = lazy_getattr(__name__, "metrics", "plugins", "loggers", "evaluator")
