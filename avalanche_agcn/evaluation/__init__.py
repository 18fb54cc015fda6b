"""Evaluation with several labels an image: mAP, CF1, OF1, nested scores and forgetting.

``functional`` has the maths and imports torch and NumPy only; the rest is imported when it is first used,
since what is made for Avalanche takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avalanche_agcn.evaluation.csv_logger import MultiLabelCSVLogger
    from avalanche_agcn.evaluation.evaluator import multilabel_evaluator
    from avalanche_agcn.evaluation.figure_metrics import correlation_figure_metrics
    from avalanche_agcn.evaluation.figures import class_heatmap, correlation_heatmap, learning_curve
    from avalanche_agcn.evaluation.guard import refuse_stock_accuracy
    from avalanche_agcn.evaluation.metrics import AveragePrecision, MeanAveragePrecision, MultiLabelF1
    from avalanche_agcn.evaluation.nested import NestedMetric, PerSetMetric, nested_scores
    from avalanche_agcn.evaluation.nested_metrics import find_nested, forgetting_metrics
    from avalanche_agcn.evaluation.pictures import LabelledPicture, labelled_pictures
    from avalanche_agcn.evaluation.plugin_metrics import f1_metrics, mean_average_precision_metrics
    from avalanche_agcn.evaluation.progress import ProgressLogger
    from avalanche_agcn.evaluation.wandb_logger import MultiLabelWandBLogger

_HOMES = {
    "AveragePrecision": "metrics",
    "LabelledPicture": "pictures",
    "MeanAveragePrecision": "metrics",
    "MultiLabelCSVLogger": "csv_logger",
    "MultiLabelF1": "metrics",
    "MultiLabelWandBLogger": "wandb_logger",
    "NestedMetric": "nested",
    "PerSetMetric": "nested",
    "ProgressLogger": "progress",
    "class_heatmap": "figures",
    "correlation_figure_metrics": "figure_metrics",
    "correlation_heatmap": "figures",
    "f1_metrics": "plugin_metrics",
    "find_nested": "nested_metrics",
    "forgetting_metrics": "nested_metrics",
    "labelled_pictures": "pictures",
    "learning_curve": "figures",
    "mean_average_precision_metrics": "plugin_metrics",
    "multilabel_evaluator": "evaluator",
    "nested_scores": "nested",
    "refuse_stock_accuracy": "guard",
}

__all__ = [
    "AveragePrecision",
    "LabelledPicture",
    "MeanAveragePrecision",
    "MultiLabelCSVLogger",
    "MultiLabelF1",
    "MultiLabelWandBLogger",
    "NestedMetric",
    "PerSetMetric",
    "ProgressLogger",
    "class_heatmap",
    "correlation_figure_metrics",
    "correlation_heatmap",
    "f1_metrics",
    "find_nested",
    "forgetting_metrics",
    "labelled_pictures",
    "learning_curve",
    "mean_average_precision_metrics",
    "multilabel_evaluator",
    "nested_scores",
    "refuse_stock_accuracy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
