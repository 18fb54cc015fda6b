"""Class-incremental benchmarks from any images with several labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from avalanche.benchmarks.scenarios.generic_scenario import CLScenario, EagerCLStream
from avalanche.benchmarks.utils.data import AvalancheDataset
from torch import Tensor

from avalanche_agcn.benchmarks import assignment as rules
from avalanche_agcn.benchmarks.attribute import UNLABELLED, MultiLabelAttribute, encode
from avalanche_agcn.benchmarks.classes import check_class_names, class_counts, resolve_class_order
from avalanche_agcn.benchmarks.datasets import (
    MultiLabelSource,
    Transform,
    make_dataset,
    mask_columns,
)
from avalanche_agcn.benchmarks.experience import MultiLabelExperience
from avalanche_agcn.benchmarks.plan import Images, Plan

__all__ = ["MultiLabelAttribute", "MultiLabelBenchmark", "assemble", "multilabel_benchmark"]


class MultiLabelBenchmark(CLScenario):
    """A class-incremental benchmark over images with several labels.

    Attributes:
        train_stream: Experience t has labels for its own classes only; a target is float32 [n_classes],
            0 or 1 there and NaN elsewhere.
        test_stream: Experience i has the images that first become relevant at i, with all their labels.
            Nested test set i is therefore ``test_stream[: i + 1]``, with the classes seen by then.
        valid_stream: As the test stream, from images held out of training; only with a validation size.
        class_names: Name of each column, in order of appearance.
        classes_per_experience: Number of columns each experience adds.
        plan: What it was made from.
    """

    def __init__(
        self,
        streams: Sequence[EagerCLStream],
        *,
        complete_train_dataset: AvalancheDataset | None,
        plan: Plan,
    ) -> None:
        super().__init__(streams)
        for stream in streams:
            stream.benchmark = self  # by which metrics find the names of the classes
        self._complete_train_dataset = complete_train_dataset
        self.plan = plan
        self.class_names = list(plan.class_names)
        self.classes_per_experience = list(plan.classes_per_experience)

    @property
    def complete_train_dataset(self) -> AvalancheDataset:
        """The images of the train stream, each once, with all their labels: for the upper bound."""
        if self._complete_train_dataset is None:
            raise ValueError(
                "the complete training labels are not known: the split lists have each image's labels of its "
                "own experience only; put the data set's annotation files beside the images"
            )
        return self._complete_train_dataset

    @property
    def n_classes(self) -> int:
        """Number of columns of a target."""
        return len(self.class_names)

    @property
    def n_experiences(self) -> int:
        """Length of each stream."""
        return len(self.classes_per_experience)

    def __repr__(self) -> str:
        sizes = {
            name: sum(len(experience.dataset) for experience in stream)
            for name, stream in self.streams.items()
        }
        images = ", ".join(f"{n} {name}" for name, n in sizes.items())
        return (
            f"{type(self).__name__}({self.n_classes} classes in {self.n_experiences} experiences; "
            f"images: {images})"
        )


def multilabel_benchmark(
    train: MultiLabelSource,
    test: MultiLabelSource,
    *,
    n_experiences: int | None = None,
    classes_per_experience: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    class_order: Sequence[int | str] | None = None,
    repeat_images: bool = False,
    assignment: rules.Assignment = "rarest",
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
    labelled. Images without any label are left out.

    Args:
        train: Training images with ``targets``, an N×C matrix of 0 and 1.
        test: Test images with the same C classes.
        n_experiences: Number of experiences of equally many classes.
        classes_per_experience: Instead, the number of classes of each: ``[40, 10, 10, 10, 10]`` is the
            protocol written B40-C10 in the literature.
        class_names: Names of the C columns of ``targets``; ``"class 0"`` and so on by default.
        class_order: Columns or names in their order of appearance; as they stand by default.
        repeat_images: Whether an image returns with every experience it has a label of.
        assignment: The rule for images that appear once.
        validation_size: Images (or their share, if below 1) held out of training, drawn at random.
        train_transform: Applied to each training image, drawn anew each time.
        eval_transform: Applied to each image in evaluation.
        seed: Fixes all that is drawn: validation images, random assignments.

    Returns:
        The benchmark, with ``train_stream``, ``test_stream`` and, if asked for, ``valid_stream``.

    Raises:
        ValueError: If targets, sizes, names or order do not fit; if a class has no positive in ``train``;
            if no image is left for an experience.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.rand(4, 3, 8, 8))
        >>> data.targets = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 0]])
        >>> benchmark = multilabel_benchmark(data, data, n_experiences=2, class_names=["cat", "dog"])
        >>> benchmark.train_stream[1].dataset.targets[:]
        tensor([[nan, 1.],
                [nan, 1.]])
    """
    train_labels, test_labels = _labels(train, "train"), _labels(test, "test")
    n_classes = train_labels.shape[1]
    if test_labels.shape[1] != n_classes:
        raise ValueError(
            f"train has {n_classes} classes and test {test_labels.shape[1]}; give both the same columns"
        )
    names = check_class_names(class_names, n_classes)
    order = resolve_class_order(class_order, names)
    sizes = class_counts(n_classes, n_experiences, classes_per_experience)
    train_labels, test_labels = train_labels[:, order], test_labels[:, order]
    names = [names[column] for column in order]

    held_out = _held_out(train_labels, validation_size, seed)
    labels = train_labels & ~held_out[:, None]
    _refuse_absent_classes(labels, names)
    if repeat_images:
        train_images = rules.every_relevant(labels, sizes)
    else:
        train_images = rules.once(labels, sizes, assignment=assignment, seed=seed)
    streams = {"test": Images(test, test_labels, rules.first_relevant(test_labels, sizes))}
    if held_out.any():
        valid_labels = train_labels & held_out[:, None]
        streams["valid"] = Images(train, train_labels, rules.first_relevant(valid_labels, sizes))
    plan = Plan(
        train=Images(train, train_labels, train_images),
        evaluation=streams,
        class_names=names,
        classes_per_experience=sizes,
        train_transform=train_transform,
        eval_transform=eval_transform,
    )
    return assemble(plan)


