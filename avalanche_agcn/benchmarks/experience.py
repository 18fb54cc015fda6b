"""The experience of a multi-label stream, checks of strategies that read it, and functions about it."""

import sys
import warnings
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.scenarios.dataset_scenario import DatasetExperience
from avalanche.benchmarks.scenarios.generic_scenario import CLExperience
from avalanche.benchmarks.utils.data import AvalancheDataset
from avalanche.training.templates.base_sgd import BaseSGDTemplate
from torch import nn

from avalanche_agcn.benchmarks.image_files import Transform, find_normalisation
from avalanche_agcn.benchmarks.targets import UNLABELLED

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


class MultiLabelExperience(DatasetExperience):
    """Images of one experience and the block of target columns it owns.

    Attributes:
        classes_in_this_experience: the experience's own columns.
        previous_classes: columns of all earlier experiences.
        classes_seen_so_far: columns of this and all earlier experiences.
        future_classes: columns of all later experiences.
        n_classes_seen: length of ``classes_seen_so_far``. Avalanche's ``with_classes_timeline`` replaces the
            four lists by what the labels show, which for test images includes later classes; not this number.
        n_own_classes: length of ``classes_in_this_experience``, likewise.
        task_labels: ``[0]``. Without it Avalanche's train loader gives every process all images and ignores
            the dataset's ``collate_fn``.
        task_label: 0, likewise.

    Args:
        dataset: the images with their targets.
        current_experience: position in the stream.
        own_columns: the columns this experience adds.
        n_classes: number of columns of a target.
    """

    def __init__(
        self, *, dataset: AvalancheDataset, current_experience: int, own_columns: range, n_classes: int
    ) -> None:
        super().__init__(dataset=dataset, current_experience=current_experience)
        self.classes_in_this_experience = list(own_columns)
        self.previous_classes = list(range(own_columns.start))
        self.classes_seen_so_far = list(range(own_columns.stop))
        self.future_classes = list(range(own_columns.stop, n_classes))
        self.n_classes_seen, self.n_own_classes = own_columns.stop, len(own_columns)
        self.task_label, self.task_labels = 0, [0]

    @property
    def dataset(self) -> AvalancheDataset:
        """The images; a strategy that reads them is checked first: metrics, criterion, normalisation.

        Avalanche gives benchmarks no hook, and a strategy without anything of this package would silently
        report the accuracy of argmaxes, or a loss of NaN.
        """
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_locals.get("self") is self:  # Avalanche's attribute access
            frame = frame.f_back
        reader = frame.f_locals.get("self")
        if isinstance(reader, BaseSGDTemplate):
            check_no_argmax_metrics(reader)
            if reader.is_training:
                labelled = not bool((self._dataset.targets.codes == UNLABELLED).any())
                check_criterion(reader._criterion, complete=labelled)
                plan = getattr(getattr(self.origin_stream, "benchmark", None), "plan", None)
                check_normalisation(reader.model, getattr(plan, "eval_transform", None))
        return self._dataset


def origin_of(experience: Any) -> Any:
    """The experience that a piece of an online stream was cut from; a whole experience itself.

    Args:
        experience: an experience of a stream, or of Avalanche's ``split_online_stream``.
    """
    origin = getattr(experience, "origin_experience", None)
    return experience if origin is None else origin


def count_seen(experience: CLExperience) -> int:
    """Number of classes seen up to and including an experience, or the one it is a piece of.

    Raises:
        ValueError: if the experience does not know them, or they are not the first columns of the targets.
    """
    experience = origin_of(experience)
    classes = getattr(experience, "classes_seen_so_far", None)
    if classes is None:
        raise ValueError(
            f"{type(experience).__name__} has no `classes_seen_so_far`; make the benchmark with "
            "multilabel_benchmark(...), or let Avalanche's with_classes_timeline(benchmark) find the classes."
        )
    if isinstance(experience, MultiLabelExperience):
        return experience.n_classes_seen
    seen = sorted(classes)
    if seen != list(range(len(seen))):
        raise ValueError(
            f"The classes seen so far are columns {seen}, but they must be the first {len(seen)} columns of "
            "the targets: multilabel_benchmark(...) numbers classes in order of appearance."
        )
    return len(seen)


def check_whole_experience(experience: Any, method: str) -> None:
    """Check that an experience is not a piece of one, for methods that work at an experience's end.

    Args:
        experience: what is to be trained on.
        method: name of the method, for the message.
    """
    if origin_of(experience) is not experience:
        raise ValueError(
            f"{method} sums up each experience at its end, but this is a piece of one, of "
            f"{len(experience.dataset)} images, from an online stream. Train on the benchmark's own "
            "train_stream with train_epochs=1: that is online too, batch by batch."
        )


def check_no_skipped_experience(experience: Any, n_counted: int, counter: str) -> None:
    """Check that what counts classes batch by batch was there in all earlier experiences.

    Args:
        experience: what is to be trained on.
        n_counted: number of classes counted so far.
        counter: what counts them, for the message.
    """
    n_seen, n_own = count_seen(experience), _count_labelled(experience)
    if n_own is not None and n_seen - n_counted > n_own:
        raise ValueError(
            f"{n_seen} classes were seen so far, {n_own} of them in this experience, but {counter} has "
            f"counted {n_counted}: train on all experiences with this plugin, or load its state_dict with "
            "that of the model."
        )


def _count_labelled(experience: Any) -> int | None:
    """Number of classes that the images of an experience are labelled for; None without images."""
    origin = origin_of(experience)
    if isinstance(origin, MultiLabelExperience):  # its targets may be 0 where they are not labelled
        return origin.n_own_classes
    targets: Any = getattr(experience.dataset, "targets", ())
    return int((~torch.as_tensor(targets[0]).isnan()).sum()) if len(targets) else None


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
    backbone: Any = getattr(getattr(model, "module", model), "backbone", None)
    step = find_normalisation(transform)
    if step is None or not getattr(backbone, "pretrained", False):
        return
    used, expected = [*step.mean, *step.std], [*backbone.mean, *backbone.std]
    if len(used) != len(expected) or not np.allclose(used, expected, atol=0.01):
        warnings.warn(
            f"Images are normalised with mean and std {used}, but the network was trained with {expected}: "
            "make the benchmark with backbone=backbone, or transforms with mean=backbone.mean and "
            "std=backbone.std.",
            stacklevel=4,
        )
