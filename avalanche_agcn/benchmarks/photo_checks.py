"""What to know about photos before training on them: counts per class, and labels and files to look at."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from avalanche_agcn.benchmarks.image_files import ImageFiles, find_unreadable
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.checks import listed

FEW_POSITIVES = 10
"""With fewer positives in the test photos, the AP of a class is mostly noise."""
LEAST_OWN_SHARE = 1 / 3
"""A class with a smaller share of its train photos in its own experience is learned from too few of them."""
SEPARATORS = str.maketrans("_-", "  ")
SEVERAL_NAMES = re.compile(r"[;|,\[\]{}\"]")
"""Characters of names that may be several names, or a list as Python or JSON writes it."""


class ClassCounts(NamedTuple):
    """Photos that show a class."""

    experience: int  # that it appears in, from 1
    name: str
    n_train: int
    n_own: int  # of the train photos, those in its own experience, which alone have its label
    n_test: int


class PhotoChecks(NamedTuple):
    """What was found in photos and labels, each as sentences without full stop."""

    errors: list[str]  # to be corrected before training
    warnings: list[str]


def count_classes(benchmark: MultiLabelBenchmark) -> list[ClassCounts]:
    """Photos of each class, in order of appearance."""
    plan = benchmark.plan
    train = plan.train.labels.sum(0).tolist()
    test = plan.evaluation["test"].labels.sum(0).tolist()
    rows = []
    for experience, columns in enumerate(plan.columns):
        own = plan.train.labels[plan.train.positions[experience]].sum(0).tolist()
        for column in columns:
            name = plan.class_names[column]
            rows.append(ClassCounts(experience + 1, name, train[column], own[column], test[column]))
    return rows


def similar_names(class_names: Sequence[str]) -> list[list[str]]:
    """Groups of names that differ only in case, spaces, underscores or hyphens.

    Example:
        >>> similar_names(["Dog", "cat", "dog", "hot dog", "hot_dog"])
        [['Dog', 'dog'], ['hot dog', 'hot_dog']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in class_names:
        groups["".join(name.translate(SEPARATORS).casefold().split())].append(name)
    return [names for names in groups.values() if len(names) > 1]


def find_copies(train: ImageFiles, test: ImageFiles) -> list[tuple[str, str]]:
    """Pairs of a test file and a train file with the same content; files that cannot be read have none."""
    train_paths = {train.path(k): train.image_name(k) for k in range(len(train))}
    test_paths = {test.path(k): test.image_name(k) for k in range(len(test))}
    train_sizes = {_size(path) for path in train_paths}
    test_sizes = {_size(path) for path in test_paths}
    shared_sizes = (train_sizes & test_sizes) - {None}  # only files of equal size are read
    by_content: dict[bytes, str] = {}
    for path, name in train_paths.items():
        content = _digest(path) if _size(path) in shared_sizes else None
        if content is not None:
            by_content[content] = name
    pairs = []
    for path, name in test_paths.items():
        content = _digest(path) if _size(path) in shared_sizes else None
        if content is not None and content in by_content:
            pairs.append((name, by_content[content]))
    return pairs


def _size(path: str) -> int | None:
    return os.path.getsize(path) if os.path.isfile(path) else None


def _digest(path: str) -> bytes | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def check_photos(benchmark: MultiLabelBenchmark, *, open_images: bool = True) -> PhotoChecks:
    """Errors and warnings about a benchmark of image files; with ``open_images`` all photos are opened."""
    train = benchmark.plan.train.source
    test = benchmark.plan.evaluation["test"].source
    assert isinstance(train, ImageFiles)
    assert isinstance(test, ImageFiles)
    names = [" and ".join(map(repr, group)) for group in similar_names(benchmark.class_names)]
    errors = [f"{group} are different classes: use one spelling" for group in names]
    warnings = []
    if open_images:
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            for images in (train, test):
                errors += [reason for _, reason in find_unreadable(images)]
        warnings += [str(one.message).rstrip(".") for one in caught]  # truncated photos
    unused = _find_unused_labels(benchmark)
    if unused:
        warnings.append(unused)
    few = [row for row in count_classes(benchmark) if 0 < row.n_test < FEW_POSITIVES]
    if few:
        counts = listed(f"{row.name} {row.n_test}" for row in few)
        warnings.append(f"Fewer than {FEW_POSITIVES} test photos show {counts}: the AP of these is noise")
    untested = [row.name for row in count_classes(benchmark) if row.n_test == 0]
    if untested:
        warnings.append(f"No test photo shows {listed(untested)}; a class without test photos has no AP")
    several = sorted(repr(name) for name in benchmark.class_names if SEVERAL_NAMES.search(name))
    if several:
        warnings.append(
            f"These may be several names each: {listed(several)}; separate all by one sign, as in cat;dog"
        )
    copies = find_copies(train, test)
    if copies:
        pairs = listed(f"{one} = {other}" if one != other else one for one, other in copies)
        photos = "1 test photo is" if len(copies) == 1 else f"{len(copies)} test photos are"
        warnings.append(f"{photos} also in train, which flatters the scores: {pairs}")
    return PhotoChecks(errors, warnings)


def _find_unused_labels(benchmark: MultiLabelBenchmark) -> str:
    """A sentence about classes most of whose train photos are trained on without their label; or empty."""
    rows = [row for row in count_classes(benchmark) if row.n_train >= FEW_POSITIVES]
    few = [row for row in rows if row.n_own < LEAST_OWN_SHARE * row.n_train]
    if not few:
        return ""
    counts = listed(f"{row.name} from {row.n_own} of {row.n_train}" for row in few)
    return (
        f"These classes are learned from few of the train photos that show them: {counts}. A photo is "
        "trained on in one experience, with the labels of that one; with repeat_images=True "
        "(--repeat-images), in every experience that it shows a class of"
    )


def summarise_experiences(benchmark: MultiLabelBenchmark) -> list[str]:
    """A line per experience with its classes and the train and test photos that show them."""
    lines = []
    rows = count_classes(benchmark)
    for number in range(1, benchmark.n_experiences + 1):
        classes = [f"{row.name} {row.n_train} + {row.n_test}" for row in rows if row.experience == number]
        explained = " (train + test photos)" if number == 1 else ""
        lines.append(f"experience {number}: {listed(classes)}{explained}")
    return lines


def format_counts(rows: Sequence[ClassCounts]) -> str:
    """A table of the photos of each class; those with few test photos are marked."""
    width = max(len("class"), *(len(row.name) for row in rows))
    lines = [f"experience  {'class':{width}}   train     own    test"]
    for row in rows:
        mark = " *" if row.n_test < FEW_POSITIVES else ""
        counts = f"{row.n_train:>6}  {row.n_own:>6}  {row.n_test:>6}{mark}"
        lines.append(f"{row.experience:<10}  {row.name:{width}}  {counts}")
    lines += ["", "own: train photos in the experience of the class; only there is its label known."]
    if any(row.n_test < FEW_POSITIVES for row in rows):
        lines.append(f"*: fewer than {FEW_POSITIVES} test photos; the AP of the class is noise.")
    return "\n".join(lines)
