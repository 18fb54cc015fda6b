"""Experiences of a multi-label stream, their targets, and checks of the strategies that train on them.

A cell of a target is 0, 1 or unlabelled. It is stored as a code in one byte (6.6 MB for the 82,783 training
images of COCO's 80 classes) and read as float32, NaN where unlabelled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks.scenarios.dataset_scenario import DatasetExperience
from avalanche.benchmarks.scenarios.generic_scenario import CLExperience
from avalanche.benchmarks.utils.data import AvalancheDataset
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from torch import Tensor, nn

from avalanche_agcn.benchmarks.image_files import Transform, find_normalisation
from avalanche_agcn.benchmarks.split import row_blocks
from avalanche_agcn.checks import cut, shorten

UNLABELLED = -1
"""Code of a cell whose label is unknown; read as NaN."""


def encode(targets: Any) -> Tensor:
    """Targets of 0, 1 and NaN, [images, classes], as int8 codes: of a tensor, an array, or rows of either."""
    matrix = _as_matrix(targets)
    if matrix.ndim != 2:
        raise ValueError(
            f"targets must be a 2-D matrix [images, classes] of 0 and 1, but have shape "
            f"{tuple(matrix.shape)}; torch.nn.functional.one_hot makes one of class indices."
        )
    if matrix.is_complex():
        raise ValueError(f"targets must be 0 or 1 (NaN where unlabelled), not of type {matrix.dtype}.")
    codes = torch.empty(matrix.shape, dtype=torch.int8)
    for rows in row_blocks(matrix):
        codes[rows] = _encode_block(matrix[rows], rows.start)
    return codes


def _encode_block(cells: Tensor, first_row: int) -> Tensor:
    unlabelled, positive = cells.isnan(), cells == 1
    wrong = ~(positive | (cells == 0) | unlabelled)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        cell = f"{cells[row, column].item()} for image {first_row + row}, class {column}"
        raise ValueError(f"targets must be 0 or 1 (NaN where unlabelled), but are {cell}.")
    return positive.to(torch.int8).masked_fill_(unlabelled, UNLABELLED)


def _as_matrix(targets: Any) -> Tensor:
    """Targets as one dense tensor; a ValueError says what else they are."""
    if isinstance(targets, np.ma.MaskedArray) or hasattr(targets, "get_mask"):  # torch's MaskedTensor
        raise ValueError(
            f"targets must be a matrix [images, classes] of 0 and 1, not a {type(targets).__name__}, whose "
            "mask would be lost: write NaN where a label is unknown."
        )
    try:
        if isinstance(targets, (list, tuple)) and targets and isinstance(targets[0], Tensor):
            matrix = torch.stack(list(targets))
        elif hasattr(targets, "toarray"):  # SciPy's sparse matrices
            matrix = torch.as_tensor(targets.toarray())
        else:
            matrix = torch.as_tensor(targets)
            # torch takes the length of the first row for that of all if it is empty.
            if matrix.ndim == 2 and not matrix.shape[1] and any(len(row) for row in targets):
                raise ValueError("its rows have different lengths")
        return matrix.to_dense() if matrix.layout is not torch.strided else matrix
    except (ValueError, TypeError, RuntimeError) as error:
        reason = shorten(" ".join(str(error).split()), 200).rstrip(".")
        raise ValueError(
            f"targets must be a matrix [images, classes] of 0 and 1, not {_describe_targets(targets)} "
            f"({reason}): set targets[image, class] = 1 in torch.zeros(n_images, n_classes), or write a CSV "
            "file for multilabel_csv."
        ) from None


def _describe_targets(targets: Any) -> str:
    """What targets are that are not a matrix."""
    if isinstance(targets, (list, tuple)) and targets:
        first = targets[0]
        example = list(first) if isinstance(first, (list, tuple, set)) else first
        return f"lists of labels such as {cut(repr(example))}"
    return "None" if targets is None else f"a {type(targets).__name__}"


def decode(codes: Tensor) -> Tensor:
    """Codes as float32 targets, NaN where unlabelled."""
    return codes.float().masked_fill_(codes == UNLABELLED, float("nan"))


class TargetRow(Tensor):
    """Targets of one image, as iterating over a `MultiLabelAttribute` yields them.

    Avalanche's class-balanced buffers group images by ``int(target)``; here it is the image's rarest class.
    """

    rarest_class: int | None = None

    def __int__(self) -> int:
        return super().__int__() if self.rarest_class is None else self.rarest_class


class MultiLabelAttribute(DataAttribute):
    """Avalanche's ``DataAttribute`` for targets with several labels per image.

    The base class hashes each sample's value, and a multi-hot row has no hash. Here the values are the
    classes: ``uniques`` are the columns with at least one positive, ``val_to_idx`` lists a column's positive
    samples and ``count`` their number. ``data`` is an [N, C] tensor or array of 0, 1 and NaN.

    Example:
        >>> targets = MultiLabelAttribute(torch.tensor([[1, 0, 1], [0, 0, 1]]))
        >>> targets.uniques, targets.val_to_idx, targets.count
        ({0, 2}, {0: [0], 2: [0, 1]}, {0: 1, 2: 2})
        >>> targets.subset([1])[0]
        tensor([0., 0., 1.])
    """

    def __init__(
        self, data: Tensor | np.ndarray, name: str = "targets", use_in_getitem: bool = False
    ) -> None:
        self.codes = encode(data)
        self.name = name
        self.use_in_getitem = use_in_getitem

    @classmethod
    def from_codes(
        cls, codes: Tensor, name: str = "targets", use_in_getitem: bool = False
    ) -> MultiLabelAttribute:
        """An attribute that holds ``codes`` themselves, neither checked nor copied."""
        new = cls(torch.empty(0, 0), name, use_in_getitem)
        new.codes = codes
        return new

    @property
    def data(self) -> Tensor:
        """All targets, float32 [N, C], NaN where unlabelled; a new tensor on each access."""
        return decode(self.codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, item: Any) -> Tensor:
        return decode(self.codes[item])

    def __iter__(self) -> Iterator[TargetRow]:
        """Yield the targets of each image; see `TargetRow`."""
        for row, rarest in zip(self.data, self.rarest_classes().tolist(), strict=True):
            target = row.as_subclass(TargetRow)
            target.rarest_class = rarest
            yield target

    def rarest_classes(self) -> Tensor:
        """Each image's class with the fewest positives among these images; -1 if it has no positive."""
        positive = self.codes == 1
        counts = positive.sum(0).expand_as(positive)
        never = len(self) + 1  # more than any count
        fewest, column = counts.masked_fill(~positive, never).min(1)
        return column.masked_fill(fewest == never, -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.data.numpy() if dtype is None else self.data.numpy().astype(dtype)

    def __repr__(self) -> str:
        samples, classes = self.codes.shape
        return f"MultiLabelAttribute({self.name!r}, {samples} samples, {classes} classes)"

    __str__ = __repr__

    @property
    def uniques(self) -> set[int]:
        """Classes with at least one positive."""
        return set(self.count)

    @property
    def count(self) -> dict[int, int]:
        """Number of positives of each class that has one."""
        positives = (self.codes == 1).sum(0).tolist()
        return {column: n for column, n in enumerate(positives) if n}

    @cached_property
    def val_to_idx(self) -> dict[int, list[int]]:
        """Positions of the positives of each class that has one."""
        count = self.count
        _, rows = (self.codes == 1).T.nonzero(as_tuple=True)  # sorted by column
        parts = rows.split(list(count.values()))
        return {column: part.tolist() for column, part in zip(count, parts, strict=True)}

    def subset(self, indices: Sequence[int] | Tensor) -> MultiLabelAttribute:
        """The rows at ``indices``, in that order."""
        if not isinstance(indices, (Tensor, np.ndarray, list)):
            indices = list(indices)
        rows = self.codes[torch.as_tensor(indices, dtype=torch.long)]
        return self.from_codes(rows, self.name, self.use_in_getitem)

    def concat(self, other: DataAttribute) -> MultiLabelAttribute:
        """These rows followed by those of ``other``, which must have the same name and classes."""
        if len(other) == 0:
            return self
        same_type = isinstance(other, MultiLabelAttribute) and other.name == self.name
        if not same_type or other.codes.shape[1] != self.codes.shape[1]:
            raise ValueError(
                f"Cannot append {other!r} to {self!r}: give both the same type, name and classes."
            )
        return self.from_codes(torch.cat([self.codes, other.codes]), self.name, self.use_in_getitem)


class MultiLabelExperience(DatasetExperience):
    """Images of one experience and the block of target columns it owns.

    As in Avalanche, ``classes_in_this_experience``, ``previous_classes``, ``classes_seen_so_far`` and
    ``future_classes`` are lists of columns.

    Attributes:
        n_classes_seen: length of ``classes_seen_so_far``. Avalanche's ``with_classes_timeline`` replaces the
            four lists by the classes found in the labels, which for test images include later ones, but does
            not change this number.
        n_own_classes: length of ``classes_in_this_experience``, likewise.
        task_labels: ``[0]``. Without it Avalanche's train loader gives every process all images and ignores
            the dataset's ``collate_fn``.
    """

    def __init__(
        self, dataset: AvalancheDataset, current_experience: int, own_columns: range, *, n_classes: int
    ) -> None:
        super().__init__(dataset=dataset, current_experience=current_experience)
        self.classes_in_this_experience = list(own_columns)
        self.previous_classes = list(range(own_columns.start))
        self.classes_seen_so_far = list(range(own_columns.stop))
        self.future_classes = list(range(own_columns.stop, n_classes))
        self.n_classes_seen = own_columns.stop
        self.n_own_classes = len(own_columns)
        self.task_label = 0
        self.task_labels = [0]


def origin_of(experience: Any) -> Any:
    """The experience that a piece of Avalanche's ``split_online_stream`` was cut from; a whole one itself."""
    origin = getattr(experience, "origin_experience", None)
    return experience if origin is None else origin


def count_seen(experience: CLExperience) -> int:
    """Number of classes seen up to and including an experience, or the one it was cut from."""
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
    """Check that an experience is not a piece of one, for methods that need all its images at its end."""
    if origin_of(experience) is not experience:
        raise ValueError(
            f"{method} sums up each experience at its end, but this is a piece of one, of "
            f"{len(experience.dataset)} images, from an online stream. Train on the benchmark's own "
            "train_stream with train_epochs=1: this is also online, batch by batch."
        )


def check_no_skipped_experience(experience: Any, n_counted: int, counter: str) -> None:
    """Check that ``counter``, which counts classes batch by batch, was active in all earlier experiences."""
    n_seen = count_seen(experience)
    n_new = _count_new(experience)
    if n_new is not None and n_seen - n_counted > n_new:
        raise ValueError(
            f"{n_seen} classes were seen so far, {n_new} of them in this experience, but {counter} has "
            f"counted {n_counted}: train on all experiences with this plugin, or load its state_dict with "
            "that of the model."
        )


def _count_new(experience: Any) -> int | None:
    """Number of classes that an experience adds; None if it has no image to tell."""
    origin = origin_of(experience)
    if isinstance(origin, MultiLabelExperience):  # its targets may be 0 where they are not labelled
        return origin.n_own_classes
    targets = getattr(experience.dataset, "targets", [])
    if len(targets) == 0:
        return None
    return int((~torch.as_tensor(targets[0]).isnan()).sum())


# Modules of avalanche.evaluation.metrics that compare argmaxes, and what to use instead.
_REPLACEMENT_OF = {
    "accuracy": "mean_average_precision_metrics(...), f1_metrics(...)",
    "amca": "mean_average_precision_metrics(...), f1_metrics(...)",
    "cumulative_accuracies": "mean_average_precision_metrics(...), f1_metrics(...)",
    "mean_scores": "mean_average_precision_metrics(...), f1_metrics(...)",
    "class_accuracy": "mean_average_precision_metrics(..., per_class=True)",
    "confusion_matrix": "mean_average_precision_metrics(..., per_class=True)",
    "acc_matrix": "nested_metrics(...)",
    "forgetting_bwt": "nested_metrics(...)",
    "forward_transfer": "nested_metrics(...)",
    "topk_acc": "f1_metrics(..., top_k=3)",
}
ONE_LABEL = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
COMPLETE_LABELS = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MultiLabelSoftMarginLoss, nn.MSELoss)


