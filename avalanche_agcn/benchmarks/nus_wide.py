"""NUS-WIDE as a class-incremental benchmark (Split-WIDE)."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform, Truncated, check_inside
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import Conventions, resolve_protocol
from avalanche_agcn.benchmarks.split import Assignment, ClassOrder, TestImages
from avalanche_agcn.benchmarks.split_lists import (
    DataSet,
    LabelsDisagree,
    SplitLists,
    benchmark_from_lists,
    load_split_lists,
)
from avalanche_agcn.benchmarks.tables import LabelTable, benchmark_from_tables
from avalanche_agcn.checks import read_file, read_text, same_spelling, shown

PAPER_SIZES = (21, 7)
"""Classes and experiences, in the paper and in the published lists."""
LABELS = Path("Groundtruth") / "AllLabels"
TEST_SHARE = 0.4
"""Share of test images where NUS-WIDE's own lists are missing (its test list has 107,859 of 269,648)."""


def SplitWIDE(
    dataset_root: str | os.PathLike,
    *,
    protocol: str = "paper",
    n_classes: int | None = None,
    n_experiences: int | None = None,
    classes_per_experience: Sequence[int] | None = None,
    class_order: ClassOrder | None = None,
    split_lists: str | os.PathLike | None = None,
    repeat_images: bool | None = None,
    assignment: Assignment | None = None,
    unlabelled_as_negative: bool | None = None,
    test_images: TestImages | None = None,
    backbone: Any = None,
    image_size: int | None = None,
    flip: bool | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    truncated: Truncated = "warn",
    validation_size: float | int = 0.0,
    limit: int | None = None,
    seed: int = 0,
) -> MultiLabelBenchmark:
    """Split-WIDE: concepts of NUS-WIDE, a few in each experience.

    With ``protocol="paper"`` the 21 most frequent of the 81 concepts come in 7 experiences of 3; for the
    others see ``protocols.py``. Train and test images are those of NUS-WIDE's
    ``ImageList/TrainImagelist.txt`` and ``TestImagelist.txt``; if one of these is missing, all images that
    are not in the other; if both are, a seeded random share of 40 % is the test set.

    With ``split_lists`` the images of each experience and their labels are exactly the published ones. Their
    columns have no names; if there are ground truth files, each column gets the name of the concept it agrees
    with, and ``complete_train_dataset`` is available.

    ``dataset_root`` is the folder with ``ImageList/Imagelist.txt``, ``Groundtruth/AllLabels`` with a file
    ``Labels_<concept>.txt`` for each concept, and the images under ``Flickr``, which are opened when needed.
    The other arguments are those of `SplitCOCO`; the order ``"data"`` is also alphabetical.
    """
    conventions = Conventions(
        n_classes=n_classes,
        n_experiences=n_experiences,
        classes_per_experience=classes_per_experience,
        class_order=class_order,
        repeat_images=repeat_images,
        assignment=assignment,
        unlabelled_as_negative=unlabelled_as_negative,
        test_images=test_images,
        image_size=image_size,
        flip=flip,
    )
    image_options = ImageOptions(
        train_transform=train_transform,
        eval_transform=eval_transform,
        backbone=backbone,
        mean=mean,
        std=std,
        truncated=truncated,
        validation_size=validation_size,
        limit=limit,
        seed=seed,
    )
    root = Path(dataset_root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the one with NUS-WIDE's `ImageList`.")
    files = read_image_list(root / "ImageList" / "Imagelist.txt")
    if split_lists is not None:
        lists = load_split_lists(split_lists, protocol, conventions, image_options)
        return _from_lists(root, files, lists, conventions, image_options)
    not_in_data = ["crowds", "difficult"]
    rules = resolve_protocol(protocol, conventions, paper_sizes=PAPER_SIZES, not_in_data=not_in_data)
    table = read_nus_wide(root, files)
    is_train, is_test = _train_and_test(root / "ImageList", files, seed)
    return benchmark_from_tables(root, table.rows(is_train), table.rows(is_test), rules, image_options)


def read_image_list(path: Path) -> list[str]:
    """Files of one of NUS-WIDE's image lists, relative to its folder: ``Flickr/<folder>/<file>``."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no image list {path}; unpack NUS-WIDE's ImageList there.")
    files = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        name = line.strip().replace("\\", "/")
        if name:
            check_inside(name, f"{path}, line {number}")
            files.append(f"Flickr/{name}")
    return files


def read_nus_wide(root: Path, files: list[str]) -> LabelTable:
    """Labels of all concepts, in alphabetical order, for files in the order of the image list."""
    folder = root / LABELS
    paths = sorted(folder.glob("Labels_*.txt"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no Labels_<concept>.txt; unpack NUS-WIDE's Groundtruth there.")
    return LabelTable(
        files,
        torch.stack([_read_labels(path, len(files)) for path in paths], 1),
        [same_spelling(path.stem.removeprefix("Labels_")) for path in paths],
    )


def _read_labels(path: Path, n_images: int) -> Tensor:
    content = read_file(path)
    text = np.frombuffer(content, dtype=np.uint8)
    labels = text[text > ord(" ")] - ord("0")
    if (labels > 1).any():
        found = _describe_wrong_line(content)
    elif len(labels) != n_images:
        found = f"it has {len(labels)} characters"
    else:
        return torch.from_numpy(labels.view(np.int8))
    raise ValueError(
        f"{path} must have a line of 0 or 1 for each of the {n_images} images of the image list, "
        f"but {found}; unpack NUS-WIDE's Groundtruth again."
    )


def _describe_wrong_line(content: bytes) -> str:
    """The first line with anything but 0 and 1, and its number."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip(b"01 \r\t"):
            return f"line {number} is {shown(line.decode(errors='replace').strip())}"
    raise AssertionError("all lines have 0 and 1 only")


def _train_and_test(folder: Path, files: list[str], seed: int) -> tuple[Tensor, Tensor]:
    """Which files are train and which are test images, two [N] bool: as listed, else drawn at random."""
    train = _find_listed(folder / "TrainImagelist.txt", files)
    test = _find_listed(folder / "TestImagelist.txt", files)
    if train is None and test is None:
        test = torch.rand(len(files), generator=torch.Generator().manual_seed(seed)) < TEST_SHARE
    if train is None:
        assert test is not None
        train = ~test
    if test is None:
        test = ~train
    both = train & test
    if both.any():
        raise ValueError(
            f"TrainImagelist.txt and TestImagelist.txt of {folder} have {int(both.sum())} images in common, "
            f"such as {files[int(both.int().argmax())]}; unpack NUS-WIDE's own lists there, or remove one."
        )
    return train, test


def _find_listed(path: Path, files: list[str]) -> Tensor | None:
    """Which files are in an image list, [N] bool; None if there is no such list."""
    if not path.is_file():
        return None
    listed = set(read_image_list(path))
    return torch.tensor([file in listed for file in files])


def _from_lists(
    root: Path, files: list[str], lists: SplitLists, conventions: Conventions, image_options: ImageOptions
) -> MultiLabelBenchmark:
    lines = range(len(files))  # the lists count them from 0
    numbers = [f"concept {column}" for column in range(lists.n_classes)]
    data = DataSet(root, files, lambda line: lines.index(int(line)), class_names=numbers)
    if (root / LABELS).is_dir():
        table = read_nus_wide(root, files)
        labelled = replace(data, class_names=table.class_names, labels=table.labels)
        try:
            return benchmark_from_lists(lists, labelled, conventions, image_options)
        except LabelsDisagree as error:
            warnings.warn(f"{str(error).rstrip('.')}; the columns stay without names.", stacklevel=3)
    return benchmark_from_lists(lists, data, conventions, image_options)
