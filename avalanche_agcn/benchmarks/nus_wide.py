"""NUS-WIDE as a class-incremental benchmark (Split-WIDE)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.benchmarks.datasets import Transform
from avalanche_agcn.benchmarks.images import PAPER_IMAGE_SIZE, Truncated, paper_transforms
from avalanche_agcn.benchmarks.label_table import (
    LabelsDisagree,
    LabelTable,
    benchmark_from_lists,
    benchmark_from_tables,
)
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.split_lists import (
    SplitLists,
    read_split_lists,
    refuse_other_sizes,
    refuse_settled_by_lists,
)

N_CLASSES, N_EXPERIENCES = 21, 7
"""The paper's, and those of the published lists."""
LABELS = Path("Groundtruth") / "AllLabels"
TEST_SHARE = 0.4
"""Share of test images where NUS-WIDE's own lists are missing (its test list has 107,859 of 269,648)."""


def SplitWIDE(
    dataset_root: str | os.PathLike,
    *,
    n_classes: int | None = None,
    n_experiences: int | None = None,
    class_order: Sequence[int | str] | None = None,
    split_lists: str | os.PathLike | None = None,
    image_size: int = PAPER_IMAGE_SIZE,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    truncated: Truncated = "warn",
    seed: int = 0,
    **protocol: Any,
) -> MultiLabelBenchmark:
    """Split-WIDE: the most frequent concepts of NUS-WIDE, a few in each experience.

    The paper takes 21 of the 81 concepts into 7 experiences of 3. Train and test images are those of
    NUS-WIDE's ``ImageList/TrainImagelist.txt`` and ``TestImagelist.txt``; where one of these is missing, all
    images that the other does not have; where both are, a seeded random share of 40 % is the test set. How an
    image with labels of several experiences is treated: ``multilabel_benchmark``.

    With ``split_lists`` the assignment of images to experiences, and their labels, are the published ones, to
    the letter. Their columns have no names; where the ground truth files are there, each column gets the name
    of the concept it agrees with, and ``complete_train_dataset`` is available.

    Args:
        dataset_root: Folder with ``ImageList/Imagelist.txt``, ``Groundtruth/AllLabels/Labels_<concept>.txt``
            and the images under ``Flickr``. Images are opened when needed.
        n_classes: How many of the concepts on most images of the train set, in alphabetical order; 21 if
            None, or as many as the split lists have.
        n_experiences: Number of experiences of equally many classes; 7 if None, or as in the split lists.
        class_order: Concept names in their order of appearance (these are then the classes), or numbers that
            reorder the most frequent ones.
        split_lists: Folder or zip of published split lists, from which the classes, experiences and images
            follow.
        image_size: Side of the default transforms' output.
        train_transform: Instead of the paper's (square, flip, ImageNet normalisation).
        eval_transform: Instead of the paper's (square, ImageNet normalisation).
        truncated: What to do with a file that ends too early, ``"warn"`` or ``"error"``.
        seed: Fixes all that is drawn.
        **protocol: Further options of ``multilabel_benchmark``: ``classes_per_experience``,
            ``repeat_images``, ``assignment``, ``validation_size``.

    Raises:
        FileNotFoundError: If the folder, the image list or the ground truth are missing.
        ValueError: If the files, lists or the request do not fit.
    """
    root = Path(dataset_root)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}; give the one that has NUS-WIDE's `ImageList` in it")
    transforms = paper_transforms(image_size, train_transform, eval_transform)
    files = read_image_list(root / "ImageList" / "Imagelist.txt")
    if split_lists is not None:
        refuse_settled_by_lists(class_order=class_order, **protocol)
        lists = read_split_lists(split_lists)
        refuse_other_sizes(lists, n_classes=n_classes, n_experiences=n_experiences)
        return _from_lists(root, lists, files, truncated=truncated, **transforms)
    table = read_nus_wide(root, files)
    is_train, is_test = _own_split(root / "ImageList", files, seed)
    return benchmark_from_tables(
        root,
        _rows(table, is_train),
        _rows(table, is_test),
        n_classes=N_CLASSES if n_classes is None else n_classes,
        n_experiences=N_EXPERIENCES if n_experiences is None else n_experiences,
        class_order=class_order,
        truncated=truncated,
        seed=seed,
        **transforms,
        **protocol,
    )