def check_strategy(strategy: Any) -> None:
    """Check a strategy's metrics and, while it trains, its criterion and the normalisation of its images.

    Avalanche has no hook for benchmarks, and one of its own strategies would silently report the accuracy of
    argmaxes, or a loss of NaN. So the strategies, plugins and metrics of this package call this function when
    an experience is known, before they train on it, and before an evaluation.
    """
    check_no_argmax_metrics(strategy)
    if not strategy.is_training:
        return
    targets = getattr(strategy.experience.dataset, "targets", None)
    if not isinstance(targets, MultiLabelAttribute):
        return
    check_criterion(strategy._criterion, complete=not bool((targets.codes == UNLABELLED).any()))
    stream = getattr(origin_of(strategy.experience), "origin_stream", None)
    plan = getattr(getattr(stream, "benchmark", None), "plan", None)
    if plan is not None:
        check_normalisation(strategy.model, plan.eval_transform)


def check_no_argmax_metrics(source: Any) -> None:
    """Reject metrics that take the argmax of multi-hot targets, and so silently give meaningless numbers.

    Avalanche's accuracy does this, and so does every metric built on it; ``default_evaluator`` contains it.
    The ``source`` is a strategy, an `EvaluationPlugin` or a list of metrics.
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
    """Reject PyTorch's losses that do not work on multi-hot targets, of which all are labelled or not."""
    if isinstance(criterion, ONE_LABEL) or (isinstance(criterion, COMPLETE_LABELS) and not complete):
        reason = "for one label per image" if isinstance(criterion, ONE_LABEL) else "NaN where unlabelled"
        raise ValueError(
            f"{type(criterion).__name__} is {reason}: pass criterion=PartialBCEWithLogitsLoss(), of "
            "avalanche_agcn.training."
        )


def check_normalisation(model: Any, transform: Transform | None) -> None:
    """Warn if images are normalised differently from those a backbone of `create_backbone` was trained on."""
    unwrapped = getattr(model, "module", model)  # of DistributedDataParallel
    backbone: Any = getattr(unwrapped, "backbone", None)
    step = find_normalisation(transform)
    if step is None or not getattr(backbone, "pretrained", False):
        return
    used, expected = [*step.mean, *step.std], [*backbone.mean, *backbone.std]
    if len(used) != len(expected) or not np.allclose(used, expected, atol=0.01):
        warnings.warn(
            f"Images are normalised with mean and std {used}, but the network was trained with {expected}: "
            "make the benchmark with backbone=backbone, or transforms with mean=backbone.mean and "
            "std=backbone.std.",
            stacklevel=1,  # one place for all that check, so that Python shows it once
        )