def assemble(plan: Plan) -> MultiLabelBenchmark:
    """Make the benchmark once it is settled which image goes where."""
    blocks = rules.class_blocks(plan.classes_per_experience)
    transforms = {"train": plan.train_transform, "eval": plan.eval_transform}
    source, labels, positions = plan.train
    for t, (images, block) in enumerate(zip(positions, blocks, strict=True)):
        if len(images) == 0:
            raise ValueError(
                f"experience {t} ({', '.join(plan.class_names[c] for c in block)}) has no training image; "
                "use fewer experiences, another class order or repeat_images=True"
            )
    _warn_of_starved_classes(labels, positions, blocks, plan.class_names)
    datasets = [
        make_dataset(source, images, mask_columns(labels[images], block), transforms)
        for images, block in zip(positions, blocks, strict=True)
    ]
    streams = [_stream("train", datasets, blocks)]
    for name, (source_, labels_, positions_) in plan.evaluation.items():
        datasets = [
            make_dataset(source_, images, labels_[images].to(torch.int8), transforms).eval()
            for images in positions_
        ]
        streams.append(_stream(name, datasets, blocks))
    complete = None
    if plan.labels_complete:
        every = torch.cat(list(positions)).unique()
        complete = make_dataset(source, every, labels[every].to(torch.int8), transforms)
    return MultiLabelBenchmark(
        streams,
        complete_train_dataset=complete,
        plan=plan,
    )


def _labels(source: MultiLabelSource, which: str) -> Tensor:
    if not hasattr(source, "targets"):
        raise ValueError(
            f"the {which} dataset ({type(source).__name__}) has no `targets`; set it to an "
            "[images, classes] matrix of 0 and 1"
        )
    codes = encode(source.targets)
    if (codes == UNLABELLED).any():
        raise ValueError(
            f"the {which} targets have unlabelled cells (NaN); the benchmark masks the labels of other "
            "experiences itself and needs complete ones"
        )
    if len(codes) != len(source):
        raise ValueError(f"the {which} dataset has {len(source)} images but {len(codes)} targets")
    if len(codes) == 0 or codes.shape[1] == 0:
        raise ValueError(f"the {which} targets are empty: shape {tuple(codes.shape)}")
    return codes.bool()


def _held_out(labels: Tensor, validation_size: float | int, seed: int) -> Tensor:
    """[N] bool: the validation images, drawn among those with a label."""
    labelled = labels.any(1).nonzero().flatten()
    n = validation_size if validation_size >= 1 else validation_size * len(labelled)
    if not 0 <= n < len(labelled):
        raise ValueError(
            f"validation_size={validation_size} must be a share below 1 or a number of images below "
            f"the {len(labelled)} with a label"
        )
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    held_out[labelled[torch.randperm(len(labelled), generator=generator)[: round(n)]]] = True
    return held_out


def _refuse_absent_classes(labels: Tensor, names: Sequence[str]) -> None:
    absent = [name for name, n in zip(names, labels.sum(0).tolist(), strict=True) if n == 0]
    if absent:
        raise ValueError(
            f"no training image shows {absent}; remove these columns from the targets, or hold out "
            "fewer images for validation"
        )


def _warn_of_starved_classes(
    labels: Tensor, positions: Sequence[Tensor], blocks: Sequence[range], names: Sequence[str]
) -> None:
    starved = [
        names[column]
        for images, block in zip(positions, blocks, strict=True)
        for column in block
        if not labels[images, column].any()
    ]
    if starved:
        warnings.warn(
            f"{starved} have no positive in their own experience: their images went to the experiences "
            "of other labels; another class order, assignment or repeat_images=True avoids it",
            stacklevel=4,
        )


def _stream(name: str, datasets: Sequence[AvalancheDataset], blocks: Sequence[range]) -> EagerCLStream:
    experiences = [
        MultiLabelExperience(
            dataset=dataset, current_experience=t, own_columns=block, n_classes=blocks[-1].stop
        )
        for t, (dataset, block) in enumerate(zip(datasets, blocks, strict=True))
    ]
    return EagerCLStream(name, experiences)
