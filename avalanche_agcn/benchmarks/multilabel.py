"""Class-incremental benchmarks from any images with several labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple
from typing import Protocol as Interface

import torch
from avalanche.benchmarks.scenarios.generic_scenario import CLScenario, EagerCLStream
from avalanche.benchmarks.utils.classification_dataset import TaskAwareSupervisedClassificationDataset
from avalanche.benchmarks.utils.data_attribute import DataAttribute, TaskLabels
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from avalanche.benchmarks.utils.transform_groups import TransformGroups
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from avalanche_agcn.benchmarks import split
from avalanche_agcn.benchmarks.experience import (
    UNLABELLED,
    MultiLabelAttribute,
    MultiLabelExperience,
    decode,
    encode,
)
from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.checks import NAME, check_whole_number, is_name, listed, same_spelling, shown


class MultiLabelSource(Interface):
    """Data of a benchmark: ``source[i][0]`` is an image, ``targets`` an N×C matrix of 0 and 1."""

    @property
    def targets(self) -> Any:
        """Labels of all images."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, ...]: ...


def image_name(source: MultiLabelSource, position: int) -> str:
    """Name of an image within its source: what ``source.image_name`` returns, or its number."""
    named = getattr(source, "image_name", None)
    return str(position) if named is None else named(position)


