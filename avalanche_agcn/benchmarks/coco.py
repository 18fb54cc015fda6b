"""MS-COCO as a class-incremental benchmark (Split-COCO)."""

import contextlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pycocotools.coco import COCO
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform, Truncated, check_inside, plain_name
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import Conventions, Crowds, resolve_protocol
from avalanche_agcn.benchmarks.split import Assignment, ClassOrder, TestImages
from avalanche_agcn.benchmarks.split_lists import DataSet, SplitLists, benchmark_from_lists, load_split_lists
from avalanche_agcn.benchmarks.tables import LabelTable, benchmark_from_tables
from avalanche_agcn.checks import check_choice, check_fields, read_json, reject_value, same_spelling, shown

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
    classes_per_experience: Sequence[int] | None = None,
    class_order: ClassOrder | None = None,
    split_lists: str | os.PathLike | None = None,
    year: int | None = None,
    repeat_images: bool | None = None,
    assignment: Assignment | None = None,
    unlabelled_as_negative: bool | None = None,
    test_images: TestImages | None = None,
    crowds: Crowds | None = None,
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
    """Split-COCO: categories of MS-COCO, a few in each experience.

    With ``protocol="paper"`` the 40 most frequent categories come in 10 experiences of 4, each image appears
    once, and an image has a label if it has an annotation of that category, crowds included. With
    ``"B0-C10"`` and other B protocols all categories come in alphabetical order and images repeat. Every
    convention is also an argument that overrides the protocol's, which holds where the argument is None;
    ``print(benchmark.protocol)`` shows the result. The train images come from ``train2014`` (or 2017), the
    test images from ``val2014``.

    With ``split_lists`` the images of each experience and their labels are exactly the published ones. If
    there are also annotation files, the lists are checked against them and ``complete_train_dataset`` is
    available.

    Args:
        dataset_root: folder with ``annotations/instances_train2014.json``, ``instances_val2014.json`` and the
            image folders ``train2014`` and ``val2014``; or those of 2017. Images are opened when needed.
        protocol: ``"paper"``, or ``"B<n>-C<m>"``: n classes in the first experience if n is not 0, then m
            in each.
        n_classes: the number of categories, those on most train images; by default as in the protocol or the
            split lists.
        n_experiences: number of experiences with equally many classes; by default likewise.
        classes_per_experience: instead, the number of classes of each, such as ``[40, 10, 10, 10, 10]``.
        class_order: category names in order of appearance (these are then the classes), numbers that
            reorder the most frequent ones, ``"data"`` (by their ids), ``"alphabetical"``
            or ``"shuffled-3"``, drawn with seed 3.
        split_lists: folder or zip of published split lists, which decide classes, experiences and images.
        year: 2014 or 2017; by default the one whose annotations are found, 2014 first.
        repeat_images: whether an image is in every experience that it has a label of, instead of one.
        assignment: for images that appear once: the experience of the ``"rarest"`` label, or of a
            ``"random"`` one.
        unlabelled_as_negative: whether train targets outside the experience's own columns are 0, not NaN.
        test_images: ``"seen"``: test set i has the images with a class seen up to experience i; ``"all"``:
            every test set has all images.
        crowds: what crowd boxes count as: ``"labels"``, ``"membership"`` or ``"ignore"``; see `Protocol`.
        backbone: network for which images are normalised, by its ``mean`` and ``std``; ImageNet's if None.
        image_size: side of the square that images are scaled to.
        flip: whether half of the train images are mirrored, at random.
        mean: per channel, of images in [0, 1]; replaces the backbone's.
        std: standard deviation per channel; replaces the backbone's.
        train_transform: replaces scaling, flip and normalisation of train images; takes a PIL image.
        eval_transform: replaces scaling and normalisation of test images.
        truncated: ``"warn"`` and use the part of a truncated file that can be read, or ``"error"``.
        validation_size: number of train images (or their share, if below 1) held out at random, as
            ``valid_stream``.
        limit: use only the first images of each experience, at most this many.
        seed: of all random draws.
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
        crowds=crowds,
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
    release = _find_release(root, year)
    if release is None and (split_lists is None or year == 2017):  # lists alone name files of 2014
        missing = f"annotations/instances_train{year or YEARS[0]}.json"
        raise FileNotFoundError(
            f"{root} has no {missing}; unpack COCO's annotations there, or get those of 2014 by "
            "`download_coco` or --download."
        )
    if split_lists is not None:
        lists = load_split_lists(split_lists, protocol, conventions, image_options)
        return benchmark_from_lists(lists, _find_data(root, release, lists), conventions, image_options)
    rules = resolve_protocol(protocol, conventions, paper_sizes=PAPER_SIZES, not_in_data=["difficult"])
    train = read_coco(root, f"train{release}", rules.crowds)
    test = read_coco(root, f"val{release}", rules.crowds)
    return benchmark_from_tables(root, train, test, rules, image_options)


def read_coco(root: str | os.PathLike, subset: str, crowds: Crowds | None = "labels") -> LabelTable:
    """Image-level labels of ``"train2014"``, ``"val2017"``, …, from COCO's folder; see `read_instances`."""
    path = Path(root) / "annotations" / f"instances_{subset}.json"
    return read_instances(path, folder=f"{subset}/", crowds=crowds)


