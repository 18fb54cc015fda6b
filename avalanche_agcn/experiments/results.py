"""Results of runs: ``results.json`` and tables of many runs, their checks, and how they are grouped.

A run writes all its scores to its ``results.json``; every number that is shown comes from there. A study
keeps the results of its runs in one table, ``results.jsonl``. Files may come from anywhere: `Results`
declares the types and limits of their content, and `_check_shapes` compares its parts with each other.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

import numpy as np
import torch
from pydantic import AfterValidator, ConfigDict, Field, GetPydanticSchema, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from avalanche_agcn.benchmarks.image_files import check_inside
from avalanche_agcn.checks import NAME, STRICT, first_problem, is_name, read_json, read_text, reject_value
from avalanche_agcn.evaluation.functional import StageScores, nested_summary
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS
from avalanche_agcn.experiments.settings import (
    DATA_PATHS,
    FORMAT,
    check_format,
    check_stored_settings,
    differences,
    run_name,
)

if TYPE_CHECKING:
    from avalanche_agcn.benchmarks.multilabel import Plan

METRICS = ("mAP", "CF1", "OF1")
RESULTS_FILE, TABLE_FILE, TRIALS_FOLDER = "results.json", "results.jsonl", "trials"
PACKAGES = ("avalanche-agcn", "avalanche-lib", "torch", "torchvision", "numpy", "pycocotools")
ROUNDING = 1e-6
"""By how much rounding errors of a probability may exceed 0 and 1."""


def _check_probability(value: float) -> float:
    if not -ROUNDING <= value <= 1 + ROUNDING:
        raise PydanticCustomError("probability", "a probability between 0 and 1")
    return value


def _check_rows(nested: dict[str, list[Percents]]) -> dict[str, list[Percents]]:
    lengths = [len(row) for row in nested[METRICS[0]]]
    fits = lengths != [] and lengths[-1] > 0
    fits = fits and all(length in (0, t + 1) for t, length in enumerate(lengths))
    for rows in nested.values():
        fits = fits and [len(row) for row in rows] == lengths
    if not fits:
        wanted = "the same for each metric, row t with t + 1 scores or none, the last with scores"
        raise PydanticCustomError("rows", wanted)
    return nested


def _check_thresholds(thresholds: list[float]) -> list[float]:
    if 0.5 not in thresholds:
        raise PydanticCustomError("thresholds", "a list that has 0.5")
    return thresholds


def _has(*names: str) -> AfterValidator:
    """Check that a dictionary has these names; it may have further ones."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for name in names:
            if name not in value:
                raise PydanticCustomError("names", f"an object that has {name!r}")
        return value

    return AfterValidator(check)


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Size = Annotated[int, Field(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]  # three centuries
Percent = Annotated[float, Field(ge=0, le=100)]
Percents = list[Percent | None]
Probability = Annotated[float, AfterValidator(_check_probability)]


class Picture(TypedDict):
    """A test image with the labels that were found in it."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]

    image: Count | str
    """Number of a drawn scene, or a file name below the setting ``dataset_root``."""
    labels: list[str]
    """Names of the true classes."""
    probabilities: list[Percents]
    """Row t has the classes seen after experience t; empty if nothing was evaluated."""


WorstPicture = TypedDict(
    "WorstPicture",
    {"class": str, "error": str, "image": Count | str, "labels": list[str], "probability": Percent | None},
)
"""A test image whose probability of a class has a large error: ``"missed"`` or ``"wrong"``."""
WorstPicture.__pydantic_config__ = Picture.__pydantic_config__  # type: ignore[attr-defined]
PICTURES = {"pictures": Picture.__annotations__, "worst": WorstPicture.__annotations__}
"""Names and types of the values of a picture, for each list of pictures."""


class Decisions(TypedDict):
    """Counts over all test images after the last experience."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]

    thresholds: Annotated[list[Annotated[float, Field(ge=0)]], AfterValidator(_check_thresholds)]
    """Of the probability."""
    true: list[Count]
    """Labels of each class."""
    found: list[list[Count]]
    """For each threshold the labels found of each class."""
    right: list[list[Count]]
    """How many of them are right."""
    chosen_found: NotRequired[list[Count]]
    """Labels of each class that are found at the thresholds of the run."""
    chosen_right: NotRequired[list[Count]]
    """How many of them are right."""


class Reliability(TypedDict):
    """Probabilities compared with labels, over all test images after the last experience, in percent."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]

    cells: list[Count]
    """Probabilities in each of ten bins of equal width, of all images and classes."""
    true: list[Count]
    """Positives among them."""
    probability: Percents
    """Mean probability in each bin; None in an empty one."""
    class_probability: Percents
    """Mean probability of each class."""
    class_share: Percents
    """Share of the images that show it."""


# To type checkers decisions are a dictionary, since the page reads them by names in variables.
_CHECKED_AS_DECISIONS = GetPydanticSchema(lambda source, handler: handler(Decisions))


@dataclass(frozen=True, config=STRICT)
class Results:
    """Results of one run; all scores in percent, columns in order of appearance."""

    benchmark: str
    method: str
    seed: Count
    settings: dict[str, Any]
    class_names: list[str]
    classes_per_experience: list[Size]
    nested: Annotated[dict[str, list[Percents]], _has(*METRICS), AfterValidator(_check_rows)]
    """For each metric the matrix `a[t][i]`: after experience t, on nested test set i. Row t has t + 1
    entries, or none if nothing was evaluated (Multi-Task has the last row only)."""
    per_class_ap: dict[str, Percent | None]
    """AP of each class after the last experience; None for a class without positives."""
    seconds: Annotated[dict[str, Seconds], _has("train", "eval", "total")]
    """Times ``train``, ``eval`` and ``total``."""
    environment: dict[str, Any]
    """Versions, commit and hardware."""
    acm: list[list[Probability]] | None = None
    """The final correlation matrix, for AGCN."""
    cooccurrence: list[list[Probability]] | None = None
    """P(i | j) among the train images, for AGCN, where all their labels are known."""
    stages: Annotated[dict[str, Percents], _has(*StageScores._fields)] | None = None
    """Scores that papers of the B protocols report after each experience: mAP, and the mean of per-class F1
    and OF1 at p > 0.8; None where nothing was evaluated."""
    pictures: list[Picture] | None = None
    """A few test images chosen by their labels (`choose_pictures`)."""
    worst: list[WorstPicture] | None = None
    """For each class the test images with the largest errors of its probability after the last experience."""
    decisions: Annotated[dict[str, Any], _CHECKED_AS_DECISIONS] | None = None
    """Counts of labels at several thresholds of the probability."""
    reliability: Reliability | None = None
    """Whether probabilities are those of the labels."""
    thresholds: list[Probability] | None = None
    """Probability at which each class seen counts as found, as in the run's ``model.json``; None if the run
    chose none (`decision_thresholds`)."""
    class_ap: list[Percents] | None = None
    """Row t has the AP of each class seen after experience t, empty if nothing was evaluated."""
    n_images: dict[str, list[Count]] | None = None
    """Number of images of each experience, by the name of the stream."""
    stored: dict[str, Count] | None = None
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
        """Key of the run's row in tables, as `Label` writes it: that of the settings, or the method."""
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
        order, parent = self.settings.get("class_order"), self.settings.get("continues")
        return run_name(self.label, order, self.seed, parent)

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
    """Read a ``results.json``, and look for its data set if the run was given a relative path.

    Raises:
        ValueError: if the file is damaged, has another format, or is not a result of this package.
    """
    results = _parse(path, read_json(path))
    root = results.settings.get("dataset_root")
    if root is not None:
        results.settings["dataset_root"] = _find_dataset_root(root, Path(path).resolve().parent)
    return results


def _find_dataset_root(root: str, folder: Path) -> str:
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
        results = _validate(content)
        check_stored_settings(results.settings)
        _check_shapes(results)
    except ValueError as error:
        raise ValueError(f"{path} is not a results.json of this package, or is damaged: {error}") from None
    return results


def _validate(content: Any) -> Results:
    """Results with this content; a ValueError names the first place of a wrong type or out of range."""
    if not isinstance(content, dict):
        reject_value("content", "an object with names", content)
    try:
        # The summary is computed again: a file might have another one.
        return Results(**{name: value for name, value in content.items() if name != "summary"})
    except ValidationError as error:
        problem = first_problem(error, content)
    place = problem.place or "content"
    if problem.missing is not None:
        raise ValueError(f"{place} has no {problem.missing!r}, which is required.")
    if problem.unknown is not None:
        raise ValueError(
            f"it has {problem.unknown}, which results do not have: check that the file is from a run."
        )
    reject_value(place, problem.wanted, problem.value)


# Fields that most runs of a study share, which its table has once; and fields that the table does not have.
_SHARED = (
    *("format", "benchmark", "class_names", "classes_per_experience", "cooccurrence"),
    *("environment", "n_images", "data"),
)
_NOT_IN_TABLES = ("pictures", "worst", "decisions", "reliability", "class_ap", "summary")


def write_table(path: Path, results: Sequence[Results]) -> None:
    """Write the results of many runs: a line with shared values, then one line for each run.

    Pictures and details of single classes are omitted; correlation matrices are rounded to four digits.
    """
    records = [_table_record(result) for result in results]
    shared: dict[str, Any] = {"settings": dict(results[0].settings)}
    for record in records:
        for name in _SHARED:
            if shared.get(name) is None:
                shared[name] = record[name]
    lines = [shared, *(_difference(record, shared) for record in records)]
    texts = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines]
    write_text(path, "\n".join(texts) + "\n")


