"""Checks of what is trained on multi-hot targets: metrics and losses that would silently be meaningless."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from avalanche_agcn.benchmarks.image_files import Transform
from avalanche_agcn.benchmarks.transforms import describe_transform

# Modules of avalanche.evaluation.metrics that compare argmaxes, and what to use instead.
_REPLACEMENTS = {
    "accuracy amca cumulative_accuracies mean_scores": "mean_average_precision_metrics(...), f1_metrics(...)",
    "class_accuracy confusion_matrix": "mean_average_precision_metrics(..., per_class=True)",
    "acc_matrix forgetting_bwt forward_transfer": "nested_metrics(...)",
    "topk_acc": "f1_metrics(..., top_k=3)",
}
_REPLACEMENT_OF = {name: new for names, new in _REPLACEMENTS.items() for name in names.split()}
ONE_LABEL = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
COMPLETE_LABELS = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MultiLabelSoftMarginLoss, nn.MSELoss)


def check_no_argmax_metrics(source: Any) -> None:
    """Reject metrics that take the argmax of multi-hot targets, and so silently give meaningless numbers.

    Avalanche's accuracy does this, and every metric that is built on it; ``default_evaluator`` contains it.
    The metrics of this package call this function before training and evaluation, and so do experiences when
    a strategy reads their images. The ``source`` is a strategy, an `EvaluationPlugin` or a list of metrics.
    """
    evaluator = getattr(source, "evaluator", source)
    for metric in getattr(evaluator, "metrics", evaluator):
        for ancestor in type(metric).__mro__:
            package, _, module = ancestor.__module__.rpartition(".")
            if package == "avalanche.evaluation.metrics" and module in _REPLACEMENT_OF:
                raise ValueError(
                    f"{metric} ({type(metric).__name__}) takes the argmax of multi-hot targets, which is "
                    "meaningless; use evaluator=multilabel_evaluator(), or of avalanche_agcn.evaluation "
                    f"{_REPLACEMENT_OF[module]}."
                )


def check_criterion(criterion: Any, *, complete: bool = False) -> None:
    """Reject losses of PyTorch that cannot work on multi-hot targets with unlabelled cells.

    Args:
        criterion: the loss.
        complete: whether all cells are labelled, so that binary cross-entropy can be used.
    """
    if isinstance(criterion, ONE_LABEL) or (isinstance(criterion, COMPLETE_LABELS) and not complete):
        why = "is for one label per image" if isinstance(criterion, ONE_LABEL) else "is NaN where unlabelled"
        raise ValueError(
            f"{type(criterion).__name__} {why}: pass criterion=PartialBCEWithLogitsLoss(), of "
            "avalanche_agcn.training."
        )


def check_normalisation(model: Any, transform: Transform | None) -> None:
    """Warn of images that are normalised otherwise than those that the network's weights were trained on.

    Args:
        model: model with a ``backbone`` of `create_backbone`; others are not checked.
        transform: of the images in evaluation.
    """
    backbone = getattr(getattr(model, "module", model), "backbone", None)
    used = [step for step in describe_transform(transform) or [] if "mean" in step]
    if not getattr(backbone, "pretrained", False) or len(used) != 1:
        return
    found = [*used[0]["mean"], *used[0]["std"]]
    expected = [*backbone.mean, *backbone.std]  # type: ignore[union-attr]
    if len(found) != len(expected) or max(abs(a - b) for a, b in zip(found, expected, strict=True)) > 0.01:
        warnings.warn(
            f"The images are normalised with mean and std {found}, but the network was trained with "
            f"{expected}: pass transforms with mean=backbone.mean and std=backbone.std.",
            stacklevel=4,
        )
