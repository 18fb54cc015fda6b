"""Results of runs: ``results.json`` and tables of many runs, their checks, and how they are grouped.

A run writes all its scores to its ``results.json``; every number that is shown comes from there. A study
keeps the results of its runs in one table, ``results.jsonl``. Files may come from anywhere, so their content
is checked before it is used.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import torch

from avalanche_agcn.benchmarks.image_files import check_inside
from avalanche_agcn.checks import check_fields, check_type, check_value, fail, read_json
from avalanche_agcn.evaluation.functional import StageScores, nested_summary
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS
from avalanche_agcn.experiments.settings import (
    DATA_PATHS,
    FORMAT,
    TYPES,
    check_format,
    differences,
    method_arguments,
    run_name,
    split_settings,
)

if TYPE_CHECKING:
    from avalanche_agcn.benchmarks.multilabel import Plan

METRICS = ("mAP", "CF1", "OF1")
RESULTS_FILE, TABLE_FILE, TRIALS_FOLDER = "results.json", "results.jsonl", "trials"
PACKAGES = ("avalanche-agcn", "avalanche-lib", "torch", "torchvision", "numpy", "pycocotools")


@dataclass(frozen=True)
class Results:
    """Results of one run; all scores in percent, columns in order of appearance."""

    benchmark: str
    method: str
    seed: int
    settings: dict[str, Any]
    class_names: list[str]
    classes_per_experience: list[int]
    nested: dict[str, list[list[float | None]]]
    """For each metric the matrix a[t][i]: after experience t, on nested test set i. Row t has t + 1 entries,
    or none if nothing was evaluated (Multi-Task has the last row only)."""
    per_class_ap: dict[str, float | None]
    """AP of each class after the last experience; None for a class without positives."""
    seconds: dict[str, float]
    """Times ``train``, ``eval`` and ``total``."""
    environment: dict[str, Any]
    """Versions, commit and hardware."""
    acm: list[list[float]] | None = None
    """The final correlation matrix, for AGCN."""
    cooccurrence: list[list[float]] | None = None
    """P(i | j) among the train images, for AGCN, where all their labels are known."""
    stages: dict[str, list[float | None]] | None = None
    """Scores that papers of the B protocols report after each experience: mAP, and the mean of per-class F1
    and OF1 at p > 0.8; None where nothing was evaluated."""
    pictures: list[dict[str, Any]] | None = None
    """A few test images chosen by their labels (`choose_pictures`). Each has ``image``, the number of a drawn
    scene or a file name below the setting ``dataset_root``; the names of its ``labels``; and
    ``probabilities`` in percent: row t for the classes seen after experience t, empty if nothing was
    evaluated."""
    worst: list[dict[str, Any]] | None = None
    """For each class the test images with the largest errors of its probability after the last experience:
    ``class``, ``error`` (``"missed"`` or ``"wrong"``), ``image``, ``labels`` and ``probability``."""
    decisions: dict[str, list[Any]] | None = None
    """Counts over all test images after the last experience: ``thresholds`` of the probability, ``true``
    labels of each class, and for each threshold the labels ``found`` and how many of them are ``right``."""
    thresholds: list[float] | None = None
    """Probability at which each class seen counts as found, as in the run's ``model.json``; None if the run
    chose none (`decision_thresholds`)."""
    class_ap: list[list[float | None]] | None = None
    """Row t has the AP of each class seen after experience t, empty if nothing was evaluated."""
    n_images: dict[str, list[int]] | None = None
    """Number of images of each experience, by the name of the stream."""
    stored: dict[str, int] | None = None
    """What the method keeps between experiences beside the model: the number of ``images``, and the ``bytes``
    of everything else: sums, copies of weights, correlation matrices."""
    data: dict[str, dict[str, str]] | None = None
    """Fingerprint of the data (`data_fingerprint`)."""
    summary: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """`nested_summary` of each metric."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not self.summary:
            object.__setattr__(self, "summary", summarise(self.nested))

    @property
    def label(self) -> str:
        """Key of the run's row in tables: the label from the settings, or else the method."""
        return self.settings.get("label") or self.method

    @property
    def class_order(self) -> str:
        """Order of the classes; ``"data"`` is the data set's own."""
        return self.settings.get("class_order") or "data"

    @property
    def experience_of_class(self) -> list[int]:
        """Index of the experience that introduced each class."""
        return [t for t, size in enumerate(self.classes_per_experience) for _ in range(size)]

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return run_name(self.label, self.settings.get("class_order"), self.seed)

    def write(self, path: str | os.PathLike) -> None:
        """Write the file, atomically."""
        write_json(path, {key: value for key, value in vars(self).items() if value is not None})


