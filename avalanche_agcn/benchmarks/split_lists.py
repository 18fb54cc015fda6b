"""Benchmarks from published split lists, which say which image goes to which experience.

The lists of the AGCN paper are ``task{t}/train.csv`` and ``task{t}/test.csv``, without header. A row is an
image (a file name, or a line number of NUS-WIDE's image list) and then 0 or 1 for each class. ``train.csv``
has the task's own classes only; ``test.csv`` is cumulative in both images and classes.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import PAPER_IMAGE_SIZE, ImageFiles, ImageOptions
from avalanche_agcn.benchmarks.multilabel import Images, MultiLabelBenchmark, Plan, hold_out
from avalanche_agcn.benchmarks.protocols import Conventions, Protocol
from avalanche_agcn.checks import check_size, cut, listed, naming_file, shorten, shown

MAX_DISAGREEMENT = 0.05
"""A column of a split list is a class of the data if their labels differ on fewer images than this share of
the column's positives. (Two different classes differ on about as many images as both have positives.)"""
LIST_FILE = re.compile(r"(?!__MACOSX/)(?:.*/)?task(\d{1,4})/(train|test)\.csv")
MAX_LISTS_BYTES = 2**28
"""Size of all lists together, unpacked: a small zip file may hold very large ones."""


class ListedImages(NamedTuple):
    """Images of one list, by their names, with their labels."""

    names: list[str]
    labels: Tensor  # [images, classes] int8 of 0 and 1


class SplitLists(NamedTuple):
    """Published lists, in order of their tasks."""

    train: list[ListedImages]  # of each task, with labels of the task's own classes
    test: list[ListedImages]  # that each task adds to the test set, with labels of all classes

    @property
    def classes_per_experience(self) -> list[int]:
        """Number of classes each task adds."""
        return [listed.labels.shape[1] for listed in self.train]

    @property
    def n_classes(self) -> int:
        """Number of classes of all tasks."""
        return sum(self.classes_per_experience)

    @property
    def image_names(self) -> list[str]:
        """All images: those of the train lists, then those of the test lists."""
        names = []
        for images in self.train + self.test:
            names += images.names
        return names


@dataclass(frozen=True)
class DataSet:
    """Image files of a data set, in which those of split lists are found.

    Attributes:
        root: folder that the files are relative to.
        files: names of the files.
        row_of: position in ``files`` of an image of the lists; KeyError or ValueError if it is absent.
        class_names: names of the columns of ``labels``; without ``labels``, of the columns of the lists.
        labels: [files, classes] of 0 and 1, if known: then the lists are checked against them, and the
            complete training labels come from them.
    """

    root: str | os.PathLike
    files: Sequence[str]
    row_of: Callable[[str], int]
    class_names: Sequence[str]
    labels: Tensor | None = None


class LabelsDisagree(ValueError):
    """The labels of split lists are not those of the data set."""


def benchmark_from_lists(
    lists: SplitLists, data: DataSet, conventions: Conventions, image_options: ImageOptions
) -> MultiLabelBenchmark:
    """The benchmark that published split lists describe; `LabelsDisagree` if the data has other labels."""
    train_labels = torch.block_diag(*[listed.labels for listed in lists.train])
    test_labels = torch.cat([listed.labels for listed in lists.test])
    rows = _find_rows(lists.image_names, data.row_of)
    train_rows, test_rows = rows.split([len(train_labels), len(test_labels)])
    class_names = data.class_names
    if data.labels is not None:
        is_listed = torch.block_diag(*[torch.ones_like(listed.labels) for listed in lists.train])
        columns = _match_columns(
            torch.cat([train_labels, test_labels]),
            torch.cat([is_listed, torch.ones_like(test_labels)]),
            data.labels[rows],
            class_names,
        )
        class_names = [class_names[column] for column in columns]
        known = data.labels[train_rows][:, columns]
        train_labels = torch.where(is_listed == 1, train_labels, known)

    protocol = Protocol(
        name="published lists",
        classes_per_experience=lists.classes_per_experience,
        assignment=None,
        unlabelled_as_negative=bool(conventions.unlabelled_as_negative),
        image_size=PAPER_IMAGE_SIZE if conventions.image_size is None else conventions.image_size,
        flip=True if conventions.flip is None else conventions.flip,
    ).with_sizes(lists.n_classes)
    transforms = image_options.transforms(protocol.image_size, flip=bool(protocol.flip))
    train = _locate(lists.train, train_rows, train_labels, data, image_options)
    evaluation = {"test": _locate(lists.test, test_rows, test_labels, data, image_options)}
    if image_options.validation_size:
        if data.labels is None:
            raise ValueError(
                f"validation_size={image_options.validation_size} needs all labels of the train images, and "
                "split lists have a part of them; add the data set's annotations, or leave it out."
            )
        train, evaluation["valid"] = hold_out(
            train, lists.classes_per_experience, image_options.validation_size, image_options.seed
        )
    plan = Plan(
        train=train,
        evaluation=evaluation,
        class_names=class_names,
        labels_complete=data.labels is not None,
        protocol=protocol.without_replaced(image_options),
        train_transform=transforms["train_transform"],
        eval_transform=transforms["eval_transform"],
    )
    if image_options.limit is not None:
        plan = plan.limited(image_options.limit)
    return MultiLabelBenchmark(plan)


