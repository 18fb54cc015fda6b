"""Refuse what would report nonsense without a word: metrics that take the argmax of a multi-hot target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["refuse_stock_accuracy"]

_SCORES = "mean_average_precision_metrics(...) and f1_metrics(...)"
# Modules of avalanche.evaluation.metrics that compare argmaxes, and what to use in their place.
REPLACEMENTS = {
    "accuracy": _SCORES,
    "acc_matrix": "forgetting_metrics(nested=True)",
    "amca": _SCORES,
    "class_accuracy": "mean_average_precision_metrics(..., per_class=True)",
    "confusion_matrix": "mean_average_precision_metrics(..., per_class=True)",
    "cumulative_accuracies": _SCORES,
    "forgetting_bwt": "forgetting_metrics(...)",
    "forward_transfer": "forgetting_metrics(...)",
    "mean_scores": _SCORES,
    "topk_acc": "f1_metrics(..., top_k=3)",
}


def refuse_stock_accuracy(source: Any) -> None:
    """Raise if a metric of the evaluator takes the argmax of multi-hot targets.

    Avalanche's accuracy, and all that is built on it, does so and returns a number that means nothing;
    ``default_evaluator`` has it. The metrics of this package call this before training and evaluation.

    Args:
        source: A strategy, an `EvaluationPlugin` or its metrics.

    Raises:
        ValueError: If there is one; the message says what to use in its place.

    Example:
        >>> from avalanche.training.plugins.evaluation import default_evaluator
        >>> refuse_stock_accuracy(default_evaluator())
        Traceback (most recent call last):
        ...
        ValueError: Top1_Acc_Epoch (EpochAccuracy) takes the argmax of multi-hot targets, which ...
    """
    evaluator = getattr(source, "evaluator", source)
    for metric in _flatten(getattr(evaluator, "metrics", evaluator)):
        modules = {ancestor.__module__ for ancestor in type(metric).__mro__}
        for module, replacement in REPLACEMENTS.items():
            if f"avalanche.evaluation.metrics.{module}" in modules:
                raise ValueError(
                    f"{metric} ({type(metric).__name__}) takes the argmax of multi-hot targets, which means "
                    f"nothing; use evaluator=multilabel_evaluator(), or {replacement} of "
                    "avalanche_agcn.evaluation in its place"
                )


def _flatten(metrics: Iterable[Any]) -> Iterable[Any]:
    for metric in metrics:
        if isinstance(metric, (list, tuple)):
            yield from _flatten(metric)
        else:
            yield metric