def summarise(nested: Mapping[str, Sequence[Sequence[float | None]]]) -> dict[str, dict[str, float | None]]:
    """``nested_summary`` of each metric; None where a score is not defined."""
    summaries = {}
    for metric, matrix in nested.items():
        rows = [[math.nan if value is None else value for value in row] for row in matrix]
        scores = nested_summary(rows)._asdict()
        scores["forgetting_relative"] *= 100  # a share of the first score, in percent like the others
        summaries[metric] = {name: none_if_nan(value) for name, value in scores.items()}
    return summaries


def none_if_nan(value: float) -> float | None:
    """The value, or None for NaN, which JSON does not have."""
    return None if math.isnan(value) else float(value)


def read_results(path: str | os.PathLike) -> Results:
    """Read a ``results.json``; a ValueError names one that is damaged, foreign or of another format."""
    results = _parse(path, read_json(path))
    root = results.settings.get("dataset_root")
    if root is not None:
        results.settings["dataset_root"] = _find_data(root, Path(path).resolve().parent)
    return results


def _find_data(root: str, folder: Path) -> str:
    """The folder of the images of a run in ``folder``, which may have been given relative to its parents.

    Commands store the name that was given to them, and write below the folder where they were started. A name
    that fits nowhere is returned as it is.
    """
    for parent in folder.parents:
        if not Path(root).is_absolute() and (parent / root).is_dir():
            return str(parent / root)
    return root


def _parse(path: str | os.PathLike, content: Any) -> Results:
    # Without "nested" it is no results.json of any format, which the checks below report.
    if isinstance(content, dict) and "nested" in content:
        check_format(path, content)
    try:
        _check_content(content)
    except ValueError as error:
        raise ValueError(f"{path} is not a results.json of this package, or is damaged: {error}") from None
    return Results(**{name: value for name, value in content.items() if name != "summary"})


# Fields that most runs of a study share, which its table has once; and fields that the table does not have.
_SHARED = (
    *("format", "benchmark", "class_names", "classes_per_experience", "cooccurrence"),
    *("environment", "n_images", "data"),
)
_NOT_IN_TABLES = ("pictures", "worst", "decisions", "class_ap", "summary")


def write_table(path: Path, results: Sequence[Results]) -> None:
    """Write the results of many runs: a line with shared values, then one line for each run.

    Pictures and details of single classes are omitted; correlation matrices are rounded to four digits.
    """
    shared: dict[str, Any] = {"settings": dict(results[0].settings)}
    records = [{k: v for k, v in vars(result).items() if k not in _NOT_IN_TABLES} for result in results]
    for record in records:
        record |= {k: np.round(record[k], 4).tolist() for k in ("acm", "cooccurrence") if record[k]}
        shared |= {key: record[key] for key in _SHARED if shared.get(key) is None}
    base = shared["settings"].items()
    lines = [shared]
    for record in records:  # its line has only what differs from the shared values
        own = {key: value for key, value in record.items() if key not in _SHARED or value != shared[key]}
        own["settings"] = dict(item for item in record["settings"].items() if item not in base)
        lines.append(own)
    texts = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines]
    write_text(path, "\n".join(texts) + "\n")


def read_table(path: Path) -> list[Results]:
    """Read a file written by `write_table`; a ValueError names one that is damaged or of another format."""
    try:
        shared, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        whole = [{**shared, **own, "settings": {**shared["settings"], **own["settings"]}} for own in records]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a table of results, or is damaged: {error}.") from None
    return [_parse(path, content) for content in whole]


def find_results(folders: Iterable[str | os.PathLike]) -> list[Results]:
    """All results below some folders, except the trials by which a study chose settings.

    The results in a run's own folder replace those of the same run in a table beside it. If there are none, a
    FileNotFoundError is raised.
    """
    below = [Path(folder) for folder in folders]
    for folder in below:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder} with results; check its name.")
    files = {(path, folder) for folder in below for path in folder.rglob(RESULTS_FILE)}
    runs = {path for path, folder in files if path.relative_to(folder).parts[-3:-2] != (TRIALS_FOLDER,)}
    found = {path.parent: read_results(path) for path in sorted(runs)}
    for table in sorted({path for folder in below for path in folder.rglob(TABLE_FILE)}):
        for result in read_table(table):
            found.setdefault(table.parent / result.name, result)
    if not found:
        where = ", ".join(map(str, below))
        raise FileNotFoundError(f"no {RESULTS_FILE} below {where}; has a run ended there?")
    return list(found.values())


# Checks of the content of a file. An error names the place, the value and what it must be.

