"""Benchmarks from the label tables of public data sets, and from published split lists.

The lists of the AGCN paper are ``task{t}/train.csv`` and ``task{t}/test.csv``, without header. A row is an
image (a file name, or a line number of NUS-WIDE's image list) and then 0 or 1 for each class. ``train.csv``
has the task's own classes only; ``test.csv`` is cumulative in both images and classes.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import PAPER_IMAGE_SIZE, ImageFiles, ImageOptions
from avalanche_agcn.benchmarks.multilabel import (
    Images,
    MultiLabelBenchmark,
    Plan,
    assemble,
    benchmark_of_images,
)
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.benchmarks.split import choose_classes

MAX_DISAGREEMENT = 0.05
"""A column of a split list is a class of the data if their labels differ on fewer images than this share of
the column's positives. (Two different classes differ on about as many images as both have positives.)"""
LIST_FILE = re.compile(r"(?!__MACOSX/)(?:.*/)?task(\d+)/(train|test)\.csv")


class LabelTable(NamedTuple):
    """Which image of a data set shows which classes."""

    files: list[str]  # relative to the data set's folder
    labels: Tensor  # [images, classes] int8 of 0 and 1
    class_names: list[str]
    membership: Tensor | None = None
    """[images, classes]: classes that bring an image into an experience, if these are not its labels."""

    def rows(self, keep: Tensor) -> LabelTable:
        """The images where ``keep``, [images] bool, is true; of a table without ``membership``."""
        files = [self.files[row] for row in keep.nonzero().flatten().tolist()]
        return LabelTable(files, self.labels[keep], self.class_names)


Listed = tuple[list[str], Tensor]  # images of a split list, and [images, classes] int8 of 0 and 1


class SplitLists(NamedTuple):
    """Published lists, in order of their tasks."""

    train: list[Listed]  # of each task, with labels of the task's own classes
    test: list[Listed]  # that each task adds to the test set, with labels of all classes

    @property
    def classes_per_experience(self) -> list[int]:
        """Number of classes each task adds."""
        return [labels.shape[1] for _, labels in self.train]

    @property
    def n_classes(self) -> int:
        """Number of classes of all tasks."""
        return sum(self.classes_per_experience)


class LabelsDisagree(ValueError):
    """The labels of split lists are not those of the data set."""


def benchmark_from_tables(
    root: str | os.PathLike, train: LabelTable, test: LabelTable, protocol: Protocol, images: ImageOptions
) -> MultiLabelBenchmark:
    """A benchmark of images below ``root``, with the most frequent classes of ``train`` or all of them."""
    for number, (one, other) in enumerate(zip_longest(train.class_names, test.class_names)):
        if one != other:
            raise ValueError(
                "Train and test annotations must have the same categories in the order of their ids, but "
                f"number {number} is {one!r} in train and {other!r} in test; use annotations of one release."
            )
    chosen = choose_classes(train.class_names, train.labels.sum(0), protocol.n_classes, protocol.class_order)
    return benchmark_of_images(
        ImageFiles(root, train.files, train.labels[:, chosen], truncated=images.truncated),
        ImageFiles(root, test.files, test.labels[:, chosen], truncated=images.truncated),
        protocol,
        images,
        class_names=[train.class_names[c] for c in chosen],
        train_membership=None if train.membership is None else train.membership[:, chosen],
        test_membership=None if test.membership is None else test.membership[:, chosen],
    )


