"""Split lists published as csv files: which image is in which task, with which labels.

The lists of the AGCN paper are ``task{t}/train.csv`` and ``task{t}/test.csv``, without header. A row is an
image (a file name, or a line number of NUS-WIDE's image list) and then 0 or 1 for each class. ``train.csv``
has the task's own classes only; ``test.csv`` is cumulative, in images as in classes.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_Readers = dict[str, Callable[[], str]]
_LIST_FILE = re.compile(r"(?:^|/)task(\d+)/(train|test)\.csv$")


@dataclass(frozen=True)
class SplitLists:
    """Published lists, in order of their tasks.

    Attributes:
        train: For each task its images and their labels, bool [images, the task's classes].
        test: For each task the images it adds to the test set and their labels, bool [images, all classes].
    """

    train: list[tuple[list[str], Tensor]]
    test: list[tuple[list[str], Tensor]]

    @property
    def n_classes(self) -> int:
        """Number of classes of all tasks."""
        return sum(self.classes_per_experience)

    @property
    def classes_per_experience(self) -> list[int]:
        """Number of classes each task adds."""
        return [labels.shape[1] for _, labels in self.train]


def read_split_lists(path: str | os.PathLike) -> SplitLists:
    """Read published split lists from a folder or a zip file, to the letter.

    A test image listed twice is kept once, with a warning that names it.

    Raises:
        FileNotFoundError: If there is no such folder or zip, or no list in it.
        ValueError: If a list is malformed or contradicts another one.
    """
    path = Path(path)
    files = _find_lists(path)
    n_tasks = 1 + max(task for task, _ in files)
    missing = [f"task{t}/{k}.csv" for t in range(n_tasks) for k in ("train", "test") if (t, k) not in files]
    if missing:
        raise FileNotFoundError(f"{path} lacks {missing}; every task needs a train.csv and a test.csv")
    tables = {key: _parse(read(), f"{path}: task{key[0]}/{key[1]}.csv") for key, read in files.items()}
    lists = SplitLists(
        train=[tables[task, "train"] for task in range(n_tasks)],
        test=_increments([tables[task, "test"] for task in range(n_tasks)], path),
    )
    _check_widths(lists, tables, path)
    _check_train_images_differ(lists, path)
    return lists


def refuse_settled_by_lists(**options: Any) -> None:
    """Refuse options that contradict split lists.

    Raises:
        ValueError: If one of them is given.
    """
    contradicting = [name for name, value in options.items() if value]
    if contradicting:
        raise ValueError(f"split_lists settle which image goes where: leave out {', '.join(contradicting)}")


def refuse_other_sizes(lists: SplitLists, *, n_classes: int | None, n_experiences: int | None) -> None:
    """Refuse numbers of classes or experiences that are not those of the split lists.

    Raises:
        ValueError: If one of them is given and differs.
    """
    asked = {"n_classes": n_classes, "n_experiences": n_experiences}
    listed = {"n_classes": lists.n_classes, "n_experiences": len(lists.train)}
    for name, value in asked.items():
        if value not in (None, listed[name]):
            raise ValueError(
                f"{name}={value} contradicts the split lists, which have {listed[name]}; leave it out, or "
                "use other lists"
            )


def _find_lists(path: Path) -> dict[tuple[int, str], Callable[[], str]]:
    if path.is_dir():
        readers: _Readers = {p.relative_to(path).as_posix(): p.read_text for p in path.rglob("*.csv")}
    elif zipfile.is_zipfile(path):
        readers = _zip_readers(path)
    else:
        raise FileNotFoundError(f"{path} is neither a folder nor a zip file of split lists")
    names: dict[tuple[int, str], str] = {}
    for name in sorted(readers):
        match = _LIST_FILE.search(name)
        if match and not name.startswith("__MACOSX"):
            other = names.setdefault((int(match[1]), match[2]), name)
            if other != name:
                raise ValueError(
                    f"{path} has two lists of one task, {other} and {name}; give the folder or zip of one set"
                )
    if not names:
        raise FileNotFoundError(f"{path} has no split lists; expected task0/train.csv, task0/test.csv, …")
    return {key: readers[name] for key, name in names.items()}


def _zip_readers(path: Path) -> _Readers:
    def reader(name: str) -> Callable[[], str]:
        def read() -> str:
            with zipfile.ZipFile(path) as archive:
                return archive.read(name).decode()

        return read

    with zipfile.ZipFile(path) as archive:
        return {name: reader(name) for name in archive.namelist()}


def _parse(text: str, where: str) -> tuple[list[str], Tensor]:
    """Images and labels of one csv file."""
    images, rows = [], []
    for line in text.splitlines():
        if line.strip():
            image, _, row = line.partition(",")
            images.append(image.strip())
            rows.append(row.strip())
    if not images:
        raise ValueError(f"{where} is empty")
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width or width % 2 == 0:
            raise ValueError(f"{where}, row {number}: expected as many 0/1 columns as in row 1, got {row!r}")
    cells = np.frombuffer("".join(rows).encode(), dtype=np.uint8).reshape(len(rows), width)
    values, commas = cells[:, ::2], cells[:, 1::2]
    wrong = ((values != ord("0")) & (values != ord("1"))).any(1) | (commas != ord(",")).any(1)
    if wrong.any():
        row_number = int(wrong.argmax())
        raise ValueError(f"{where}, row {row_number + 1}: labels must be 0 or 1, got {rows[row_number]!r}")
    return images, torch.from_numpy(values == ord("1"))


def _increments(nested: list[tuple[list[str], Tensor]], path: Path) -> list[tuple[list[str], Tensor]]:
    """What each cumulative test list adds, with the labels of the last list, which knows all classes."""
    final_images, final_labels = nested[-1]
    position = {image: i for i, image in enumerate(final_images)}
    seen: dict[str, None] = {}
    increments = []
    for task, (images, labels) in enumerate(nested):
        where = f"{path}: task{task}/test.csv"
        dropped = set(seen).difference(images) | set(images).difference(position)
        if dropped:
            raise ValueError(
                f"{where}: test lists must be cumulative, but {sorted(dropped)[0]} is not in every later one"
            )
        rows = torch.tensor([position[image] for image in images])
        contradicted = (final_labels[rows, : labels.shape[1]] != labels).any(1)
        if contradicted.any():
            raise ValueError(
                f"{where} contradicts the last task's list on {images[int(contradicted.int().argmax())]}"
            )
        new = [image for image in dict.fromkeys(images) if image not in seen]
        seen |= dict.fromkeys(new)
        increments.append((new, final_labels[[position[image] for image in new]]))
    _warn_of_repeats(final_images, path)
    return increments


def _warn_of_repeats(images: list[str], path: Path) -> None:
    repeated = [image for image, n in Counter(images).items() if n > 1]
    if repeated:
        warnings.warn(
            f"{path.name} lists the test images {repeated} more than once; each is kept once",
            stacklevel=4,
        )


def _check_widths(
    lists: SplitLists, tables: dict[tuple[int, str], tuple[list[str], Tensor]], path: Path
) -> None:
    seen = 0
    for task, size in enumerate(lists.classes_per_experience):
        seen += size
        width = tables[task, "test"][1].shape[1]
        if width != seen:
            raise ValueError(
                f"{path}: task{task}/test.csv has {width} classes, but the train lists up to it have {seen}"
            )


def _check_train_images_differ(lists: SplitLists, path: Path) -> None:
    images = [image for images, _ in lists.train for image in images]
    if len(set(images)) != len(images):
        raise ValueError(f"{path}: {len(images) - len(set(images))} train images are listed more than once")
