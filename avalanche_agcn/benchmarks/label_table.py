"""The labels of a data set as one table, and the two ways to make a benchmark of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.assignment import class_blocks
from avalanche_agcn.benchmarks.classes import select_classes
from avalanche_agcn.benchmarks.datasets import Transform
from avalanche_agcn.benchmarks.images import ImageFiles, Truncated
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, assemble, multilabel_benchmark
from avalanche_agcn.benchmarks.plan import Images, Plan
from avalanche_agcn.benchmarks.split_lists import SplitLists

MOST_DISAGREEMENT = 0.05
"""A column of a split list is a class of the data if their labels differ on fewer images than this share of
the column's positives. (Two different classes differ on about as many images as both have positives.)"""


class LabelsDisagree(ValueError):
    """The labels of split lists are not those of the data set."""


@dataclass(frozen=True)
class LabelTable:
    """Which image shows which classes.

    Attributes:
        files: File of each image, relative to the data set's folder.
        labels: [images, classes] bool.
        class_names: Name of each class.
    """

    files: list[str]
    labels: Tensor
    class_names: list[str]


def benchmark_from_tables(
    root: str | os.PathLike,
    train: LabelTable,
    test: LabelTable,
    *,
    n_classes: int,
    n_experiences: int,
    class_order: Sequence[int | str] | None,
    truncated: Truncated,
    **protocol: Any,
) -> MultiLabelBenchmark:
    """Choose classes by their frequency in ``train`` and make a benchmark of the images below ``root``.

    Args:
        root: Folder the tables' files are relative to.
        train: Labels of the train images.
        test: Labels of the test images, for the same classes.
        n_classes: How many classes to choose.
        n_experiences: Number of experiences, unless ``classes_per_experience`` says otherwise.
        class_order: See ``select_classes``.
        truncated: See ``ImageFiles``.
        **protocol: Further options of ``multilabel_benchmark``.
    """
    _refuse_other_categories(train.class_names, test.class_names)
    chosen = select_classes(train.class_names, train.labels.sum(0), n_classes, class_order)
    if protocol.get("classes_per_experience") is None:
        protocol["n_experiences"] = n_experiences
    return multilabel_benchmark(
        ImageFiles(root, train.files, train.labels[:, chosen], truncated=truncated),
        ImageFiles(root, test.files, test.labels[:, chosen], truncated=truncated),
        class_names=[train.class_names[c] for c in chosen],
        **protocol,
    )


def benchmark_from_lists(
    root: str | os.PathLike,
    lists: SplitLists,
    files: Sequence[str],
    row_of: Callable[[str], int],
    *,
    class_names: Sequence[str],
    labels: Tensor | None,
    truncated: Truncated,
    **transforms: Transform,
) -> MultiLabelBenchmark:
    """Make the benchmark that published split lists describe, each image where they put it.

    Args:
        root: Folder the files are relative to.
        lists: The lists.
        files: The data set's images.
        row_of: Position in ``files`` of an image of the lists; KeyError or ValueError if there is none.
        class_names: Names of the data set's classes if ``labels`` are given, else of the lists' columns.
        labels: The data set's own labels, bool [files, classes], against which the lists are then checked and
            from which the complete training labels come.
        truncated: See ``ImageFiles``.
        **transforms: ``train_transform`` and ``eval_transform``.

    Raises:
        ValueError: If an image of the lists is not in the data.
        LabelsDisagree: If a column of the lists is unlike every class of the data.
    """
    train_rows, test_rows = (
        [_rows(images, row_of) for images, _ in part] for part in (lists.train, lists.test)
    )
    train_labels = torch.block_diag(*[listed for _, listed in lists.train])
    if labels is not None:
        classes = _classes_of_columns(lists, train_rows, test_rows, labels, class_names)
        class_names = [class_names[c] for c in classes]
        train_labels |= labels[torch.cat(train_rows)][:, classes] & ~_own_columns(lists)

    def images_and_positions(rows: list[Tensor]) -> tuple[ImageFiles, list[Tensor]]:
        chosen = [files[row] for row in torch.cat(rows).tolist()]
        sizes = [len(part) for part in rows]
        return ImageFiles(root, chosen, truncated=truncated), list(torch.arange(len(chosen)).split(sizes))

    train, train_positions = images_and_positions(train_rows)
    test, test_positions = images_and_positions(test_rows)
    test_labels = torch.cat([listed for _, listed in lists.test])
    plan = Plan(
        train=Images(train, train_labels, train_positions),
        evaluation={"test": Images(test, test_labels, test_positions)},
        class_names=class_names,
        classes_per_experience=lists.classes_per_experience,
        labels_complete=labels is not None,
        **transforms,
    )
    return assemble(plan)


def _refuse_other_categories(train: Sequence[str], test: Sequence[str]) -> None:
    differing = sorted(set(train) ^ set(test))
    if differing:
        raise ValueError(f"train and test annotations have different categories: only one has {differing}")
    for place, (ours, theirs) in enumerate(zip_longest(train, test)):
        if ours != theirs:
            raise ValueError(
                "train and test annotations have the same categories, but in another order of their ids: "
                f"number {place} is {ours!r} in train and {theirs!r} in test; use annotations of one release"
            )


def _rows(images: Sequence[str], row_of: Callable[[str], int]) -> Tensor:
    try:
        return torch.tensor([row_of(image) for image in images], dtype=torch.long)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"the split lists do not fit the data: an image of theirs is not in it ({error}); "
            "use lists made for this data set"
        ) from None


def _own_columns(lists: SplitLists) -> Tensor:
    """[train images, columns] bool: the classes of the image's own task."""
    return torch.block_diag(*[torch.ones_like(labels) for _, labels in lists.train])


def _classes_of_columns(
    lists: SplitLists, train_rows: list[Tensor], test_rows: list[Tensor], labels: Tensor, names: Sequence[str]
) -> list[int]:
    """Find out which class of the data each column of the lists is: the one whose labels differ least."""
    everything = slice(0, lists.n_classes)
    parts = [(everything, listed, rows) for (_, listed), rows in zip(lists.test, test_rows, strict=True)]
    blocks = [slice(block.start, block.stop) for block in class_blocks(lists.classes_per_experience)]
    parts += [
        (own, listed, rows) for own, (_, listed), rows in zip(blocks, lists.train, train_rows, strict=True)
    ]
    differences = torch.zeros(lists.n_classes, labels.shape[1])
    positives = torch.zeros(lists.n_classes)
    for columns, listed, rows in parts:
        here, there = listed.float(), labels[rows].float()
        differences[columns] += here.sum(0)[:, None] + there.sum(0) - 2 * here.T @ there
        positives[columns] += here.sum(0)
    classes = differences.argmin(1)
    _refuse_strangers(differences.amin(1), positives, classes, names)
    return classes.tolist()


def _refuse_strangers(differences: Tensor, positives: Tensor, classes: Tensor, names: Sequence[str]) -> None:
    share = differences / positives.clamp(min=1)
    column = int(share.argmax())
    if share[column] > MOST_DISAGREEMENT:
        raise LabelsDisagree(
            f"the split lists do not fit the data: column {column}, with {int(positives[column])} positives, "
            f"is most like {names[int(classes[column])]!r}, but differs from it on "
            f"{int(differences[column])} images"
        )
    if len(classes.unique()) != len(classes):
        raise LabelsDisagree(
            "the split lists do not fit the data: two of their columns are most like the same class, among "
            f"{[names[c] for c in classes.tolist()]}"
        )
