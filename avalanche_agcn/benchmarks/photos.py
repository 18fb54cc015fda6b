"""Your own photos as a class-incremental benchmark, with labels in the formats of common tools."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.coco import read_instances
from avalanche_agcn.benchmarks.csv_files import AS_USUAL, CSVColumns, Log, PhotoLabels, open_photos, read_csv
from avalanche_agcn.benchmarks.image_files import ImageOptions, Transform, Truncated, check_inside, plain_name
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.benchmarks.photo_checks import check_photos, summarise_experiences
from avalanche_agcn.benchmarks.protocols import B_PROTOCOL, Conventions, resolve_protocol
from avalanche_agcn.benchmarks.split import (
    Assignment,
    ClassOrder,
    TestImages,
    is_order_of_names,
    nearly_equal_sizes,
)
from avalanche_agcn.benchmarks.tables import LabelTable, benchmark_from_tables
from avalanche_agcn.benchmarks.voc import read_objects
from avalanche_agcn.checks import check_range, listed, shown

N_EXPERIENCES = 5
SPLIT_SEED = 0  # not the run's: runs with any seed are scored on the same test photos


def SplitPhotos(
    dataset_root: str | os.PathLike,
    *,
    labels: str | os.PathLike,
    test_labels: str | os.PathLike | None = None,
    test_size: float = 0.2,
    separator: str | None = None,
    file_column: str | None = None,
    label_columns: Sequence[str] = (),
    check_images: bool = True,
    protocol: str = "paper",
    n_classes: int | None = None,
    n_experiences: int | None = None,
    classes_per_experience: Sequence[int] | None = None,
    class_order: ClassOrder | None = None,
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
    log: Log = print,
) -> MultiLabelBenchmark:
    """Your own photos, a few of their classes in each experience.

    All photos are opened first, so that broken ones are found before training. Classes are divided as equally
    as possible. A CSV file with a column ``split`` of train and test says itself which photos to test on.

    Args:
        dataset_root: folder of the photos.
        labels: CSV file (see `multilabel_csv`), COCO annotations (a JSON file, or a folder with one, or with
            one for training and one for validation), or a folder of VOC's XML files.
        test_labels: the same for test photos, in the same folder of photos.
        test_size: without ``test_labels``, share of the photos of each class to test on; the same photos for
            any seed.
        separator: between the names in a cell of a CSV file; see `multilabel_csv`, as for the next two.
        file_column: header of the column of file names.
        label_columns: headers of the columns of labels.
        check_images: whether to open all photos first.
        protocol: ``"paper"`` or ``"B<n>-C<m>"``; this and all arguments below are those of `SplitCOCO`.
        n_classes: number of classes, the most frequent ones; all if None.
        n_experiences: number of experiences; by default 5, or fewer if there are less than ten classes.
        classes_per_experience: instead, the number of classes of each.
        class_order: names or numbers in order of appearance.
        repeat_images: whether a photo is in every experience that it has a label of.
        assignment: the rule for photos that appear once.
        unlabelled_as_negative: whether train targets of other experiences' classes are 0, not NaN.
        test_images: test on photos with a class seen so far, or on all.
        backbone: network for which photos are normalised.
        image_size: side of the square that photos are scaled to.
        flip: whether half of the train photos are mirrored, at random.
        mean: replaces the backbone's.
        std: replaces the backbone's.
        train_transform: replaces scaling, flip and normalisation.
        eval_transform: replaces scaling and normalisation.
        truncated: what to do with a truncated photo; see `ImageFiles`.
        validation_size: number or share of the train photos to hold out.
        limit: use at most this many photos of each experience.
        seed: of all random draws, except that of the test photos.
        log: receives a line about the labels, and warnings: classes with few test photos, similar names,
            photos that are both in train and test.

    Raises:
        OSError: if photos cannot be opened; names the first ten.
    """
    train, test = _read_both(
        Path(dataset_root),
        Path(labels),
        test_labels,
        test_size=test_size,
        columns=CSVColumns(separator, file_column, tuple(label_columns)),
        truncated=truncated if check_images else None,
        log=log,
    )
    if n_classes is None:
        names = class_order if is_order_of_names(class_order) else train.class_names
        assert names is not None
        n_classes = len(names)
    is_divided = n_experiences is not None or not B_PROTOCOL.fullmatch(protocol)
    if classes_per_experience is None and is_divided:
        n_default = min(N_EXPERIENCES, max(1, n_classes // 2))
        n_parts = n_default if n_experiences is None else n_experiences
        classes_per_experience = nearly_equal_sizes(n_classes, n_parts)
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
    rules = resolve_protocol(protocol, conventions, not_in_data=["crowds", "difficult"])
    benchmark = benchmark_from_tables(dataset_root, train, test, rules, image_options)
    if check_images:
        found = check_photos(benchmark, open_images=False)
        for line in summarise_experiences(benchmark):
            log(line)
        for sentence in found.errors + found.warnings:
            log(f"Warning: {sentence}.")
    return benchmark


def read_photos(
    images: str | os.PathLike,
    labels: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    columns: CSVColumns = AS_USUAL,
    truncated: Truncated | None = "warn",
    log: Log = print,
) -> PhotoLabels:
    """Labels in any format of `SplitPhotos`, after opening all photos, unless ``truncated`` is None."""
    path = Path(labels)
    if path.is_dir() or path.suffix == ".json":
        read = _read_annotations(path, Path(images), class_names)
    else:
        read = read_csv(path, class_names=class_names, chosen=columns)
    open_photos(images, read, truncated=truncated or "warn", log=log, check_images=truncated is not None)
    return read


def split_photos(targets: Tensor, test_size: float, seed: int = SPLIT_SEED) -> Tensor:
    """Draw test photos, [N] bool, as nearly as possible the same share of each class.

    Classes are divided one after the other, the rarest first, so that these also have train and test photos.
    """
    check_range("test_size", test_size, above=0, below=1)
    generator = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(targets), dtype=torch.bool)
    undecided = torch.ones(len(targets), dtype=torch.bool)
    rest = 0.0  # fraction of a photo, carried over to the next class
    for column in targets.sum(0).argsort(stable=True).tolist():
        shown = targets[:, column].bool()
        candidates = (shown & undecided).nonzero().flatten()
        shuffled = candidates[torch.randperm(len(candidates), generator=generator)]
        has_train_photo = bool((shown & ~undecided & ~is_test).any())
        most = len(candidates) if has_train_photo else len(candidates) - 1  # one remains to train on
        wanted = test_size * len(candidates) + rest
        n = max(0, min(int(wanted + 1e-9), most))
        is_test[shuffled[:n]] = True
        rest = wanted - n
        undecided[candidates] = False
    return is_test


def _read_both(
    root: Path,
    labels: Path,
    test_labels: str | os.PathLike | None,
    *,
    test_size: float,
    columns: CSVColumns,
    truncated: Truncated | None,
    log: Log,
) -> tuple[LabelTable, LabelTable]:
    """Labels of the train photos and of the test photos."""

    def read(path: str | os.PathLike, class_names: Sequence[str] | None = None) -> PhotoLabels:
        return read_photos(root, path, class_names=class_names, columns=columns, truncated=truncated, log=log)

    if test_labels is None:  # COCO's folder has a file for training and one for validation
        train_files = sorted(labels.glob("instances_train*.json"))
        val_files = sorted(labels.glob("instances_val*.json"))
        if len(train_files) == len(val_files) == 1:
            labels, test_labels = train_files[0], val_files[0]
    found = read(labels)
    photos = found.table
    if test_labels is not None:
        return photos, read(test_labels, photos.class_names).table
    if found.divides:
        return tables_of_splits(found, log)
    is_test = split_photos(photos.labels, test_size)
    if not is_test.any():
        raise ValueError(
            f"{test_size=} of {len(is_test)} photos leaves no test photo; add photos or test_labels."
        )
    return photos.rows(~is_test), photos.rows(is_test)


def tables_of_splits(found: PhotoLabels, log: Log) -> tuple[LabelTable, LabelTable]:
    """Train and test photos by the column ``split``; those of ``val`` are tested on if there is no test."""
    assert found.splits is not None
    counts = Counter(found.splits)
    tested = "test" if "test" in counts else "val"
    if "train" not in counts:
        raise ValueError("The column split has no photo to train on: write train beside some photos.")
    unused = f"; {counts['val']} of val are not used" if tested == "test" and counts["val"] else ""
    log(f"By the column split, {counts['train']} photos to train on and {counts[tested]} to test on{unused}.")
    return found.table_of("train"), found.table_of(tested)


def _read_annotations(path: Path, images: Path, class_names: Sequence[str] | None) -> PhotoLabels:
    """From a JSON file in COCO's format, or a folder with one or with XML files in VOC's format."""
    annotations = sorted(path.glob("*.xml"))
    table = _read_xml(annotations) if annotations else _read_coco(path, images)
    if class_names is not None:
        unknown = sorted(set(table.class_names) - set(class_names))
        if unknown:
            raise ValueError(
                f"{path} has classes that the train labels do not have: {listed(unknown)}; remove them."
            )
        columns = [list(class_names).index(name) for name in table.class_names]
        labels = torch.zeros(len(table.files), len(class_names), dtype=torch.int8)
        labels[:, columns] = table.labels
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
    files: list[str] = []
    names_of_rows: list[set[str]] = []
    found: dict[str, Path] = {}
    for path in annotations:
        file, objects = read_objects(path)
        check_inside(file, f"{path}: the filename")
        first = found.setdefault(plain_name(file), path)
        if first != path:
            raise ValueError(
                f"{path}: the filename {shown(file)} is also that of {first}; write all objects of a photo "
                "in one file."
            )
        files.append(file)
        names_of_rows.append({name for name, _ in objects})
    class_names = sorted(set().union(*names_of_rows))
    labels = torch.zeros(len(files), len(class_names), dtype=torch.int8)
    for row, names in enumerate(names_of_rows):
        labels[row, [class_names.index(name) for name in names]] = 1
    return LabelTable(files, labels, class_names)