class Images(NamedTuple):
    """Images of a stream."""

    source: MultiLabelSource
    labels: Tensor  # [N, C] int8 of 0 and 1, of all images of the source, columns in order of appearance
    positions: Sequence[Tensor]  # of each experience's images in the source

    def first(self, n: int) -> Images:
        """The first ``n`` images of each experience."""
        return self._replace(positions=[positions[:n] for positions in self.positions])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a benchmark is made from: which image goes where, with which labels."""

    train: Images  # labels outside of an experience's own columns are only for the complete training set
    evaluation: Mapping[str, Images]  # by name of the stream
    class_names: Sequence[str]
    protocol: Protocol
    train_transform: Transform | None = None
    eval_transform: Transform | None = None
    labels_complete: bool = True  # whether the training labels of other experiences are known

    @property
    def columns(self) -> list[range]:
        """The columns each experience adds."""
        assert self.protocol.classes_per_experience is not None
        return split.own_columns(self.protocol.classes_per_experience)

    def limited(self, n: int) -> Plan:
        """The same with only the first ``n`` images of each experience."""
        if n < 1:
            raise ValueError(f"The limit must be at least 1 image per experience, not {n}.")
        evaluation = {name: images.first(n) for name, images in self.evaluation.items()}
        return replace(self, train=self.train.first(n), evaluation=evaluation)


class MultiLabelBenchmark(CLScenario):
    """A class-incremental benchmark over images with several labels, made from a plan.

    Attributes:
        train_stream: experience t has labels for its own classes only; a target is float32 [n_classes],
            0 or 1 there and NaN elsewhere (0 with ``unlabelled_as_negative``).
        test_stream: experience i has the images that first become relevant at i, with all their labels.
            Nested test set i is therefore ``test_stream[: i + 1]``, with the classes seen so far.
        valid_stream: like the test stream, from images held out of training; only with a validation size.
        class_names: name of each column, in order of appearance; ``n_classes`` of them.
        classes_per_experience: number of columns each experience adds.
        protocol: the conventions of the benchmark; printing it gives a line for each.

    Raises:
        ValueError: if an experience has no training image.
    """

    def __init__(self, plan: Plan) -> None:
        _check_train_images(plan)
        streams = [_make_train_stream(plan)]
        for name, images in plan.evaluation.items():
            streams.append(_make_evaluation_stream(name, images, plan))
        super().__init__(streams)
        for stream in streams:
            stream.benchmark = self  # where metrics find the class names
        self.plan = plan
        self.protocol = plan.protocol
        self.class_names = list(plan.class_names)
        self.n_classes = len(self.class_names)
        self.classes_per_experience = [len(columns) for columns in plan.columns]
        self.n_experiences = len(self.classes_per_experience)

    @cached_property
    def complete_train_dataset(self) -> TaskAwareSupervisedClassificationDataset:
        """The images of the train stream, each once, with all their labels: for joint training."""
        if not self.plan.labels_complete:
            raise ValueError(
                "The complete training labels are not known: the split lists have each image's labels of its "
                "own experience only; put the data set's annotation files beside the images."
            )
        source, labels, positions = self.plan.train
        every = torch.cat(list(positions)).unique()
        return _make_dataset(source, every, labels[every], self.plan)

    def __repr__(self) -> str:
        parts = []
        for name, stream in self.streams.items():
            n_images = sum(len(experience.dataset) for experience in stream)
            parts.append(f"{n_images} {name}")
        classes = "1 class" if self.n_classes == 1 else f"{self.n_classes} classes"
        experiences = "1 experience" if self.n_experiences == 1 else f"{self.n_experiences} experiences"
        shape = f"{classes} in {experiences}"
        return f"{type(self).__name__}({shape}; images: {', '.join(parts)})"


def multilabel_benchmark(
    train_dataset: MultiLabelSource,
    test_dataset: MultiLabelSource,
    *,
    n_experiences: int | None = None,
    classes_per_experience: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    class_order: split.ClassOrder | None = None,
    repeat_images: bool = False,
    assignment: split.Assignment = "rarest",
    unlabelled_as_negative: bool = False,
    test_images: split.TestImages = "seen",
    validation_size: float | int = 0,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    seed: int = 0,
) -> MultiLabelBenchmark:
    """Make a class-incremental benchmark from two datasets with multi-hot targets.

    An image whose labels belong to several experiences appears **once**, in the experience of its rarest
    class (``assignment="rarest"``) or of one of its classes drawn at random (``"random"``); an experience
    that this would leave empty gets an image that has one of its labels. With ``repeat_images=True`` it
    returns with every experience it has a label of. Either way only the experience's own columns are
    labelled; the others are NaN, or 0 with ``unlabelled_as_negative``. Images without any label are skipped.

    Args:
        train_dataset: training images with ``targets``, an N×C matrix of 0 and 1.
        test_dataset: test images with the same C classes.
        n_experiences: number of experiences with equally many classes.
        classes_per_experience: instead, the number of classes of each: ``[40, 10, 10, 10, 10]`` is the
            protocol written B40-C10 in the literature.
        class_names: names of the C columns of ``targets``; by default the train dataset's ``class_names``,
            or ``"class 0"`` and so on.
        class_order: columns or names in order of appearance, ``"alphabetical"``, or ``"shuffled-3"``, drawn
            with seed 3; by default the order of the columns.
        repeat_images: whether images return, as above.
        assignment: the rule for images that appear once.
        unlabelled_as_negative: whether other columns are 0 instead of NaN. Losses then train all other
            classes seen so far as negatives.
        test_images: ``"seen"`` or ``"all"``; see `Protocol`.
        validation_size: number of images (or their share, if below 1) held out of training at random.
        train_transform: applied to each training image each time it is read.
        eval_transform: applied to each image in evaluation.
        seed: of all random draws: validation images and random assignments.

    Raises:
        ValueError: if targets, sizes, names or order do not fit, a class has no positive in training, or an
            experience gets no image.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.rand(4, 3, 8, 8))
        >>> data.targets = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 0]])
        >>> benchmark = multilabel_benchmark(data, data, n_experiences=2, class_names=["cat", "dog"])
        >>> benchmark.train_stream[1].dataset.targets[:]
        tensor([[nan, 1.],
                [nan, 1.]])
    """
    protocol = Protocol(
        n_experiences=n_experiences,
        classes_per_experience=classes_per_experience,
        class_order="data" if class_order is None else class_order,
        repeat_images=repeat_images,
        assignment=assignment,
        unlabelled_as_negative=unlabelled_as_negative,
        test_images=test_images,
    )
    plan = make_plan(
        train_dataset,
        test_dataset,
        protocol,
        class_names=class_names,
        train_transform=train_transform,
        eval_transform=eval_transform,
        validation_size=validation_size,
        seed=seed,
    )
    return MultiLabelBenchmark(plan)


def plan_images(
    train: MultiLabelSource,
    test: MultiLabelSource,
    protocol: Protocol,
    image_options: ImageOptions,
    *,
    class_names: Sequence[str],
    train_membership: Tensor | None = None,
    test_membership: Tensor | None = None,
) -> Plan:
    """Plan a benchmark with the transforms of its protocol, where the options have none; see `make_plan`."""
    transforms = image_options.transforms(protocol.image_size, flip=bool(protocol.flip))
    plan = make_plan(
        train,
        test,
        protocol.without_replaced(image_options),
        class_names=class_names,
        train_transform=transforms["train_transform"],
        eval_transform=transforms["eval_transform"],
        validation_size=image_options.validation_size,
        seed=image_options.seed,
        train_membership=train_membership,
        test_membership=test_membership,
    )
    return plan if image_options.limit is None else plan.limited(image_options.limit)


def make_plan(
    train_dataset: MultiLabelSource,
    test_dataset: MultiLabelSource,
    protocol: Protocol,
    *,
    class_names: Sequence[str] | None,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    validation_size: float | int = 0,
    seed: int = 0,
    train_membership: Tensor | None = None,
    test_membership: Tensor | None = None,
) -> Plan:
    """Plan a benchmark that follows a protocol; for most arguments see `multilabel_benchmark`.

    ``train_membership`` and ``test_membership`` have 0 or 1 for each image and class, like ``targets``: the
    classes that bring an image into an experience, if these are not its labels.
    """
    check_whole_number("seed", seed, 0)
    train_labels = _read_labels(train_dataset, "train")
    test_labels = _read_labels(test_dataset, "test")
    n_classes, n_test = train_labels.shape[1], test_labels.shape[1]
    if n_classes != n_test:
        raise ValueError(f"train has {n_classes} classes and test {n_test}; give both the same columns.")
    protocol = protocol.with_sizes(n_classes)
    sizes = protocol.classes_per_experience
    assert sizes is not None  # after with_sizes
    names = _class_names(class_names, train_dataset, test_dataset, n_classes)

    # From here on, columns are in order of appearance.
    order = split.resolve_class_order(protocol.class_order, names)
    names = [names[column] for column in order]
    train_labels = _reorder(train_labels, order)
    test_labels = _reorder(test_labels, order)
    train_members = train_labels if train_membership is None else _reorder(train_membership, order)
    test_members = test_labels if test_membership is None else _reorder(test_membership, order)

    valid_members = train_members
    if protocol.test_images == "all":  # all are relevant from the first experience on
        test_members, valid_members = torch.ones_like(test_members), torch.ones_like(train_members)
    evaluation = {"test": Images(test_dataset, test_labels, split.assign_first(test_members, sizes))}
    held_out = _draw_held_out(train_members, validation_size, seed)
    split.check_classes_present(train_labels, names, except_images=held_out)
    if held_out.any():
        positions = split.assign_first(valid_members, sizes)
        valid_positions = [part[held_out[part]] for part in positions]
        evaluation["valid"] = Images(train_dataset, train_labels, valid_positions)
    train_positions = _assign_train(train_members, held_out, protocol, sizes, seed)
    return Plan(
        train=Images(train_dataset, train_labels, train_positions),
        evaluation=evaluation,
        class_names=names,
        protocol=protocol,
        train_transform=train_transform,
        eval_transform=eval_transform,
    )


def _reorder(labels: Tensor, order: list[int]) -> Tensor:
    """The columns in another order, without a copy if it is the same."""
    return labels if order == list(range(labels.shape[1])) else labels[:, order]


def _assign_train(
    members: Tensor, held_out: Tensor, protocol: Protocol, sizes: Sequence[int], seed: int
) -> list[Tensor]:
    """Train images of each experience, by the rule of the protocol; ``held_out``, [N], are in none."""
    if protocol.repeat_images:
        return [part[~held_out[part]] for part in split.assign_repeatedly(members, sizes)]
    assignment = protocol.assignment or "rarest"
    return split.assign_once(members, sizes, assignment=assignment, seed=seed, except_images=held_out)


def _class_names(
    given: Sequence[str] | None, train: MultiLabelSource, test: MultiLabelSource, n_classes: int
) -> list[str]:
    """Names of the columns: those given, else those of the datasets, which must agree, else numbers."""
    if given is None:
        given = getattr(train, "class_names", None)
        others = getattr(test, "class_names", None)
        if given is not None and others is not None and _spelled(given) != _spelled(others):
            raise ValueError(
                f"train has the classes {listed(given)} and test {listed(others)}; give both the same list."
            )
    if given is None:
        return [f"class {column}" for column in range(n_classes)]
    names = _spelled(given)
    unusable = [name for name in names if not is_name(name)]
    if unusable:
        raise ValueError(
            f"class names must have {NAME}; {listed(shown(name) for name in unusable)} cannot be used: "
            "rename these classes."
        )
    if len(names) != n_classes or len(set(names)) != n_classes:
        raise ValueError(
            f"class_names must be {n_classes} different names, one per column, but are {listed(names)}."
        )
    return names


def _spelled(names: Sequence[str]) -> list[str]:
    return [same_spelling(str(name)) for name in names]


def _make_train_stream(plan: Plan) -> EagerCLStream:
    """Training images with the labels of their experience's own columns only."""
    outside = 0 if plan.protocol.unlabelled_as_negative else UNLABELLED
    experiences = []
    for t, (positions, columns) in enumerate(zip(plan.train.positions, plan.columns, strict=True)):
        codes = plan.train.labels[positions]  # a copy
        codes[:, : columns.start] = outside
        codes[:, columns.stop :] = outside
        dataset = _make_dataset(plan.train.source, positions, codes, plan)
        experiences.append(MultiLabelExperience(dataset, t, columns, n_classes=len(plan.class_names)))
    return EagerCLStream("train", experiences)