def benchmark_from_lists(
    root: str | os.PathLike,
    lists: SplitLists,
    files: Sequence[str],
    row_of: Callable[[str], int],
    class_names: Sequence[str],
    labels: Tensor | None,
    images: ImageOptions,
) -> MultiLabelBenchmark:
    """The benchmark that published split lists describe, of a data set's ``files`` below ``root``.

    ``row_of`` returns the position in ``files`` of an image of the lists (KeyError or ValueError if absent).
    ``labels`` are the data set's own, [files, classes], if known: the lists are checked against them
    (`LabelsDisagree` otherwise), and the complete training labels come from them. ``class_names`` are then
    those of the data set's classes, else of the lists' columns.
    """
    train_labels = torch.block_diag(*[listed for _, listed in lists.train])
    test_labels = torch.cat([listed for _, listed in lists.test])
    rows = _find_rows([image for own, _ in lists.train + lists.test for image in own], row_of)
    train_rows, test_rows = rows.split([len(train_labels), len(test_labels)])
    if labels is not None:
        is_own = torch.block_diag(*[torch.ones_like(listed) for _, listed in lists.train])
        is_known = torch.cat([is_own, torch.ones_like(test_labels)])
        listed = torch.cat([train_labels, test_labels])
        classes = _match_columns(listed, is_known, labels[rows], class_names)
        class_names = [class_names[c] for c in classes]
        train_labels = torch.where(is_own == 1, train_labels, labels[train_rows][:, classes])

    def listed_images(lists: list[Listed], rows: Tensor, labels: Tensor) -> Images:
        source = ImageFiles(root, [files[row] for row in rows.tolist()], truncated=images.truncated)
        return Images(source, labels, torch.arange(len(rows)).split([len(own) for own, _ in lists]))

    sizes = lists.classes_per_experience
    protocol = Protocol(name="published lists", classes_per_experience=sizes, assignment=None)
    plan = Plan(
        train=listed_images(lists.train, train_rows, train_labels),
        evaluation={"test": listed_images(lists.test, test_rows, test_labels)},
        class_names=class_names,
        labels_complete=labels is not None,
        protocol=protocol.with_sizes(lists.n_classes),
        **images.transforms(images.image_size or PAPER_IMAGE_SIZE),
    )
    return assemble(plan)


def load_split_lists(
    path: str | os.PathLike, protocol: str, options: dict[str, Any]
) -> tuple[SplitLists, ImageOptions]:
    """Split lists and image options; the arguments of the benchmark must not contradict the lists."""
    images = ImageOptions.take_from(options)
    sizes = {name: options.pop(name, None) for name in ("n_classes", "n_experiences")}
    others = options | {"validation_size": images.validation_size, "protocol": protocol != "paper"}
    contradicting = [name for name, value in others.items() if value]
    if contradicting:
        raise ValueError(f"split_lists decide which image goes where; leave out {', '.join(contradicting)}.")
    lists = read_split_lists(path)
    for (name, value), n in zip(sizes.items(), (lists.n_classes, len(lists.train)), strict=True):
        if value not in (None, n):
            raise ValueError(f"{name}={value} contradicts the split lists, which have {n}; leave it out.")
    return lists, images


def read_split_lists(path: str | os.PathLike) -> SplitLists:
    """Read published split lists from a folder or a zip file; a test image listed twice is kept once."""
    path = Path(path)
    texts = _read_texts(path)
    n_tasks = 1 + max(task for task, _ in texts)
    missing = [f"task{t}/{k}.csv" for t in range(n_tasks) for k in ("train", "test") if (t, k) not in texts]
    if missing:
        raise FileNotFoundError(f"{path} lacks {missing}; every task needs a train.csv and a test.csv.")
    train, test = (
        [_parse(texts[t, part], f"{path}: task{t}/{part}.csv") for t in range(n_tasks)]
        for part in ("train", "test")
    )
    images = [image for images, _ in train for image in images]
    if len(set(images)) != len(images):
        raise ValueError(f"{path}: {len(images) - len(set(images))} train images are listed more than once.")
    n_seen = accumulate(labels.shape[1] for _, labels in train)
    for task, ((_, labels), seen) in enumerate(zip(test, n_seen, strict=True)):
        if labels.shape[1] != seen:
            found = f"{path}: task{task}/test.csv has {labels.shape[1]} classes"
            raise ValueError(f"{found}, but the train lists up to it have {seen}.")
    return SplitLists(train, _increments(test, path))


def _read_texts(path: Path) -> dict[tuple[int, str], str]:
    """Text of each list, by task and part."""
    files: Mapping[str, Path | zipfile.Path]
    if path.is_dir():
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*.csv")}
    elif zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        files = {name: zipfile.Path(archive, name) for name in archive.namelist()}
    else:
        raise FileNotFoundError(f"{path} is neither a folder nor a zip file of split lists.")
    names: dict[tuple[int, str], str] = {}
    for name in sorted(files):
        if match := LIST_FILE.fullmatch(name):
            other = names.setdefault((int(match[1]), match[2]), name)
            if other != name:
                raise ValueError(f"{path} has two lists of one task, {other} and {name}; remove one.")
    if not names:
        raise FileNotFoundError(f"{path} has no split lists; expected task0/train.csv, task0/test.csv, ….")
    return {key: files[name].read_text(encoding="utf-8") for key, name in names.items()}


