"""Evaluation of images with several labels: mAP, ROC-AUC, CF1, OF1, nested scores and forgetting.

``functional`` and ``plots`` have further functions. Names are imported when used: Avalanche takes seconds.
"""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from .evaluator import correlation_plot_metrics, multilabel_evaluator
    from .loggers import MultiLabelCSVLogger, MultiLabelWandBLogger, ProgressBar, ProgressLogger
    from .metrics import (
        ROCAUC,
        AveragePrecision,
        MeanAveragePrecision,
        MeanROCAUC,
        MultiLabelF1,
        NestedMetric,
    )
    from .plugins import (
        f1_metrics,
        find_nested,
        mean_average_precision_metrics,
        nested_metrics,
        roc_auc_metrics,
    )

__all__ = [
    "ROCAUC",
    "AveragePrecision",
    "MeanAveragePrecision",
    "MeanROCAUC",
    "MultiLabelCSVLogger",
    "MultiLabelF1",
    "MultiLabelWandBLogger",
    "NestedMetric",
    "ProgressBar",
    "ProgressLogger",
    "correlation_plot_metrics",
    "f1_metrics",
    "find_nested",
    "mean_average_precision_metrics",
    "multilabel_evaluator",
    "nested_metrics",
    "roc_auc_metrics",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "evaluation.evaluator": "correlation_plot_metrics multilabel_evaluator",
        "evaluation.loggers": "MultiLabelCSVLogger MultiLabelWandBLogger ProgressBar ProgressLogger",
        "evaluation.metrics": "AveragePrecision MeanAveragePrecision MeanROCAUC MultiLabelF1 NestedMetric "
        "ROCAUC",
        "evaluation.plugins": "f1_metrics find_nested mean_average_precision_metrics nested_metrics "
        "roc_auc_metrics",
    },
)