def _make_evaluation_stream(name: str, images: Images, plan: Plan) -> EagerCLStream:
    """Images with all their labels, transformed as in evaluation."""
    experiences = []
    for t, (positions, columns) in enumerate(zip(images.positions, plan.columns, strict=True)):
        dataset = _make_dataset(images.source, positions, images.labels[positions], plan).eval()
        experiences.append(MultiLabelExperience(dataset, t, columns, n_classes=len(plan.class_names)))
    return EagerCLStream(name, experiences)


class _ImageNames(Dataset[Any]):
    """Names of some images of a source, by which a replay memory finds its images again."""

    def __init__(self, source: MultiLabelSource, positions: Tensor) -> None:
        self.source, self.positions = source, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Any:
        return image_name(self.source, int(self.positions[index]))


class _LabelledImages(_ImageNames):
    """The images, opened when they are read, with their targets in a stream."""

    def __init__(self, source: MultiLabelSource, positions: Tensor, codes: Tensor, plan: Plan) -> None:
        super().__init__(source, positions)
        self.codes = codes
        self.plan = plan  # found also where tools of Avalanche have replaced the stream

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.source[int(self.positions[index])][0], decode(self.codes[index])


def _make_dataset(
    source: MultiLabelSource, positions: Tensor, codes: Tensor, plan: Plan
) -> TaskAwareSupervisedClassificationDataset:
    """Avalanche's dataset of the images at ``positions`` with the given targets, all of task 0."""
    return TaskAwareSupervisedClassificationDataset(
        [_LabelledImages(source, positions, codes, plan)],
        data_attributes=[
            MultiLabelAttribute.from_codes(codes),
            TaskLabels(ConstantSequence(0, len(positions))),
            DataAttribute(_ImageNames(source, positions), "image_names"),
        ],
        transform_groups=TransformGroups({"train": plan.train_transform, "eval": plan.eval_transform}),
    )