def _locate(
    lists: Sequence[ListedImages], rows: Tensor, labels: Tensor, data: DataSet, image_options: ImageOptions
) -> Images:
    """The images of a stream, list after list; ``rows`` are their positions among the files of the data."""
    files = [data.files[row] for row in rows.tolist()]
    source = ImageFiles(data.root, files, truncated=image_options.truncated)
    positions = torch.arange(len(rows)).split([len(listed.names) for listed in lists])
    return Images(source, labels, positions)


def load_split_lists(
    path: str | os.PathLike, protocol: str, conventions: Conventions, image_options: ImageOptions
) -> SplitLists:
    """Read split lists, which the arguments of the benchmark must not contradict."""
    decided_by_lists = {
        "classes_per_experience": conventions.classes_per_experience,
        "class_order": conventions.class_order,
        "repeat_images": conventions.repeat_images,
        "assignment": conventions.assignment,
        "test_images": conventions.test_images,
        "crowds": conventions.crowds,
        "protocol": protocol != "paper",
    }
    contradicting = [name for name, value in decided_by_lists.items() if value]
    if contradicting:
        raise ValueError(f"split_lists decide which image goes where; leave out {', '.join(contradicting)}.")
    lists = read_split_lists(path)
    _check_size("n_classes", conventions.n_classes, lists.n_classes)
    _check_size("n_experiences", conventions.n_experiences, len(lists.train))
    return lists


def _check_size(name: str, value: int | None, listed: int) -> None:
    if value not in (None, listed):
        raise ValueError(f"{name}={value} contradicts the split lists, which have {listed}; leave it out.")


def read_split_lists(path: str | os.PathLike) -> SplitLists:
    """Read published split lists from a folder or a zip file; a test image listed twice is kept once."""
    path = Path(path)
    files = _find_lists(path)
    n_tasks = 1 + max(task for task, _ in files)
    train: list[ListedImages] = []
    test: list[ListedImages] = []
    missing = []
    for task in range(n_tasks):
        for part, lists in (("train", train), ("test", test)):
            name = f"task{task}/{part}.csv"
            if (task, part) in files:
                lists.append(_read_list(files[task, part], f"{path}: {name}"))
            else:
                missing.append(name)
    if missing:
        raise FileNotFoundError(
            f"{path} lacks [{listed(map(repr, missing))}]; every task needs a train.csv and a test.csv."
        )
    n_seen = accumulate(images.labels.shape[1] for images in train)
    for task, (images, seen) in enumerate(zip(test, n_seen, strict=True)):
        if images.labels.shape[1] != seen:
            found = f"{path}: task{task}/test.csv has {images.labels.shape[1]} classes"
            raise ValueError(f"{found}, but the train lists up to it have {seen}.")
    train_names = SplitLists(train, []).image_names
    n_repeated = len(train_names) - len(set(train_names))
    if n_repeated:
        raise ValueError(f"{path}: {n_repeated} train images are listed more than once.")
    return SplitLists(train, _increments(test, path))


def _find_lists(path: Path) -> dict[tuple[int, str], Path | zipfile.Path]:
    """The file of each list, by task and part."""
    files: Mapping[str, Path | zipfile.Path]
    if path.is_dir():
        found = {file.relative_to(path).as_posix(): file for file in path.rglob("*.csv")}
        files = found
        sizes = {name: file.stat().st_size for name, file in found.items()}
    elif zipfile.is_zipfile(path):
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:  # its directory is damaged
            raise ValueError(f"{path} cannot be read ({error}); download it again.") from None
        files = {name: zipfile.Path(archive, name) for name in archive.namelist()}
        sizes = {member.filename: member.file_size for member in archive.infolist()}
    else:
        raise FileNotFoundError(f"{path} is neither a folder nor a zip file of split lists.")
    names: dict[tuple[int, str], str] = {}
    for name in sorted(files):
        if match := LIST_FILE.fullmatch(name):
            other = names.setdefault((int(match[1]), match[2]), name)
            if other != name:
                both = f"{cut(other)} and {cut(name)}"
                raise ValueError(f"{path} has two lists of one task, {both}; remove one.")
    if not names:
        raise FileNotFoundError(f"{path} has no split lists; expected task0/train.csv, task0/test.csv, ….")
    check_size(path, sum(sizes[name] for name in names.values()), MAX_LISTS_BYTES)
    return {key: files[name] for key, name in names.items()}