def _table_record(result: Results) -> dict[str, Any]:
    """What a table has of a run."""
    record = {name: value for name, value in vars(result).items() if name not in _NOT_IN_TABLES}
    for name in ("acm", "cooccurrence"):
        if record[name]:
            record[name] = np.round(record[name], 4).tolist()
    return record


def _difference(record: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's record that differs from the shared values."""
    line = {name: value for name, value in record.items() if name not in _SHARED or value != shared[name]}
    common = shared["settings"].items()
    line["settings"] = dict(item for item in record["settings"].items() if item not in common)
    return line


def read_table(path: Path) -> list[Results]:
    """Read a file written by `write_table`; a ValueError names one that is damaged or of another format."""
    try:
        shared, *lines = map(json.loads, read_text(path).splitlines())
        contents = []
        for line in lines:
            settings = {**shared["settings"], **line["settings"]}
            contents.append({**shared, **line, "settings": settings})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a table of results, or is damaged: {error}.") from None
    return [_parse(path, content) for content in contents]


def find_results(folders: Iterable[str | os.PathLike]) -> list[Results]:
    """All results below some folders, except the trials by which a study chose settings.

    The results in a run's own folder replace those of the same run in a table beside it. If there are none, a
    FileNotFoundError is raised.
    """
    below = [Path(folder) for folder in folders]
    for folder in below:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder} with results; check its name.")
    runs: set[Path] = set()
    tables: set[Path] = set()
    for folder in below:
        tables.update(folder.rglob(TABLE_FILE))
        for path in folder.rglob(RESULTS_FILE):
            is_trial = path.relative_to(folder).parts[-3:-2] == (TRIALS_FOLDER,)  # trials/<run>/results.json
            if not is_trial:
                runs.add(path)
    found = {path.parent: read_results(path) for path in sorted(runs)}
    for table in sorted(tables):
        for result in read_table(table):
            found.setdefault(table.parent / result.name, result)
    if not found:
        where = ", ".join(map(str, below))
        raise FileNotFoundError(f"no {RESULTS_FILE} below {where}; has a run ended there?")
    return list(found.values())


