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

from avalanche_agcn.benchmarks.datasets import Transform
from avalanche_agcn.benchmarks.images import PAPER_IMAGE_SIZE, Truncated, paper_transforms
from avalanche_agcn.benchmarks.label_table import LabelTable, benchmark_from_lists, benchmark_from_tables
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.split_lists import (
    SplitLists,
    read_split_lists,
    refuse_other_sizes,
    refuse_settled_by_lists,
)

N_CLASSES, N_EXPERIENCES = 40, 10
"""The paper's, and those of the published lists."""

YEARS = (2014, 2017)
"""COCO's releases, the paper's first. Both have the same images, split differently into train and val."""

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

    With ``split_lists`` the assignment of images to experiences, and their labels, are the published ones, to
    the letter. If the annotation files are there too, the lists are checked against them and
    ``complete_train_dataset`` is available.

    Args:
        dataset_root: Folder with ``annotations/instances_train2014.json``, ``instances_val2014.json`` and the
            image folders ``train2014`` and ``val2014``; or those of 2017. Images are opened when needed.
        n_classes: How many of the categories on most train images, in order of category id; 40 if None, or
            as many as the split lists have.
        n_experiences: Number of experiences of equally many classes; 10 if None, or as in the split lists.
        class_order: Category names in their order of appearance (these are then the classes), or numbers that
            reorder the most frequent ones.
        split_lists: Folder or zip of published split lists, from which the classes, experiences and images
            follow.
        year: 2014 or 2017; by default the one whose annotations are there, 2014 first.
        image_size: Side of the default transforms' output.
        train_transform: Instead of the paper's (square, flip, ImageNet normalisation).
        eval_transform: Instead of the paper's (square, ImageNet normalisation).
        truncated: What to do with a file that ends too early, ``"warn"`` or ``"error"``.
        seed: Fixes all that is drawn.
        **protocol: Further options of ``multilabel_benchmark``: ``classes_per_experience``,
            ``repeat_images``, ``assignment``, ``validation_size``.

    Raises:
        FileNotFoundError: If the folder or its annotation files are missing.
        ValueError: If annotations, lists or the request do not fit.
    """
    root = Path(dataset_root)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}; give the one that has COCO's `annotations` in it")
    transforms = paper_transforms(image_size, train_transform, eval_transform)
    release = _release(root, year)
    if release is None and (split_lists is None or year == 2017):  # lists alone name files of 2014
        raise FileNotFoundError(
            f"{root} has no annotations/instances_train{year or YEARS[0]}.json; download and unpack COCO's "
            "annotations there"
        )
    if split_lists is not None:
        refuse_settled_by_lists(class_order=class_order, **protocol)
        lists = read_split_lists(split_lists)
        refuse_other_sizes(lists, n_classes=n_classes, n_experiences=n_experiences)
        return _from_lists(root, lists, release, truncated=truncated, **transforms)
    return benchmark_from_tables(
        root,
        read_coco(root, f"train{release}"),
        read_coco(root, f"val{release}"),
        n_classes=N_CLASSES if n_classes is None else n_classes,
        n_experiences=N_EXPERIENCES if n_experiences is None else n_experiences,
        class_order=class_order,
        truncated=truncated,
        seed=seed,
        **transforms,
        **protocol,
    )


def read_coco(root: str | os.PathLike, subset: str) -> LabelTable:
    """The image-level labels of one of COCO's annotation files.

    Args:
        root: COCO's folder.
        subset: ``"train2014"``, ``"val2017"``, …

    Returns:
        The file's images with all its categories, in order of category id.

    Raises:
        FileNotFoundError: If there is no such annotation file.
        ValueError: If it has no images, no annotations, or annotations of unknown images.
    """
    path = Path(root) / "annotations" / f"instances_{subset}.json"
    if not path.is_file():
        raise FileNotFoundError(f"no annotation file {path}; download COCO's annotations for {subset} there")
    coco = COCO(str(path))
    if not coco.imgs or not coco.anns:
        raise ValueError(
            f"{path} has {len(coco.imgs)} images and {len(coco.anns)} annotations; both are needed"
        )
    ids = np.fromiter(coco.imgs, dtype=np.int64, count=len(coco.imgs))
    rank = ids.argsort()
    categories = sorted(coco.cats)
    labels = np.zeros((len(ids), len(categories)), dtype=bool)
    for column, category in enumerate(categories):
        shown = np.array(coco.catToImgs.get(category, []), dtype=np.int64)
        place = np.searchsorted(ids, shown, sorter=rank).clip(max=len(ids) - 1)
        rows = rank[place]
        unknown = shown[ids[rows] != shown]
        if unknown.size:
            raise ValueError(
                f"{path} has annotations for image id {unknown[0]}, which is not among its images"
            )
        labels[rows, column] = True
    return LabelTable(
        files=[f"{subset}/{image['file_name']}" for image in coco.imgs.values()],
        labels=torch.from_numpy(labels),
        class_names=[coco.cats[category]["name"] for category in categories],
    )


def _release(root: Path, year: int | None) -> int | None:
    """The year whose annotation files are there."""
    if year is not None and year not in YEARS:
        raise ValueError(f"year must be one of {YEARS}, got {year}")
    candidates = YEARS if year is None else (year,)
    there = [y for y in candidates if (root / "annotations" / f"instances_train{y}.json").is_file()]
    return there[0] if there else None


def _from_lists(root: Path, lists: SplitLists, release: int | None, **options: Any) -> MultiLabelBenchmark:
    if release is None:
        images = [image for images, _ in [*lists.train, *lists.test] for image in images]
        files, names, labels = [_file_2014(image) for image in images], _published_names(lists), None
    else:
        train, val = read_coco(root, f"train{release}"), read_coco(root, f"val{release}")
        files, names, labels = (
            train.files + val.files,
            train.class_names,
            torch.cat([train.labels, val.labels]),
        )
    rows = {_image_number(file): row for row, file in enumerate(files)}
    return benchmark_from_lists(
        root,
        lists,
        files,
        lambda image: rows[_image_number(image)],
        class_names=names,
        labels=labels,
        **options,
    )


def _published_names(lists: SplitLists) -> list[str]:
    if lists.n_classes != len(SPLIT_COCO_CLASSES):
        raise ValueError(
            f"the split lists have {lists.n_classes} classes, not the {len(SPLIT_COCO_CLASSES)} of "
            "Split-COCO; to find out which they are, put COCO's annotation files beside the images"
        )
    return list(SPLIT_COCO_CLASSES)


def _image_number(file: str) -> str:
    """What COCO's releases have in common: ``COCO_val2014_000000000073.jpg`` is ``000000000073.jpg``."""
    return file[-len("000000000073.jpg") :]


def _file_2014(image: str) -> str:
    match = re.fullmatch(r"COCO_(train2014|val2014)_\d{12}\.jpg", image)
    if match is None:
        raise ValueError(f"the split lists do not fit COCO: {image!r} is not a file name of its 2014 release")
    return f"{match[1]}/{image}"
