"""Your own photos as a class-incremental benchmark, with labels in the formats of common tools."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.coco import read_instances
from avalanche_agcn.benchmarks.csv_files import Log, PhotoLabels, open_photos, read_csv
from avalanche_agcn.benchmarks.image_files import Truncated, check_inside
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.protocols import B_PROTOCOL, resolve_options
from avalanche_agcn.benchmarks.published import LabelTable, benchmark_from_tables
from avalanche_agcn.benchmarks.split import ClassOrder, is_order_of_names, nearly_equal_sizes
from avalanche_agcn.benchmarks.voc import read_objects
from avalanche_agcn.checks import check_range

N_EXPERIENCES = 5
SPLIT_SEED = 0  # not the run's: runs with any seed are scored on the same test photos


def SplitPhotos(
    dataset_root: str | os.PathLike,
    *,
    labels: str | os.PathLike,
    test_labels: str | os.PathLike | None = None,
    test_size: float = 0.2,
    separator: str | None = None,
    protocol: str = "paper",
    n_classes: int | None = None,
    n_experiences: int | None = None,
    class_order: ClassOrder | None = None,
    log: Log = print,
    **options: Any,
) -> MultiLabelBenchmark:
    """Your own photos, a few of their classes in each experience.

    All photos are opened first, so that broken ones are found before training. Classes are divided as equally
    as possible.

    Args:
        dataset_root: folder of the photos.
        labels: CSV file (see `multilabel_csv`), COCO annotations (a JSON file, or a folder with one, or with
            one for training and one for validation), or a folder of VOC's XML files.
        test_labels: the same for test photos, in the same folder of photos.
        test_size: without ``test_labels``, share of the photos of each class to test on; the same photos for
            any seed.
        separator: between the names in a cell of a CSV file; detected if None.
        protocol: see `SplitCOCO`.
        n_classes: number of classes, the most frequent ones; all if None.
        n_experiences: number of experiences; by default 5, or fewer if there are less than ten classes.
        class_order: names or numbers in order of appearance.
        log: receives one line about the labels, and one that names classes without a test photo.
        **options: further ones of `SplitCOCO`.

    Raises:
        OSError: if photos cannot be opened; names the first ten.
    """
    reading = {"separator": separator, "truncated": options.get("truncated", "warn"), "log": log}
    train, test = _read_both(Path(dataset_root), Path(labels), test_labels, test_size, reading)
    untested = [name for name, n in zip(test.class_names, test.labels.sum(0).tolist(), strict=True) if not n]
    if untested:
        log(f"No test photo shows {', '.join(untested)}; a class without test photos has no AP.")
    named = class_order if is_order_of_names(class_order) else train.class_names
    n_chosen = n_classes or len(named or ())
    if n_experiences is not None or not B_PROTOCOL.fullmatch(protocol):
        n = min(N_EXPERIENCES, max(1, n_chosen // 2)) if n_experiences is None else n_experiences
        options.setdefault("classes_per_experience", nearly_equal_sizes(n_chosen, n))
    options |= {"n_classes": n_chosen, "class_order": class_order}
    rules, images = resolve_options(protocol, options, without=["crowds", "difficult"])
    return benchmark_from_tables(dataset_root, train, test, rules, images)


def read_photos(
    images: str | os.PathLike,
    labels: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    separator: str | None = None,
    truncated: Truncated = "warn",
    log: Log = print,
) -> LabelTable:
    """Labels in any format of `SplitPhotos`, after opening all photos; see `multilabel_csv`."""
    path = Path(labels)
    if path.is_dir() or path.suffix == ".json":
        read = _read_annotations(path, Path(images), class_names)
    else:
        read = read_csv(path, class_names=class_names, separator=separator)
    open_photos(images, read, truncated=truncated, log=log)
    return read.table


def split_photos(targets: Tensor, test_size: float, seed: int = SPLIT_SEED) -> Tensor:
    """Draw test photos, [N] bool, as nearly as possible the same share of each class.

    Classes are divided one after the other, the rarest first, so that these have train and test photos too.
    """
    check_range("test_size", test_size, above=0, below=1)
    generator = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(targets), dtype=torch.bool)
    undecided = torch.ones(len(targets), dtype=torch.bool)
    rest = 0.0  # fraction of a photo, carried over to the next class
    for column in targets.sum(0).argsort(stable=True).tolist():
        shown = targets[:, column].bool()
        own = (shown & undecided).nonzero().flatten()
        drawn = own[torch.randperm(len(own), generator=generator)]
        kept = 0 if (shown & ~undecided & ~is_test).any() else 1  # each class has a photo to train on
        wanted = test_size * len(own) + rest
        n = max(0, min(int(wanted + 1e-9), len(own) - kept))
        is_test[drawn[:n]] = True
        rest = wanted - n
        undecided[own] = False
    return is_test


def _read_both(
    root: Path, labels: Path, test_labels: str | os.PathLike | None, test_size: float, options: dict[str, Any]
) -> tuple[LabelTable, LabelTable]:
    if test_labels is None:  # COCO's folder has a file for training and one for validation
        train, val = (sorted(labels.glob(f"instances_{part}*.json")) for part in ("train", "val"))
        if len(train) == len(val) == 1:
            labels, test_labels = train[0], val[0]
    photos = read_photos(root, labels, **options)
    if test_labels is not None:
        return photos, read_photos(root, test_labels, class_names=photos.class_names, **options)
    is_test = split_photos(photos.labels, test_size)
    if not is_test.any():
        raise ValueError(
            f"{test_size=} of {len(is_test)} photos leaves no test photo; add photos or test_labels."
        )
    return photos.rows(~is_test), photos.rows(is_test)


def _read_annotations(path: Path, images: Path, class_names: Sequence[str] | None) -> PhotoLabels:
    """From a JSON file in COCO's format, or a folder with one or with XML files in VOC's format."""
    annotations = sorted(path.glob("*.xml"))
    table = _read_xml(annotations) if annotations else _read_coco(path, images)
    if class_names is not None:
        unknown = sorted(set(table.class_names) - set(class_names))
        if unknown:
            raise ValueError(f"{path} has classes that the train labels do not have: {unknown}; remove them.")
        labels = torch.zeros(len(table.files), len(class_names), dtype=torch.int8)
        labels[:, [list(class_names).index(name) for name in table.class_names]] = table.labels
        table = LabelTable(table.files, labels, list(class_names))
    layout = f"{path}: annotations in {'VOC' if annotations else 'COCO'}'s format"
    return PhotoLabels(table, layout, [str(path)] * len(table.files))


def _read_coco(path: Path, images: Path) -> LabelTable:
    """Labels of the classes that images show; COCO's own images are in a folder for each part."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if len(files) != 1:
        raise ValueError(
            f"{path} has {len(files)} JSON files and no XML file: give a folder of VOC's XML files, a JSON "
            "file in COCO's format, or a CSV file."
        )
    part = files[0].stem.removeprefix("instances_")
    table = read_instances(files[0], folder=f"{part}/" if (images / part).is_dir() else "")
    shown = table.labels.any(0).nonzero().flatten()
    return LabelTable(table.files, table.labels[:, shown], [table.class_names[c] for c in shown])


def _read_xml(annotations: Sequence[Path]) -> LabelTable:
    found = [read_objects(path) for path in annotations]
    names = sorted({name for _, objects in found for name, _ in objects})
    labels = torch.zeros(len(found), len(names), dtype=torch.int8)
    for row, (path, (file, objects)) in enumerate(zip(annotations, found, strict=True)):
        check_inside(file, f"{path}: the filename")
        labels[row, [names.index(name) for name, _ in objects]] = 1
    return LabelTable([file for file, _ in found], labels, names)