def _check_shapes(results: Results) -> None:
    """Raise a ValueError if parts of the results do not fit together, or an image is outside its folder."""
    _check_classes(results)
    n = len(results.class_names)
    n_experiences = len(results.classes_per_experience)
    for metric, rows in results.nested.items():
        _require(f"nested.{metric}", len(rows) == n_experiences, f"{n_experiences} rows", rows)
    for name in ("acm", "cooccurrence"):
        _require_matrix(name, getattr(results, name), n, n, "probabilities")
    _require_rows("class_ap", results.class_ap, n_experiences, n)
    for name, scores in (results.stages or {}).items():
        wanted = f"percentages, one for each of {n_experiences} experiences"
        _require(f"stages.{name}", 1 <= len(scores) <= n_experiences, wanted, scores)
    for name, counts in (results.n_images or {}).items():
        _require(f"n_images.{name}", len(counts) == n_experiences, f"{n_experiences} numbers", counts)
    if results.thresholds is not None:
        fits = len(results.thresholds) <= n
        _require("thresholds", fits, f"at most {n} probabilities", results.thresholds)
    if results.decisions is not None:
        thresholds = results.decisions["thresholds"]
        true = results.decisions["true"]
        _require("decisions.true", len(true) == n, f"{n} counts", true)
        _require_matrix("decisions.found", results.decisions["found"], len(thresholds), n, "counts")
        _require_matrix("decisions.right", results.decisions["right"], len(thresholds), n, "counts")
        for name in ("chosen_found", "chosen_right"):
            chosen = results.decisions.get(name)
            _require(f"decisions.{name}", chosen is None or len(chosen) == n, f"{n} counts", chosen)
    if results.reliability is not None:
        _check_reliability(results.reliability, n)
    for k, picture in enumerate(results.pictures or []):
        _check_picture(f"pictures[{k}]", picture["image"], picture["labels"], results.class_names)
        _require_rows(f"pictures[{k}].probabilities", picture["probabilities"], n_experiences, n)
    for k, worst in enumerate(results.worst or []):
        _check_picture(f"worst[{k}]", worst["image"], [*worst["labels"], worst["class"]], results.class_names)