def _parse(text: str, where: str) -> Listed:
    """Images and labels of one csv file."""
    rows = [line.partition(",") for line in text.splitlines() if line.strip()]
    images, cells = [image.strip() for image, _, _ in rows], [cells.strip() for _, _, cells in rows]
    if not images:
        raise ValueError(f"{where} is empty.")
    width = len(cells[0])  # of "0,1,…": an odd number of characters
    for number, cell in enumerate(cells, 1):
        if len(cell) != width or width % 2 == 0:
            raise ValueError(f"{where}, row {number}: expected as many 0/1 columns as row 1, got {cell!r}.")
    characters = np.frombuffer("".join(cells).encode(), dtype=np.uint8).reshape(len(cells), width)
    labels, commas = characters[:, ::2] - ord("0"), characters[:, 1::2]
    wrong = (labels > 1).any(1) | (commas != ord(",")).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{where}, row {row + 1}: labels must be 0 or 1, got {cells[row]!r}.")
    return images, torch.from_numpy(labels.astype(np.int8))


def _increments(nested: list[Listed], path: Path) -> list[Listed]:
    """The images each cumulative test list adds, with the labels of the last list, which has all classes."""
    final_images, final_labels = nested[-1]
    position = {image: i for i, image in enumerate(final_images)}
    seen: set[str] = set()
    increments = []
    for task, (images, labels) in enumerate(nested):
        where = f"{path}: task{task}/test.csv"
        dropped = seen.difference(images) | set(images).difference(position)
        if dropped:
            raise ValueError(f"{where}: lists must be cumulative, but {min(dropped)} is not in a later one.")
        rows = torch.tensor([position[image] for image in images])
        contradicted = (final_labels[rows, : labels.shape[1]] != labels).any(1)
        if contradicted.any():
            image = images[int(contradicted.int().argmax())]
            raise ValueError(f"{where} contradicts the last task's list on {image}.")
        new = [image for image in dict.fromkeys(images) if image not in seen]
        seen.update(new)
        increments.append((new, final_labels[[position[image] for image in new]]))
    repeated = [image for image, n in Counter(final_images).items() if n > 1]
    if repeated:
        message = f"{path.name} lists the test images {repeated} more than once; each is kept once."
        warnings.warn(message, stacklevel=4)
    return increments


def _find_rows(images: Sequence[str], row_of: Callable[[str], int]) -> Tensor:
    try:
        return torch.tensor([row_of(image) for image in images], dtype=torch.long)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"The split lists do not fit the data: one of their images is not in it ({error}); "
            "use lists made for this data set."
        ) from None


def _match_columns(listed: Tensor, is_known: Tensor, labels: Tensor, names: Sequence[str]) -> list[int]:
    """For each column of the lists, the class of the data that differs from it on the fewest images.

    ``listed`` and ``is_known`` are [images, columns]: 1 for a positive, and where the lists have a label at
    all. ``labels`` are those of the data, [images, classes].
    """
    listed, labels, positives = listed.float(), labels.float(), listed.sum(0)
    # |a ≠ b| = Σa + Σb − 2 Σab for labels of 0 and 1, for all pairs of a column and a class at once.
    all_differences = positives[:, None] + (is_known.float() - 2 * listed).T @ labels
    differences, classes = all_differences.min(1)
    share = differences / positives.clamp(min=1)
    column = int(share.argmax())
    if share[column] > MAX_DISAGREEMENT:
        raise LabelsDisagree(
            f"The split lists do not fit the data: column {column}, with {positives[column]} positives, "
            f"is most like {names[int(classes[column])]!r}, but differs from it on "
            f"{int(differences[column])} images."
        )
    if len(classes.unique()) != len(classes):
        raise LabelsDisagree(
            "The split lists do not fit the data: two of their columns are most like the same class, among "
            f"{[names[c] for c in classes.tolist()]}."
        )
    return classes.tolist()