def read_image_list(path: Path) -> list[str]:
    """Files of one of NUS-WIDE's image lists, relative to its folder: ``Flickr/<folder>/<file>``.

    Raises:
        FileNotFoundError: If there is no such list.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no image list {path}; unpack NUS-WIDE's ImageList there")
    lines = path.read_text(encoding="utf-8").split("\n")
    return ["Flickr/" + line.strip().replace("\\", "/") for line in lines if line.strip()]


def read_nus_wide(root: Path, files: list[str]) -> LabelTable:
    """The labels of all concepts, in alphabetical order.

    Args:
        root: NUS-WIDE's folder.
        files: Its images, in the order of its image list.

    Raises:
        FileNotFoundError: If there is no ground truth.
        ValueError: If a label file does not have one 0 or 1 for each image.
    """
    folder = root / LABELS
    paths = sorted(folder.glob("Labels_*.txt"))
    if not paths:
        raise FileNotFoundError(f"no Labels_<concept>.txt in {folder}; unpack NUS-WIDE's Groundtruth there")
    return LabelTable(
        files,
        torch.stack([_read_labels(path, len(files)) for path in paths], 1),
        [path.stem.removeprefix("Labels_") for path in paths],
    )


def _read_labels(path: Path, n_images: int) -> Tensor:
    text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    digits = text[text > ord(" ")]
    strange = (digits != ord("0")) & (digits != ord("1"))
    if len(digits) != n_images or strange.any():
        found = _first_strange_line(text) if strange.any() else f"it has {len(digits)} characters"
        raise ValueError(
            f"{path} must have a line of 0 or 1 for each of the {n_images} images of the image list, "
            f"but {found}; unpack NUS-WIDE's Groundtruth anew"
        )
    return torch.from_numpy(digits == ord("1"))


def _first_strange_line(text: np.ndarray) -> str:
    """The first line with anything but 0 and 1."""
    place = np.flatnonzero((text > ord(" ")) & (text != ord("0")) & (text != ord("1")))[0]
    before = np.count_nonzero(text[:place] == ord("\n"))
    line = text.tobytes().split(b"\n")[before].decode(errors="replace")
    return f"line {before + 1} is {line.strip()!r}"


def _own_split(folder: Path, files: list[str], seed: int) -> tuple[Tensor, Tensor]:
    """[N] bool twice: NUS-WIDE's own train and test images, or a random share of test images.

    Raises:
        ValueError: If an image is in both lists.
    """
    train, test = (_listed(folder / name, files) for name in ("TrainImagelist.txt", "TestImagelist.txt"))
    if test is None:
        drawn = torch.rand(len(files), generator=torch.Generator().manual_seed(seed)) < TEST_SHARE
        test = drawn if train is None else ~train
    if train is None:
        train = ~test
    both = train & test
    if both.any():
        raise ValueError(
            f"TrainImagelist.txt and TestImagelist.txt of {folder} have {int(both.sum())} images in common, "
            f"such as {files[int(both.int().argmax())]}; unpack NUS-WIDE's own lists there, or remove one"
        )
    return train, test


def _listed(path: Path, files: list[str]) -> Tensor | None:
    """[N] bool: which of the images the list has; None if there is no such list."""
    if not path.is_file():
        return None
    listed = set(read_image_list(path))
    return torch.tensor([file in listed for file in files])


def _rows(table: LabelTable, keep: Tensor) -> LabelTable:
    files = [file for file, kept in zip(table.files, keep.tolist(), strict=True) if kept]
    return LabelTable(files, table.labels[keep], table.class_names)


def _from_lists(root: Path, lists: SplitLists, files: list[str], **options: Any) -> MultiLabelBenchmark:
    lines = range(len(files))  # the lists count them from 0
    make = partial(benchmark_from_lists, root, lists, files, lambda image: lines.index(int(image)), **options)
    if (root / LABELS).is_dir():
        table = read_nus_wide(root, files)
        try:
            return make(class_names=table.class_names, labels=table.labels)
        except LabelsDisagree as error:
            warnings.warn(f"{error}; the columns stay without names", stacklevel=3)
    return make(class_names=[f"concept {column}" for column in range(lists.n_classes)], labels=None)