MAX_NAME = 200  # characters of a class, label or benchmark
PICTURE: dict[str, Any] = {"image": int | str, "labels": list[str]}
PICTURES: dict[str, dict[str, Any]] = {
    "pictures": PICTURE | {"probabilities": list[list[float | None]]},
    "worst": PICTURE | {"class": str, "error": str, "probability": float | None},
}
COUNTS = {"thresholds": list[float], "true": list[int], "found": list[list[int]], "right": list[list[int]]}
FIELDS: dict[str, dict[str, Any]] = {
    "nested": dict.fromkeys(METRICS, list),
    "seconds": dict.fromkeys(("train", "eval", "total"), float),
    "stages": dict.fromkeys(StageScores._fields, list),
    "decisions": COUNTS,
}


def _check_content(content: Any) -> None:
    check_type(content, dict, "content")
    hints = get_type_hints(Results)
    needed = {f.name for f in fields(Results) if f.default is MISSING and f.default_factory is MISSING}
    check_fields(content, {name: hints[name] for name in hints if name in needed | content.keys()}, "content")
    if unknown := [name for name in content if name not in hints]:
        raise ValueError(f"it has {unknown[0]!r:.60}, which results do not have: is it of another program?")
    for name, own in FIELDS.items():
        if content.get(name) is not None:
            check_fields(content[name], own, name)
    check_type(content["environment"].get("packages", {}), dict, "environment.packages")
    _check_settings(content["settings"])
    _check_names(content)
    _check_nested(content["nested"], len(content["classes_per_experience"]))
    _check_numbers(content, content)
    if content.get("decisions"):
        _check_decisions(content["decisions"], len(content["class_names"]))
    for part, hints in PICTURES.items():
        for k, picture in enumerate(content.get(part) or []):
            check_fields(picture, hints, f"{part}[{k}]")
            _check_picture(picture, content, f"{part}[{k}]")


def _check_settings(settings: dict[str, Any]) -> None:
    """Check types and ranges of the settings; those that this version does not know are ignored."""
    shared, own = split_settings(settings)
    arguments = method_arguments(shared["method"]) if shared.get("method") in [*METHODS] else {}
    for name, value in shared.items():
        check_value(name, value, TYPES[name])
    for name in own.keys() & arguments.keys():
        check_value(name, own[name], arguments[name].annotation)


def _check_names(content: Mapping[str, Any]) -> None:
    names, sizes, ap = (content[name] for name in ("class_names", "classes_per_experience", "per_class_ap"))
    texts = {name: content[name] for name in ("benchmark", "method")}
    texts |= {"settings.label": content["settings"].get("label") or "none"}
    for place, text in [*texts.items(), *(("class_names", name) for name in names)]:
        fits = 0 < len(text) <= MAX_NAME and text.isprintable()
        _require(place, fits, f"a name of 1 to {MAX_NAME} printable characters", text)
    _require("class_names", len(set(names)) == len(names), "different names", names)
    fits = min(sizes, default=0) > 0 and sum(sizes) == len(names)
    _require("classes_per_experience", fits, f"positive and sum to the {len(names)} class_names", (*sizes,))
    _require("per_class_ap", set(ap) == set(names), "the AP of each of the class_names, and no other", ap)


def _check_nested(nested: Mapping[str, Sequence[Sequence[Any]]], n_experiences: int) -> None:
    lengths = [tuple(map(len, rows)) for rows in nested.values()]
    shape = lengths[0]
    fits = len(shape) == n_experiences and shape[-1] > 0 and set(lengths) == {shape}
    fits = fits and all(length in (0, t + 1) for t, length in enumerate(shape))
    wanted = f"the same for each metric, {n_experiences} rows, row t with t + 1 scores or none"
    _require("the numbers of scores in nested", fits, f"{wanted} and the last with scores", (*lengths,))


def _check_numbers(part: Mapping[str, Any], content: Mapping[str, Any], place: str = "") -> None:
    """Check bounds of numbers and lengths of lists in the content, or in one of its pictures."""
    n, n_experiences = len(content["class_names"]), len(content["classes_per_experience"])
    percent, rows = "percentages between 0 and 100", "in a row for each experience, one for each class"
    up_to = range(n_experiences + 1)
    # Least and greatest number, both in words, and lengths of lists from the outermost.
    scores = (0, 100, percent)
    by_class = (0, 100, f"{percent} {rows}", up_to, range(n + 1))
    matrix = (-1e-6, 1 + 1e-6, f"{n} × {n} probabilities between 0 and 1", [n], [n])
    limits: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("nested", "per_class_ap"), scores),
        **dict.fromkeys(("class_ap", "probabilities"), by_class),
        **dict.fromkeys(("acm", "cooccurrence"), matrix),
        "thresholds": (0, 1, f"at most {n} probabilities between 0 and 1", range(n + 1)),
        "stages": (0, 100, f"{percent}, one for each of {n_experiences} experiences", up_to[1:]),
        "n_images": (0, math.inf, f"{n_experiences} numbers of at least 0", [n_experiences]),
        **dict.fromkeys(("seconds", "image"), (0, math.inf, "at least 0")),
    }
    for name, limit in limits.items():
        _check_array(part.get(name), place + name, *limit)