def _read_labels(source: MultiLabelSource, which: str) -> Tensor:
    """The source's targets as int8 codes of 0 and 1, checked."""
    name = f"The {which} dataset ({type(source).__name__})"
    if not hasattr(source, "targets"):
        raise ValueError(f"{name} has no `targets`, [images, classes] of 0 and 1; add it.")
    is_indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if not is_indexed or isinstance(source, IterableDataset):
        raise ValueError(
            f"{name} cannot be indexed, but its images are read in another order: give it `__len__` and "
            "`__getitem__`, or pass ImageFiles or a TensorDataset of its images."
        )
    codes = encode(source.targets)
    if codes.numel() and codes.amin() == UNLABELLED:
        raise ValueError(
            f"The {which} targets have unlabelled cells (NaN); the benchmark masks the labels of other "
            "experiences itself and needs complete ones."
        )
    if len(codes) != len(source):
        raise ValueError(f"The {which} dataset has {len(source)} images but {len(codes)} targets.")
    if len(codes) == 0 or codes.shape[1] == 0:
        raise ValueError(f"The {which} targets are empty: their shape is {tuple(codes.shape)}.")
    return codes


def hold_out(
    train: Images, sizes: Sequence[int], validation_size: float | int, seed: int
) -> tuple[Images, Images]:
    """Train images without some drawn at random, and those, each where its first class appears.

    The labels of all classes must be known; ``sizes`` are the numbers of classes of each experience.
    """
    held_out = _draw_held_out(train.labels, validation_size, seed)
    kept = [part[~held_out[part]] for part in train.positions]
    valid = [part[held_out[part]] for part in split.assign_first(train.labels, sizes)]
    return train._replace(positions=kept), train._replace(positions=valid)