def read_instances(path: Path, *, folder: str = "", crowds: Crowds | None = "labels") -> LabelTable:
    """Image-level labels from an annotation file in COCO's format; all its categories, in order of their ids.

    ``folder`` is a prefix of the image names, with a slash at the end; for ``crowds`` see `Protocol`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no annotation file {path}; download it, or correct its name.")
    coco = COCO()
    coco.dataset = read_json(path, most=MAX_ANNOTATION_BYTES)
    _check_content(coco.dataset, path)
    with contextlib.redirect_stdout(io.StringIO()):  # createIndex prints its progress
        coco.createIndex()
    row_of = {image_id: row for row, image_id in enumerate(coco.imgs)}
    column_of = {category_id: column for column, category_id in enumerate(sorted(coco.cats))}

    def label_matrix(boxes: list[dict[str, Any]]) -> Tensor:
        labels = torch.zeros(len(row_of), len(column_of), dtype=torch.int8)
        rows = [row_of[box["image_id"]] for box in boxes]
        columns = [column_of[box["category_id"]] for box in boxes]
        labels[rows, columns] = 1
        return labels

    boxes = coco.dataset["annotations"]
    counted = boxes if crowds == "labels" else [box for box in boxes if not box.get("iscrowd", 0)]
    membership = label_matrix(boxes) if crowds == "membership" else None
    files = [f"{folder}{image['file_name']}" for image in coco.imgs.values()]
    class_names = [same_spelling(coco.cats[category]["name"]) for category in column_of]
    return LabelTable(files, label_matrix(counted), class_names, membership)


MAX_ANNOTATION_BYTES = 2**33  # COCO has 0.5 GB; other data sets in its format have several
ENTRIES: dict[str, dict[str, Any]] = {
    "images": {"id": int, "file_name": str},
    "annotations": {"id": int, "image_id": int, "category_id": int},
    "categories": {"id": int, "name": str},
}
"""The fields of COCO's annotation files that are read, and their types."""


def _check_content(content: Any, path: Path) -> None:
    """Check the fields that are read, and that annotations refer to one image and one category each."""
    check_fields(content, dict.fromkeys(ENTRIES, list), str(path))
    for part, types in ENTRIES.items():
        for k, entry in enumerate(content[part]):
            # First a cheap test: there are hundreds of thousands of annotations.
            if not _has_types(entry, types):
                check_fields(entry, types, f"{path}: {part}[{k}]")
    files: dict[str, int] = {}
    for k, image in enumerate(content["images"]):
        check_inside(image["file_name"], f"{path}: images[{k}].file_name")
        first = files.setdefault(plain_name(image["file_name"]), k)
        if first != k:
            raise ValueError(
                f"{path}: images[{first}] and images[{k}] are both {shown(image['file_name'])}; list each "
                "file once, and give its annotations that image_id."
            )
    n_images, n_boxes = len(content["images"]), len(content["annotations"])
    if not n_images or not n_boxes:
        raise ValueError(f"{path} has {n_images} images and {n_boxes} annotations; both are needed.")
    image_ids = _different_ids(content["images"], f"{path}: images")
    category_ids = _different_ids(content["categories"], f"{path}: categories")
    for k, box in enumerate(content["annotations"]):
        if box["image_id"] not in image_ids:
            reject_value(f"{path}: annotations[{k}].image_id", "the id of an image", box["image_id"])
        if box["category_id"] not in category_ids:
            reject_value(f"{path}: annotations[{k}].category_id", "the id of a category", box["category_id"])


def _different_ids(entries: list[dict[str, Any]], place: str) -> set[int]:
    """The ids of all entries; a ValueError names two entries with the same."""
    found: dict[int, int] = {}
    for k, entry in enumerate(entries):
        first = found.setdefault(entry["id"], k)
        if first != k:
            raise ValueError(
                f"{place}[{first}] and [{k}] have the same id, {shown(entry['id'])}; give each another "
                "one, also after joining files, and change the annotations that refer to it."
            )
    return set(found)


def _has_types(entry: Any, types: dict[str, type]) -> bool:
    """Whether an entry is a dictionary with values of exactly these types."""
    if type(entry) is not dict:
        return False
    for name, expected in types.items():  # noqa: SIM110 (all() takes twice as long, for each annotation)
        if type(entry.get(name)) is not expected:
            return False
    return True


def _find_release(root: Path, year: int | None) -> int | None:
    """The year whose annotation files exist; None if there are none."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the one with COCO's `annotations`.")
    check_choice("year", year, [None, *YEARS])
    for release in YEARS if year is None else (year,):
        if (root / "annotations" / f"instances_train{release}.json").is_file():
            return release
    return None


def _find_data(root: Path, release: int | None, lists: SplitLists) -> DataSet:
    """The files that split lists name, with their labels if there are annotations of a release."""
    labels: Tensor | None = None
    if release is None:
        files = [_file_2014(image) for image in lists.image_names]
        class_names = list(SPLIT_COCO_CLASSES)
        if lists.n_classes != len(class_names):
            raise ValueError(
                f"The split lists have {lists.n_classes} classes, not the {len(class_names)} of Split-COCO; "
                "to find their names, put COCO's annotation files beside the images."
            )
    else:
        train = read_coco(root, f"train{release}")
        val = read_coco(root, f"val{release}")
        files = train.files + val.files
        class_names = train.class_names
        labels = torch.cat([train.labels, val.labels])
    row_of_number = {_image_number(file): row for row, file in enumerate(files)}
    return DataSet(root, files, lambda image: row_of_number[_image_number(image)], class_names, labels)


def _image_number(file: str) -> str:
    """The last part of a file name, ``"000000000073.jpg"``, which is the same in both releases."""
    return file[-len("000000000073.jpg") :]


def _file_2014(image: str) -> str:
    match = re.fullmatch(r"COCO_(train2014|val2014)_\d{12}\.jpg", image)
    if match is None:
        raise ValueError(
            f"The split lists do not fit COCO: {shown(image)} is not a file of its 2014 release."
        )
    return f"{match[1]}/{image}"