def _check_decisions(decisions: Mapping[str, Any], n: int) -> None:
    """Check the counts of ``n`` classes at each threshold."""
    thresholds = decisions["thresholds"]
    _require("decisions.thresholds", 0.5 in thresholds, "a list that has 0.5", (*thresholds,))
    _check_array(thresholds, "decisions.thresholds", 0, math.inf, "at least 0")
    _check_array(decisions["true"], "decisions.true", 0, math.inf, f"{n} counts of at least 0", [n])
    wanted = f"{len(thresholds)} × {n} counts of at least 0"
    for name in ("found", "right"):
        _check_array(decisions[name], f"decisions.{name}", 0, math.inf, wanted, [len(thresholds)], [n])


def _check_array(value: Any, place: str, low: float, high: float, wanted: str, *sizes: Sequence[int]) -> None:
    """Check nested lists: numbers are within bounds, and lengths among the sizes, from the outermost."""
    if isinstance(value, (int, float)):
        _require(place, low <= value <= high, wanted, value)
    elif isinstance(value, list):
        _require(place, not sizes or len(value) in sizes[0], wanted, value)
        for item in value:
            _check_array(item, place, low, high, wanted, *sizes[1:])
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_array(item, f"{place}.{name!r:.60}", low, high, wanted, *sizes)


def _check_picture(picture: Mapping[str, Any], content: Mapping[str, Any], place: str) -> None:
    if isinstance(picture["image"], str):
        check_inside(picture["image"], f"{place}.image")
    _check_numbers(picture, content, f"{place}.")
    names = content["class_names"]
    for name in (*picture["labels"], picture.get("class", names[0])):
        _require(f"a label of {place}", name in names, "one of the class_names", name)


def _require(place: str, fits: bool, wanted: str, value: Any) -> None:
    if not fits:
        fail(place, wanted, value)


MAY_DIFFER = DATA_PATHS | {"seed", "class_order", "device"}
"""Settings in which results with a common mean may differ: seeds may be run on several machines."""


def group_by_label(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Group results that differ only in seed and class order, in the order of the registry.

    Variants follow their method: ablations in their order, then others by name. Results of one label with
    different settings, whose mean is meaningless, raise a ValueError.
    """
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    for label, group in groups.items():
        _check_comparable(label, group)
    rank = {name: k for k, name in enumerate([*METHODS, *ABLATIONS])}

    def place(label: str) -> tuple[int, int, str]:
        return rank.get(groups[label][0].method, len(rank)), rank.get(label, len(rank)), label

    return {label: groups[label] for label in sorted(groups, key=place)}


def _check_comparable(label: str, group: Sequence[Results]) -> None:
    if len({result.name for result in group}) != len(group):
        seeds = sorted(result.seed for result in group)
        raise ValueError(f"{label!r} has several results of one seed (seeds {seeds}); give one of each.")
    first, *others = (
        {name: value for name, value in result.settings.items() if name not in MAY_DIFFER} for result in group
    )
    if changed := dict.fromkeys(change for other in others for change in differences(first, other)):
        raise ValueError(
            f"the results of {label!r} have different settings ({'; '.join(changed)}) and no common mean: "
            "report their folders one by one, or run them with labels of their own (--label NAME)."
        )


def known(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean_and_deviation(values: Iterable[float | None], *, digits: int = 1) -> str:
    """``"41.3 ± 0.7"``: mean and sample deviation, without the latter for one value; ``"–"`` for none."""
    numbers = known(values)
    if not numbers:
        return "–"
    mean = f"{statistics.fmean(numbers):z.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.{digits}f}"


def describe_environment() -> dict[str, Any]:
    """Package versions, the commit of the checkout if there is one, and the hardware."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=12"]
    run_git = partial(subprocess.run, git, capture_output=True, text=True, check=True)
    return {
        "python": platform.python_version(),
        "packages": {name: _try(partial(version, name)) for name in PACKAGES},
        "commit": _try(lambda: run_git().stdout.strip()),  # with "+" if files were changed
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _try(call: Callable[[], str]) -> str | None:
    try:
        return call()
    except (PackageNotFoundError, OSError, subprocess.CalledProcessError):
        return None


def train_cooccurrence(plan: Plan) -> torch.Tensor | None:
    """P(i | j) over all train images of a benchmark, float64; None if their labels are not all known."""
    if not plan.labels_complete:
        return None
    used = {position for positions in plan.train.positions for position in positions.tolist()}
    labels = plan.train.labels[sorted(used)].double()
    together = labels.T @ labels
    return together / together.diagonal().clamp(min=1)