def _read_list(file: Path | zipfile.Path, where: str) -> ListedImages:
    """Images and labels of one csv file."""
    try:
        with naming_file(where), file.open("r", encoding="utf-8") as lines:
            return _parse(lines, where)
    # Of a zip file that is damaged, encrypted or compressed by an unknown method.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} cannot be read ({error}); download it again.") from None


def _parse(lines: Iterable[str], where: str) -> ListedImages:
    names, cells = [], []  # cells of a row: "0,1,0"
    for line in lines:
        if line.strip():
            name, _, label_cells = line.partition(",")
            names.append(name.strip())
            cells.append(label_cells.strip())
    if not names:
        raise ValueError(f"{where} is empty.")
    width = len(cells[0])  # an odd number of characters
    for number, cell in enumerate(cells, 1):
        if len(cell) != width or width % 2 == 0:
            raise ValueError(
                f"{where}, row {number}: expected as many 0/1 columns as row 1, got {shown(cell)}."
            )
    text = "".join(cells).encode("ascii", "replace")  # a byte for each character
    characters = np.frombuffer(text, dtype=np.uint8).reshape(len(cells), width)
    labels, commas = characters[:, ::2] - ord("0"), characters[:, 1::2]
    wrong = (labels > 1).any(1) | (commas != ord(",")).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{where}, row {row + 1}: labels must be 0 or 1, got {shown(cells[row])}.")
    return ListedImages(names, torch.from_numpy(labels.astype(np.int8)))


def _increments(nested: list[ListedImages], path: Path) -> list[ListedImages]:
    """The images each cumulative test list adds, with the labels of the last list, which has all classes."""
    final_names, final_labels = nested[-1]
    position = {name: row for row, name in enumerate(final_names)}
    seen: set[str] = set()
    increments = []
    for task, (names, labels) in enumerate(nested):
        where = f"{path}: task{task}/test.csv"
        dropped = seen.difference(names) | set(names).difference(position)
        if dropped:
            raise ValueError(
                f"{where}: lists must be cumulative, but {cut(min(dropped))} is not in a later one."
            )
        rows = torch.tensor([position[name] for name in names])
        contradicted = (final_labels[rows, : labels.shape[1]] != labels).any(1)
        if contradicted.any():
            name = names[int(contradicted.int().argmax())]
            raise ValueError(f"{where} contradicts the last task's list on {cut(name)}.")
        added = [name for name in dict.fromkeys(names) if name not in seen]
        seen.update(added)
        increments.append(ListedImages(added, final_labels[[position[name] for name in added]]))
    repeated = [name for name, n in Counter(final_names).items() if n > 1]
    if repeated:
        names_shown = listed(map(repr, repeated))
        message = f"{path.name} lists the test images [{names_shown}] more than once; each is kept once."
        warnings.warn(message, stacklevel=4)
    return increments


def _find_rows(names: Sequence[str], row_of: Callable[[str], int]) -> Tensor:
    try:
        return torch.tensor([row_of(name) for name in names], dtype=torch.long)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"The split lists do not fit the data: one of their images is not in it ({shorten(str(error))}); "
            "use lists made for this data set."
        ) from None


def _match_columns(list_labels: Tensor, is_known: Tensor, labels: Tensor, names: Sequence[str]) -> list[int]:
    """For each column of the lists, the class of the data that differs from it on the fewest images.

    ``list_labels`` and ``is_known`` are [images, columns]: 1 for a positive, and where the lists have a label
    at all. ``labels`` are those of the data, [images, classes].
    """
    positives = list_labels.sum(0)
    # |a ≠ b| = Σa + Σb − 2 Σab for labels of 0 and 1, for all pairs of a column and a class at once.
    all_differences = positives[:, None] + (is_known.float() - 2 * list_labels.float()).T @ labels.float()
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
            f"{listed(repr(names[c]) for c in classes.tolist())}."
        )
    return classes.tolist()
