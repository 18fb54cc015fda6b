"""NUS-WIDE as a class-incremental benchmark (Split-WIDE)."""

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.benchmarks import published
from avalanche_agcn.benchmarks.image_files import ImageOptions
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import resolve_options
from avalanche_agcn.benchmarks.split import ClassOrder

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
    class_order: ClassOrder | None = None,
    split_lists: str | os.PathLike | None = None,
    backbone: Any = None,
    seed: int = 0,
    **options: Any,
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
    The other arguments and ``options`` are those of `SplitCOCO`; the order ``"data"`` is alphabetical, too.
    """
    root = Path(dataset_root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the one with NUS-WIDE's `ImageList`.")
    files = read_image_list(root / "ImageList" / "Imagelist.txt")
    options |= {"n_classes": n_classes, "n_experiences": n_experiences, "class_order": class_order}
    options |= {"backbone": backbone, "seed": seed}
    if split_lists is not None:
        return _from_lists(root, files, *published.load_split_lists(split_lists, protocol, options))
    without = ["crowds", "difficult"]
    rules, images = resolve_options(protocol, options, paper_sizes=PAPER_SIZES, without=without)
    table = read_nus_wide(root, files)
    train, test = (table.rows(part) for part in _train_and_test(root / "ImageList", files, images.seed))
    return published.benchmark_from_tables(root, train, test, rules, images)


def read_image_list(path: Path) -> list[str]:
    """Files of one of NUS-WIDE's image lists, relative to its folder: ``Flickr/<folder>/<file>``."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no image list {path}; unpack NUS-WIDE's ImageList there.")
    lines = path.read_text(encoding="utf-8").split("\n")
    return ["Flickr/" + line.strip().replace("\\", "/") for line in lines if line.strip()]


def read_nus_wide(root: Path, files: list[str]) -> published.LabelTable:
    """Labels of all concepts, in alphabetical order, for files in the order of the image list."""
    folder = root / LABELS
    paths = sorted(folder.glob("Labels_*.txt"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no Labels_<concept>.txt; unpack NUS-WIDE's Groundtruth there.")
    return published.LabelTable(
        files,
        torch.stack([_read_labels(path, len(files)) for path in paths], 1),
        [path.stem.removeprefix("Labels_") for path in paths],
    )


def _read_labels(path: Path, n_images: int) -> Tensor:
    content = path.read_bytes()
    text = np.frombuffer(content, dtype=np.uint8)
    labels = text[text > ord(" ")] - ord("0")
    wrong = (labels > 1).any()
    if len(labels) != n_images or wrong:
        found = f"it has {len(labels)} characters"
        if wrong:
            lines = enumerate(content.split(b"\n"), 1)
            number, line = next((n, line) for n, line in lines if line.strip(b"01 \r\t"))
            found = f"line {number} is {line.decode(errors='replace').strip()!r}"
        raise ValueError(
            f"{path} must have a line of 0 or 1 for each of the {n_images} images of the image list, "
            f"but {found}; unpack NUS-WIDE's Groundtruth again."
        )
    return torch.from_numpy(labels.view(np.int8))


def _train_and_test(folder: Path, files: list[str], seed: int) -> tuple[Tensor, Tensor]:
    """[N] bool twice: NUS-WIDE's own train and test images, or a random share of test images."""
    found: dict[str, Tensor] = {}
    for name in ("Train", "Test"):
        path = folder / f"{name}Imagelist.txt"
        if path.is_file():
            listed = set(read_image_list(path))
            found[name] = torch.tensor([file in listed for file in files])
    if not found:
        found["Test"] = torch.rand(len(files), generator=torch.Generator().manual_seed(seed)) < TEST_SHARE
    train = found["Train"] if "Train" in found else ~found["Test"]
    test = found.get("Test", ~train)
    both = train & test
    if both.any():
        raise ValueError(
            f"TrainImagelist.txt and TestImagelist.txt of {folder} have {int(both.sum())} images in common, "
            f"such as {files[int(both.int().argmax())]}; unpack NUS-WIDE's own lists there, or remove one."
        )
    return train, test


def _from_lists(
    root: Path, files: list[str], lists: published.SplitLists, images: ImageOptions
) -> MultiLabelBenchmark:
    lines = range(len(files))  # the lists count them from 0
    make = partial(
        published.benchmark_from_lists, root, lists, files, lambda line: lines.index(int(line)), images=images
    )
    if (root / LABELS).is_dir():
        table = read_nus_wide(root, files)
        try:
            return make(class_names=table.class_names, labels=table.labels)
        except published.LabelsDisagree as error:
            warnings.warn(f"{str(error).rstrip('.')}; the columns stay without names.", stacklevel=3)
    return make(class_names=[f"concept {column}" for column in range(lists.n_classes)], labels=None)
