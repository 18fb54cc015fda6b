"""MS-COCO as a class-incremental benchmark (Split-COCO)."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch
from pycocotools.coco import COCO
from torch import Tensor

from avalanche_agcn.benchmarks import published
from avalanche_agcn.benchmarks.image_files import ImageOptions, check_inside
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import Crowds, resolve_options
from avalanche_agcn.benchmarks.split import ClassOrder
from avalanche_agcn.checks import check_choice, check_fields, fail, read_json

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
    protocol: str = "paper",
    n_classes: int | None = None,
    n_experiences: int | None = None,
    class_order: ClassOrder | None = None,
    split_lists: str | os.PathLike | None = None,
    year: int | None = None,
    crowds: Crowds | None = None,
    backbone: Any = None,
    seed: int = 0,
    **options: Any,
) -> MultiLabelBenchmark:
    """Split-COCO: categories of MS-COCO, a few in each experience.

    With ``protocol="paper"`` the 40 most frequent categories come in 10 experiences of 4, each image appears
    once, and an image has a label if it has an annotation of that category, crowds included. With
    ``"B0-C10"`` and other B protocols all categories come in alphabetical order and images repeat. Every
    convention is a setting of its own that overrides the protocol's (see ``protocols.py``), and
    ``print(benchmark.protocol)`` shows what is in force. The train images come from ``train2014`` (or 2017),
    the test images from ``val2014``.

    With ``split_lists`` the images of each experience and their labels are exactly the published ones. If
    there are annotation files too, the lists are checked against them and ``complete_train_dataset`` is
    available.

    Args:
        dataset_root: folder with ``annotations/instances_train2014.json``, ``instances_val2014.json`` and the
            image folders ``train2014`` and ``val2014``; or those of 2017. Images are opened when needed.
        protocol: ``"paper"``, or ``"B<n>-C<m>"``: n classes in the first experience if n is not 0, then m
            in each.
        n_classes: the number of categories, those on most train images; by default as in the protocol or the
            split lists.
        n_experiences: number of experiences with equally many classes; by default likewise.
        class_order: category names in order of appearance (these are then the classes), numbers that
            reorder the most frequent ones, ``"data"`` (by their ids), ``"alphabetical"``
            or ``"shuffled-3"``, drawn with seed 3.
        split_lists: folder or zip of published split lists, which decide classes, experiences and images.
        year: 2014 or 2017; by default the one whose annotations are found, 2014 first.
        crowds: what crowd boxes count as: ``"labels"``, ``"membership"`` or ``"ignore"``; see `Protocol`.
        backbone: network for which images are normalised, by its ``mean`` and ``std``; ImageNet's if None.
        seed: of all random draws.
        **options: further `ImageOptions` (``image_size``, ``train_transform``, ``validation_size``, …) and
            settings of the `Protocol` (``classes_per_experience``, ``repeat_images``, ``flip``, …).
    """
    root = Path(dataset_root)
    release = _find_release(root, year)
    if release is None and (split_lists is None or year == 2017):  # lists alone name files of 2014
        missing = f"annotations/instances_train{year or YEARS[0]}.json"
        raise FileNotFoundError(f"{root} has no {missing}; download and unpack COCO's annotations there.")
    options |= {"n_classes": n_classes, "n_experiences": n_experiences, "class_order": class_order}
    options |= {"crowds": crowds, "backbone": backbone, "seed": seed}
    if split_lists is not None:
        return _from_lists(root, release, *published.load_split_lists(split_lists, protocol, options))
    rules, images = resolve_options(protocol, options, paper_sizes=PAPER_SIZES, without=["difficult"])
    train, test = (read_coco(root, f"{subset}{release}", rules.crowds) for subset in ("train", "val"))
    return published.benchmark_from_tables(root, train, test, rules, images)


def read_coco(root: str | os.PathLike, subset: str, crowds: Crowds | None = "labels") -> published.LabelTable:
    """Image-level labels of ``"train2014"``, ``"val2017"``, …, from COCO's folder; see `read_instances`."""
    path = Path(root) / "annotations" / f"instances_{subset}.json"
    return read_instances(path, folder=f"{subset}/", crowds=crowds)


