"""MS-COCO as a class-incremental benchmark (Split-COCO)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO

from avalanche_agcn.benchmarks.image_files import PAPER_IMAGE_SIZE, Transform, Truncated, paper_transforms
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.published import (
    LabelTable,
    SplitLists,
    benchmark_from_lists,
    benchmark_from_tables,
    load_split_lists,
)

PAPER_SIZES = (40, 10)
"""Classes and experiences, in the paper and in the published lists."""

YEARS = (2014, 2017)
"""COCO's releases, the paper's first. Both have the same images, with different train and val sets."""

SPLIT_COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle",
    "airplane", "bus", "train", "truck",
    "traffic light", "bench", "bird", "cat",
    "dog", "backpack", "umbrella", "handbag",
    "tie", "sports ball", "skateboard", "surfboard",
    "tennis racket", "bottle", "cup", "fork",
    "knife", "spoon", "bowl", "chair",
    "couch", "potted plant", "bed", "dining table",
    "toilet", "tv", "laptop", "cell phone",
    "sink", "book", "clock", "vase",
)  # fmt: skip
"""The columns of the published Split-COCO lists: the 40 categories on most train2014 images, by id."""


def SplitCOCO(
    dataset_root: str | os.PathLike,
    *,
    n_classes: int | None = None,
    n_experiences: int | None = None,
    class_order: Sequence[int | str] | None = None,
    split_lists: str | os.PathLike | None = None,
    year: int | None = None,
    image_size: int = PAPER_IMAGE_SIZE,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    truncated: Truncated = "warn",
    seed: int = 0,
    **protocol: Any,
) -> MultiLabelBenchmark:
    """Split-COCO: the most frequent categories of MS-COCO, a few in each experience.

    The paper takes 40 of the 80 categories into 10 experiences of 4. An image has a label if it has an
    annotation of that category, crowds included. The train images come from ``train2014`` (or 2017), the test
    images from ``val2014``. How an image with labels of several experiences is treated:
    ``multilabel_benchmark``.

    With ``split_lists`` the images of each experience and their labels are exactly the published ones. If the
    annotation files are there too, the lists are checked against them and ``complete_train_dataset`` is
    available.

    Args:
        dataset_root: folder with ``annotations/instances_train2014.json``, ``instances_val2014.json`` and the
            image folders ``train2014`` and ``val2014``; or those of 2017. Images are opened when needed.
        n_classes: how many of the categories on most train images, in order of their ids; 40 if None, or as
            many as the split lists have.
        n_experiences: number of experiences with equally many classes; 10 if None, or as in the split lists.
        class_order: category names in order of appearance (these are then the classes), or numbers that
            reorder the most frequent ones.
        split_lists: folder or zip of published split lists, which decide classes, experiences and images.
        year: 2014 or 2017; by default the one whose annotations are there, 2014 first.
        image_size: side of the default transforms' output.
        train_transform: in place of the paper's (square, flip, ImageNet normalisation).
        eval_transform: in place of the paper's (square, ImageNet normalisation).
        truncated: what to do with a truncated image file, ``"warn"`` or ``"error"``.
        seed: fixes everything that is drawn.
        **protocol: further options of ``multilabel_benchmark``: ``classes_per_experience``,
            ``repeat_images``, ``assignment``, ``validation_size``.

    Raises:
        FileNotFoundError: if the folder or its annotation files are missing.
        ValueError: if annotations, lists or arguments do not fit.
    """
    root = Path(dataset_root)
    release = _find_release(root, year)
    if release is None and (split_lists is None or year == 2017):  # lists alone name files of 2014
        raise FileNotFoundError(
            f"{root} has no annotations/instances_train{year or YEARS[0]}.json; download and unpack COCO's "
            "annotations there."
        )
    request = {"n_classes": n_classes, "n_experiences": n_experiences, "class_order": class_order} | protocol
    options = paper_transforms(image_size, train_transform, eval_transform) | {"truncated": truncated}
    if split_lists is not None:
        return _from_lists(root, load_split_lists(split_lists, **request), release, **options)
    train, test = (read_coco(root, f"{subset}{release}") for subset in ("train", "val"))
    return benchmark_from_tables(root, train, test, paper_sizes=PAPER_SIZES, seed=seed, **request, **options)


def read_coco(root: str | os.PathLike, subset: str) -> LabelTable:
    """Image-level labels from one of COCO's annotation files.

    Args:
        root: COCO's folder.
        subset: ``"train2014"``, ``"val2017"``, ….

    Returns:
        The file's images with all its categories, in order of category id.

    Raises:
        FileNotFoundError: if there is no such annotation file.
        ValueError: if it has no images, no annotations, or annotations of unknown images.
    """
    path = Path(root) / "annotations" / f"instances_{subset}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no annotation file {path}; download COCO's annotations for {subset} there."
        )
    coco = COCO(str(path))
    if not coco.imgs or not coco.anns:
        raise ValueError(
            f"{path} has {len(coco.imgs)} images and {len(coco.anns)} annotations; both are needed."
        )
    ids = np.fromiter(coco.imgs, dtype=np.int64, count=len(coco.imgs))
    rank = ids.argsort()
    categories = sorted(coco.cats)
    labels = np.zeros((len(ids), len(categories)), dtype=np.int8)
    for column, category in enumerate(categories):
        shown = np.array(coco.catToImgs.get(category, []), dtype=np.int64)
        # The row of each id, by binary search; an unknown id finds the row of another one.
        rows = rank[np.searchsorted(ids, shown, sorter=rank).clip(max=len(ids) - 1)]
        unknown = shown[ids[rows] != shown]
        if unknown.size:
            raise ValueError(
                f"{path} has annotations for image id {unknown[0]}, which is not among its images."
            )
        labels[rows, column] = 1
    return LabelTable(
        files=[f"{subset}/{image['file_name']}" for image in coco.imgs.values()],
        labels=torch.from_numpy(labels),
        class_names=[coco.cats[category]["name"] for category in categories],
    )


def _find_release(root: Path, year: int | None) -> int | None:
    """The year whose annotation files are there."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the one with COCO's `annotations`.")
    if year is not None and year not in YEARS:
        raise ValueError(f"year must be one of {YEARS}, not {year}.")
    candidates = YEARS if year is None else (year,)
    there = [y for y in candidates if (root / "annotations" / f"instances_train{y}.json").is_file()]
    return there[0] if there else None


