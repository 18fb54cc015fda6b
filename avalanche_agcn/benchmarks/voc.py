"""PASCAL VOC as a class-incremental benchmark (Split-VOC)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform, Truncated, check_inside
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import Conventions, Difficult, resolve_protocol
from avalanche_agcn.benchmarks.split import Assignment, ClassOrder, TestImages
from avalanche_agcn.benchmarks.tables import LabelTable, benchmark_from_tables
from avalanche_agcn.checks import check_choice, listed, read_file, read_text, same_spelling, shown

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle",
    "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person",
    "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The 20 classes of PASCAL VOC, in alphabetical order as its image sets list them."""

SUBSETS = {2007: ("trainval", "test"), 2012: ("train", "val")}
"""Train and test images of each release. The test labels of 2012 are not public."""


def SplitVOC(
    dataset_root: str | os.PathLike,
    *,
    protocol: str = "B0-C4",
    n_classes: int | None = None,
    n_experiences: int | None = None,
    classes_per_experience: Sequence[int] | None = None,
    class_order: ClassOrder | None = None,
    year: int = 2007,
    repeat_images: bool | None = None,
    assignment: Assignment | None = None,
    unlabelled_as_negative: bool | None = None,
    test_images: TestImages | None = None,
    difficult: Difficult | None = None,
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
    """Split-VOC: the 20 classes of PASCAL VOC, a few in each experience.

    Published results are for ``"B0-C4"``, ``"B5-C3"``, ``"B4-C2"`` and ``"B10-C2"``: all classes in
    alphabetical order, images repeated, labels of other experiences 0. The AGCN paper has no Split-VOC;
    ``"paper"`` gives its conventions, all classes and the ``n_experiences`` that you pass.
    ``print(benchmark.protocol)`` shows all conventions.

    2007 has its ``trainval`` images for training and ``test`` for testing; 2012, whose test labels are not
    public, ``train`` and ``val``.

    ``dataset_root`` is the folder with ``VOCdevkit/VOC2007``, or ``VOCdevkit`` or ``VOC2007`` itself, with
    the official folders ``Annotations``, ``ImageSets/Main`` and ``JPEGImages``. The annotations are only
    needed if the label files of ``ImageSets/Main`` are missing; images are opened when needed. ``difficult``
    is the label of a class whose objects on an image are all marked difficult: ``"negative"`` (they are
    dropped, as KRT, CSC and L3A do) or ``"positive"``; the protocol's if None. The other arguments are those
    of `SplitCOCO`.
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
        difficult=difficult,
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
    check_choice("year", year, [*SUBSETS])
    root = _find_release(Path(dataset_root), year)
    rules = resolve_protocol(protocol, conventions, not_in_data=["crowds"])
    train_set, test_set = SUBSETS[year]
    train = read_voc(root, train_set, rules.difficult)
    test = read_voc(root, test_set, rules.difficult)
    return benchmark_from_tables(root, train, test, rules, image_options)


def read_voc(root: Path, subset: str, difficult: Difficult | None = "negative") -> LabelTable:
    """Image-level labels of an image set (``"trainval"``, ``"test"``, …) of the release in ``root``."""
    folder = root / "ImageSets" / "Main"
    images = _read_images(folder / f"{subset}.txt")
    paths = [folder / f"{name}_{subset}.txt" for name in VOC_CLASSES]
    missing = [path.name for path in paths if not path.is_file()]
    if len(missing) == len(paths):
        codes = _read_annotations(root / "Annotations", images)
    elif missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}; unpack the archive again.")
    else:
        codes = torch.stack([_read_labels(path, images) for path in paths], 1)
    positive = codes == 1 if difficult == "negative" else codes >= 0
    files = [f"JPEGImages/{image}.jpg" for image in images]
    return LabelTable(files, positive.to(torch.int8), list(VOC_CLASSES))


def _find_release(root: Path, year: int) -> Path:
    """The folder of a release, from it or one of its two parents."""
    candidates = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}", root]
    found = [folder for folder in candidates if (folder / "ImageSets" / "Main").is_dir()]
    if not found:
        raise FileNotFoundError(
            f"{root} has no VOCdevkit/VOC{year}/ImageSets/Main; give VOC's folder, or get VOC 2007 by "
            "`download_voc` or --download."
        )
    if found[0] == root and root.name != f"VOC{year}" and root.name.startswith("VOC20"):
        raise ValueError(f"{root} is not the release of {year}; pass year={root.name.removeprefix('VOC')}.")
    if not (found[0] / "JPEGImages").is_dir():
        raise FileNotFoundError(f"{found[0]} has no JPEGImages; unpack VOC {year} again.")
    return found[0]


def _read_images(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no image set {path}; unpack the part of VOC that has it there.")
    images = [row[0] for row in _read_rows(path)]  # other tools may write further columns
    for image in images:
        check_inside(image, f"{path}: an image")
    n, n_lines = len(set(images)), len(images)
    if n == 0 or n != n_lines:
        raise ValueError(f"{path} must list different images, but lists {n} in {n_lines} lines.")
    return images


def _read_rows(path: Path) -> list[list[str]]:
    return [line.split() for line in read_text(path).splitlines() if line.strip()]


def _read_labels(path: Path, images: list[str]) -> Tensor:
    """For each image 1 if the class is shown, 0 if all its objects are difficult, otherwise −1."""
    rows = _read_rows(path)
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or row[1] not in ("-1", "0", "1"):
            line = f"{path}, line {number}: {shown(' '.join(row))}"
            raise ValueError(f"{line} must be an image and -1, 0 or 1; unpack VOC again.")
    if [image for image, _ in rows] != images:
        raise ValueError(
            f"{path} has {len(rows)} images that are not the {len(images)} of its image set, in their order; "
            "unpack VOC again."
        )
    return torch.tensor([int(label) for _, label in rows], dtype=torch.int8)


def _read_annotations(folder: Path, images: list[str]) -> Tensor:
    """The same for all classes, [images, classes], from the XML files."""
    codes = torch.full((len(images), len(VOC_CLASSES)), -1, dtype=torch.int8)
    for row, image in enumerate(images):
        path = folder / f"{image}.xml"
        _, objects = read_objects(path)
        unknown = sorted({name for name, _ in objects} - set(VOC_CLASSES))
        if unknown:
            raise ValueError(
                f"{path} has objects of unknown classes {listed(unknown)}; VOC's are {listed(VOC_CLASSES)}."
            )
        for name, is_difficult in objects:
            column = VOC_CLASSES.index(name)
            code = 0 if is_difficult else 1
            codes[row, column] = max(int(codes[row, column]), code)
    return codes


def read_objects(path: Path) -> tuple[str, list[tuple[str, bool]]]:
    """The image of an XML file in VOC's format, the class of each object, and whether it is difficult."""
    if not path.is_file():
        raise FileNotFoundError(f"There is neither a label file nor an annotation {path}; unpack VOC again.")
    try:
        root = ElementTree.fromstring(read_file(path))
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is not a complete XML file ({error}); unpack VOC again.") from None
    objects = []
    for item in root.findall("object"):
        name = same_spelling(item.findtext("name", "").strip())
        is_difficult = item.findtext("difficult", "0").strip() == "1"
        objects.append((name, is_difficult))
    return root.findtext("filename", f"{path.stem}.jpg").strip(), objects