def _check_reliability(reliability: Reliability, n_classes: int) -> None:
    n_bins = len(reliability["cells"])
    lengths = {
        "true": (len(reliability["true"]), n_bins),
        "probability": (len(reliability["probability"]), n_bins),
        "class_probability": (len(reliability["class_probability"]), n_classes),
        "class_share": (len(reliability["class_share"]), n_classes),
    }
    for name, (length, wanted) in lengths.items():
        _require(f"reliability.{name}", length == wanted, f"{wanted} values", reliability)


def _check_classes(results: Results) -> None:
    names = results.class_names
    sizes = results.classes_per_experience
    for place, name in [
        ("benchmark", results.benchmark),
        ("method", results.method),
        ("settings.label", results.label),
        *(("class_names", name) for name in names),
    ]:
        _require(place, is_name(name), f"a name of {NAME}", name)
    _require("class_names", len(set(names)) == len(names), "different names", names)
    wanted = f"positive and sum to the {len(names)} class_names"
    _require("classes_per_experience", sum(sizes) == len(names) > 0, wanted, tuple(sizes))
    wanted = "the AP of each of the class_names, and no other"
    _require("per_class_ap", set(results.per_class_ap) == set(names), wanted, results.per_class_ap)
    packages = results.environment.get("packages", {})
    _require("environment.packages", isinstance(packages, dict), "an object with names", packages)


def _check_picture(place: str, image: int | str, labels: Sequence[str], class_names: Sequence[str]) -> None:
    if isinstance(image, str):
        check_inside(image, f"{place}.image")
    for name in labels:
        _require(f"a label of {place}", name in class_names, "one of the class_names", name)


def _require_matrix(place: str, rows: Sequence[Sequence[Any]] | None, n_rows: int, n: int, what: str) -> None:
    """Check that a matrix has this size; None passes."""
    fits = rows is None or (len(rows) == n_rows and all(len(row) == n for row in rows))
    _require(place, fits, f"{n_rows} × {n} {what}", rows)


def _require_rows(place: str, rows: Sequence[Sequence[Any]] | None, n_rows: int, n: int) -> None:
    """Check that there are at most this many rows, and numbers in each; None passes."""
    fits = rows is None or (len(rows) <= n_rows and all(len(row) <= n for row in rows))
    _require(place, fits, "percentages in a row for each experience, one for each class", rows)


def _require(place: str, fits: bool, wanted: str, value: Any) -> None:
    if not fits:
        reject_value(place, wanted, value)


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
    ranks = {name: rank for rank, name in enumerate([*METHODS, *ABLATIONS])}
    last = len(ranks)

    def sort_key(label: str) -> tuple[int, int, str]:
        method = groups[label][0].method
        return ranks.get(method, last), ranks.get(label, last), label

    return {label: groups[label] for label in sorted(groups, key=sort_key)}


def _check_comparable(label: str, group: Sequence[Results]) -> None:
    if len({result.name for result in group}) != len(group):
        seeds = sorted(result.seed for result in group)
        raise ValueError(f"{label!r} has several results of one seed (seeds {seeds}); give one of each.")
    changed: dict[str, None] = {}  # a set in order
    for other in group[1:]:
        changed |= dict.fromkeys(differences(_compared_settings(group[0]), _compared_settings(other)))
    if changed:
        raise ValueError(
            f"the results of {label!r} have different settings ({'; '.join(changed)}), so their mean is "
            "meaningless: report their folders one by one, or run each with its own --label."
        )


def _compared_settings(result: Results) -> dict[str, Any]:
    return {name: value for name, value in result.settings.items() if name not in MAY_DIFFER}


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