def _draw_held_out(labels: Tensor, validation_size: float | int, seed: int) -> Tensor:
    """[N] bool: the validation images, drawn among those with a label."""
    labelled = split.has_label(labels).nonzero().flatten()
    n_held_out = _count_held_out(validation_size, len(labelled))
    shuffled = labelled[torch.randperm(len(labelled), generator=torch.Generator().manual_seed(seed))]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[shuffled[:n_held_out]] = True
    return held_out


def _count_held_out(validation_size: float | int, n_labelled: int) -> int:
    """Number of validation images, from their number or their share of the images with a label."""
    is_number = isinstance(validation_size, Real) and not isinstance(validation_size, bool)
    is_share = is_number and not isinstance(validation_size, Integral)
    if is_share and 0 <= validation_size < 1:
        return round(validation_size * n_labelled)
    if is_number and not is_share and 0 <= validation_size < n_labelled:
        return int(validation_size)
    raise ValueError(
        f"validation_size={validation_size!r} must be a share below 1 or a number of images below "
        f"{n_labelled}, the number of images with a label."
    )


def _check_train_images(plan: Plan) -> None:
    """Reject an experience without an image; warn of classes without a positive in their own experience."""
    without_positive = []
    for t, (positions, columns) in enumerate(zip(plan.train.positions, plan.columns, strict=True)):
        names = plan.class_names[columns.start : columns.stop]
        if len(positions) == 0:
            raise ValueError(
                f"Experience {t} ({listed(names)}) has no training image; use fewer experiences, another "
                "class order or repeat_images=True."
            )
        shown = plan.train.labels[positions, columns.start : columns.stop].any(0).tolist()
        without_positive += [name for name, is_shown in zip(names, shown, strict=True) if not is_shown]
    if without_positive:
        warnings.warn(
            f"[{listed(map(repr, without_positive))}] have no positive in their own experience: their images "
            "went to the experiences of other labels; another class order, assignment or repeat_images=True "
            "avoids it.",
            stacklevel=4,
        )