def _from_lists(root: Path, lists: SplitLists, release: int | None, **options: Any) -> MultiLabelBenchmark:
    if release is None:
        files = [_file_2014(image) for listed in [*lists.train, *lists.test] for image in listed.images]
        options |= {"class_names": _published_names(lists), "labels": None}
    else:
        train, val = (read_coco(root, f"{subset}{release}") for subset in ("train", "val"))
        files = train.files + val.files
        options |= {"class_names": train.class_names, "labels": torch.cat([train.labels, val.labels])}
    rows = {_image_number(file): row for row, file in enumerate(files)}
    return benchmark_from_lists(root, lists, files, lambda image: rows[_image_number(image)], **options)


def _published_names(lists: SplitLists) -> list[str]:
    if lists.n_classes != len(SPLIT_COCO_CLASSES):
        raise ValueError(
            f"The split lists have {lists.n_classes} classes, not the {len(SPLIT_COCO_CLASSES)} of "
            "Split-COCO; to find their names, put COCO's annotation files beside the images."
        )
    return list(SPLIT_COCO_CLASSES)


def _image_number(file: str) -> str:
    """The part of a file name that both releases share, such as ``000000000073.jpg``."""
    return file[-len("000000000073.jpg") :]


def _file_2014(image: str) -> str:
    match = re.fullmatch(r"COCO_(train2014|val2014)_\d{12}\.jpg", image)
    if match is None:
        raise ValueError(
            f"The split lists do not fit COCO: {image!r} is not a file name of its 2014 release."
        )
    return f"{match[1]}/{image}"