def read_instances(path: Path, *, folder: str = "", crowds: Crowds | None = "labels") -> published.LabelTable:
    """Image-level labels from an annotation file in COCO's format; all its categories, in order of their ids.

    ``folder`` is a prefix of the image names, with a slash at the end; for ``crowds`` see `Protocol`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no annotation file {path}; download it, or correct its name.")
    coco = COCO()
    coco.dataset = read_json(path)
    _check_content(coco.dataset, path)
    with contextlib.redirect_stdout(io.StringIO()):  # createIndex prints its progress
        coco.createIndex()
    row_of = {number: row for row, number in enumerate(coco.imgs)}
    column_of = {number: column for column, number in enumerate(sorted(coco.cats))}

    def label_matrix(boxes: list[dict[str, Any]]) -> Tensor:
        labels = torch.zeros(len(row_of), len(column_of), dtype=torch.int8)
        rows = [row_of[box["image_id"]] for box in boxes]
        labels[rows, [column_of[box["category_id"]] for box in boxes]] = 1
        return labels

    boxes = coco.dataset["annotations"]
    counted = boxes if crowds == "labels" else [box for box in boxes if not box.get("iscrowd", 0)]
    membership = label_matrix(boxes) if crowds == "membership" else None
    files = [f"{folder}{image['file_name']}" for image in coco.imgs.values()]
    class_names = [coco.cats[category]["name"] for category in column_of]
    return published.LabelTable(files, label_matrix(counted), class_names, membership)


ENTRIES: dict[str, dict[str, Any]] = {
    "images": {"id": int, "file_name": str},
    "annotations": {"id": int, "image_id": int, "category_id": int},
    "categories": {"id": int, "name": str},
}
"""The fields of COCO's annotation files that are read, and their types."""


def _check_content(content: Any, path: Path) -> None:
    """Check the fields that are read, and that annotations refer to images and categories of the file."""
    check_fields(content, dict.fromkeys(ENTRIES, list), str(path))
    for part, types in ENTRIES.items():
        for k, entry in enumerate(content[part]):
            # First a cheap test: there are hundreds of thousands of annotations.
            if type(entry) is not dict or any(
                type(entry.get(name)) is not expected for name, expected in types.items()
            ):
                check_fields(entry, types, f"{path}: {part}[{k}]")
    for k, image in enumerate(content["images"]):
        check_inside(image["file_name"], f"{path}: images[{k}].file_name")
    n_images, n_boxes = len(content["images"]), len(content["annotations"])
    if not n_images or not n_boxes:
        raise ValueError(f"{path} has {n_images} images and {n_boxes} annotations; both are needed.")
    images, categories = ({entry["id"] for entry in content[part]} for part in ("images", "categories"))
    for k, box in enumerate(content["annotations"]):
        if box["image_id"] not in images:
            fail(f"{path}: annotations[{k}].image_id", "the id of an image", box["image_id"])
        if box["category_id"] not in categories:
            fail(f"{path}: annotations[{k}].category_id", "the id of a category", box["category_id"])


def _find_release(root: Path, year: int | None) -> int | None:
    """The year whose annotation files exist; None if there are none."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the one with COCO's `annotations`.")
    check_choice("year", year, [None, *YEARS])
    for release in YEARS if year is None else (year,):
        if (root / "annotations" / f"instances_train{release}.json").is_file():
            return release
    return None


def _from_lists(
    root: Path, release: int | None, lists: published.SplitLists, images: ImageOptions
) -> MultiLabelBenchmark:
    labels: Tensor | None = None
    if release is None:
        files = [_file_2014(image) for own, _ in lists.train + lists.test for image in own]
        names = list(SPLIT_COCO_CLASSES)
        if lists.n_classes != len(names):
            raise ValueError(
                f"The split lists have {lists.n_classes} classes, not the {len(names)} of Split-COCO; to "
                "find their names, put COCO's annotation files beside the images."
            )
    else:
        train, val = (read_coco(root, f"{subset}{release}") for subset in ("train", "val"))
        files, names = train.files + val.files, train.class_names
        labels = torch.cat([train.labels, val.labels])
    shared = slice(-len("000000000073.jpg"), None)  # the part of a file name that both releases have
    rows = {file[shared]: row for row, file in enumerate(files)}
    return published.benchmark_from_lists(
        root, lists, files, lambda image: rows[image[shared]], names, labels, images
    )


def _file_2014(image: str) -> str:
    match = re.fullmatch(r"COCO_(train2014|val2014)_\d{12}\.jpg", image)
    if match is None:
        raise ValueError(f"The split lists do not fit COCO: {image!r} is not a file of its 2014 release.")
    return f"{match[1]}/{image}"
