"""Results of runs: ``results.json``, tables of many runs, and what is worked out from them.

A run writes all its scores to its ``results.json``, and nothing else is a source of numbers. A study keeps
the results of its runs in one table, ``results.jsonl``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import numpy as np
import torch

from avalanche_agcn.checks import read_json
from avalanche_agcn.evaluation.functional import nested_summary
from avalanche_agcn.experiments.checkpoint import write_json, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS
from avalanche_agcn.experiments.results_check import check_results
from avalanche_agcn.experiments.settings import DATA_PATHS, FORMAT, check_format, differences, run_name

if TYPE_CHECKING:
    from avalanche_agcn.benchmarks.multilabel import Plan

METRICS = ("mAP", "CF1", "OF1")
RESULTS_FILE, TABLE_FILE, TRIALS_FOLDER = "results.json", "results.jsonl", "trials"
PACKAGES = ("avalanche-agcn", "avalanche-lib", "torch", "torchvision", "numpy", "pycocotools")
NestedMatrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Results:
    """Results of one run; all scores in percent.

    Attributes:
        benchmark: name of the benchmark.
        method: name of the method.
        seed: seed of the run.
        settings: all settings of the run.
        class_names: names of the columns.
        classes_per_experience: number of columns each experience adds.
        nested: for each metric the matrix a[t][i]: after experience t, on nested test set i. Row t has t + 1
            entries, or none if nothing was evaluated then (Multi-Task has the last row only).
        stages: what papers of the B protocols report after each experience, by name: mAP, the mean of
            per-class F1 and OF1, both at p > 0.8; None where nothing was evaluated then.
        per_class_ap: AP of each class after the last experience; None where it has no positive.
        seconds: time of ``train``, ``eval`` and ``total``.
        environment: versions, commit and hardware.
        acm: the final correlation matrix, for AGCN.
        cooccurrence: P(i | j) among the train images, for AGCN, where all their labels are known.
        pictures: a few test pictures chosen by their labels (`choose_pictures`). Each has ``image``, the
            number of a drawn scene or the name of a file below the setting ``dataset_root``; ``labels``, the
            names of what it shows; and ``probabilities``, in percent to two digits: row t for the classes
            seen by experience t, empty if nothing was evaluated then.
        worst: for each class the test pictures in which its probability is most wrong after the last
            experience: ``class``, ``error`` (``"missed"`` or ``"wrong"``), ``image``, ``labels`` and
            ``probability``.
        decisions: counts in all test images after the last experience: ``thresholds`` of the probability,
            ``true`` labels of each class, and for each threshold the labels ``found`` and those of them that
            are ``right``.
        class_ap: row t has the AP of each class seen by experience t, empty if nothing was evaluated then.
        n_images: number of images of each experience, by the name of the stream.
        stored: what the method keeps from one experience to the next, beside the model: ``images``, and the
            ``bytes`` of all else: sums, copies of weights, correlation matrices.
        data: fingerprint of the data (`data_fingerprint`).
        summary: `nested_summary` of each metric.
        format: version of the file's format.
    """

    benchmark: str
    method: str
    seed: int
    settings: dict[str, Any]
    class_names: list[str]
    classes_per_experience: list[int]
    nested: dict[str, list[list[float | None]]]
    per_class_ap: dict[str, float | None]
    seconds: dict[str, float]
    environment: dict[str, Any]
    acm: list[list[float]] | None = None
    cooccurrence: list[list[float]] | None = None
    stages: dict[str, list[float | None]] | None = None
    pictures: list[dict[str, Any]] | None = None
    worst: list[dict[str, Any]] | None = None
    decisions: dict[str, list[Any]] | None = None
    class_ap: list[list[float | None]] | None = None
    n_images: dict[str, list[int]] | None = None
    stored: dict[str, int] | None = None
    data: dict[str, dict[str, str]] | None = None
    summary: dict[str, dict[str, float | None]] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not self.summary:
            object.__setattr__(self, "summary", summarise(self.nested))

    @property
    def label(self) -> str:
        """Key of this run's row in tables: the method, or a label from the settings."""
        return self.settings.get("label") or self.method

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return run_name(self.label, self.settings.get("class_order"), self.seed)

    def write(self, path: str | os.PathLike) -> None:
        """Write the file, atomically."""
        write_json(path, {key: value for key, value in vars(self).items() if value is not None})


def summarise(nested: Mapping[str, NestedMatrix]) -> dict[str, dict[str, float | None]]:
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
    """Read a ``results.json``.

    Raises:
        ValueError: if the file is damaged, not of this package, or of another format; the message names it.
    """
    with _naming(path):
        content = read_json(path)
    return _parse(path, content)


@contextlib.contextmanager
def _naming(path: str | os.PathLike) -> Iterator[None]:
    """Begin the message of an error with the file that it is about."""
    try:
        yield
    except ValueError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise ValueError(f"{path} is not a results.json of this package, or is damaged: {reason}") from None


def _parse(path: str | os.PathLike, content: Any) -> Results:
    if isinstance(content, dict) and "nested" in content:
        check_format(path, content)
    needed = [f.name for f in fields(Results) if f.default is MISSING and f.default_factory is MISSING]
    with _naming(path):
        check_results(content, get_type_hints(Results), needed, METRICS, "content")
    return Results(**{name: value for name, value in content.items() if name != "summary"})


# What most runs of a study have in common, so that its table has it once; and what the table does not have.
_SHARED = (
    *("format", "benchmark", "class_names", "classes_per_experience", "cooccurrence"),
    *("environment", "n_images", "data"),
)
_NOT_IN_TABLES = ("pictures", "worst", "decisions", "class_ap", "summary")


def write_table(path: Path, results: Sequence[Results]) -> None:
    """Write the results of many runs: a line for values that runs share, then one for each run with the rest.

    Pictures and details of single classes are left out, and correlation matrices are rounded to four digits.
    """
    records = [{k: v for k, v in vars(result).items() if k not in _NOT_IN_TABLES} for result in results]
    for record in records:
        record |= {k: np.round(record[k], 4).tolist() for k in ("acm", "cooccurrence") if record[k]}
    shared: dict[str, Any] = {"settings": dict(results[0].settings)}
    for record in records:
        shared |= {key: record[key] for key in _SHARED if shared.get(key) is None}
    lines = [shared]
    for record in records:
        own = {key: value for key, value in record.items() if key not in _SHARED or value != shared[key]}
        base = shared["settings"].items()
        own["settings"] = {
            key: value for key, value in record["settings"].items() if (key, value) not in base
        }
        lines.append(own)
    texts = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines]
    write_text(path, "\n".join(texts) + "\n")


def read_table(path: Path) -> list[Results]:
    """Read what `write_table` wrote.

    Raises:
        ValueError: if the file is damaged, or of another format; the message names it.
    """
    try:
        shared, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        whole = [{**shared, **own, "settings": {**shared["settings"], **own["settings"]}} for own in records]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a table of results, or is damaged: {error}.") from None
    return [_parse(path, content) for content in whole]


def find_results(folders: Iterable[str | os.PathLike]) -> list[Results]:
    """All results below some folders, but not the trials by which a study chose settings.

    Of a run in a table that has a folder beside the table, too, the folder's results count.

    Raises:
        FileNotFoundError: if there are none.
    """
    below = [Path(folder) for folder in folders]
    for folder in below:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder} with results; check its name.")
    files = {path for folder in below for path in folder.rglob(RESULTS_FILE) if not _is_trial(path, folder)}
    found = {path.parent: read_results(path) for path in sorted(files)}
    for table in sorted({path for folder in below for path in folder.rglob(TABLE_FILE)}):
        for result in read_table(table):
            found.setdefault(table.parent / result.name, result)
    if not found:
        raise FileNotFoundError(
            f"no {RESULTS_FILE} below {', '.join(map(str, below))}; has a run ended there?"
        )
    return list(found.values())


def _is_trial(path: Path, folder: Path) -> bool:
    return TRIALS_FOLDER in path.relative_to(folder).parts[-3:-2]


MAY_DIFFER = DATA_PATHS | {"seed", "class_order", "device"}
"""Settings in which results with a common mean may differ: seeds may be run on several machines."""


def group_by_label(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Results of the same method and settings, but for the seed; in the order of the registry.

    Variants follow their method: ablations in their order, then others by name.

    Raises:
        ValueError: if results of one label have other settings, so that their mean would mean nothing.
    """
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    for label, group in groups.items():
        check_comparable(label, group)
    order = {name: k for k, name in enumerate([*METHODS, *ABLATIONS])}

    def place(label: str) -> tuple[int, int, str]:
        method = groups[label][0].method
        return order.get(method, len(order)), order.get(label, len(order)), label

    return {label: groups[label] for label in sorted(groups, key=place)}


def check_comparable(label: str, group: Sequence[Results]) -> None:
    """Raise a ValueError if results have no common mean: several of one seed, or other settings."""
    if len({result.name for result in group}) != len(group):
        seeds = sorted(result.seed for result in group)
        raise ValueError(
            f"{label!r} has several results of one seed (seeds {seeds}); give folders with one of each."
        )
    first, *others = (
        {name: value for name, value in result.settings.items() if name not in MAY_DIFFER} for result in group
    )
    changed = [change for other in others for change in differences(first, other)]
    if changed:
        raise ValueError(
            f"the results of {label!r} have different settings ({'; '.join(dict.fromkeys(changed))}) and no "
            "common mean: report their folders one by one, or give them labels of their own (--label NAME)."
        )


def mean_and_deviation(values: Sequence[float | None], *, digits: int = 1) -> str:
    """``"41.3 ± 0.7"``; the sample deviation, left out for one value; ``"–"`` for none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):z.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def describe_environment() -> dict[str, Any]:
    """Versions of packages that matter, the commit of the checkout if there is one, and the hardware."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with ``+`` if files were changed."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class BlockQuality(NamedTuple):
    """How near blocks of one kind are to the truth, over all experiences."""

    mean_absolute_error: float
    correlation: float
    """Pearson's; NaN if either side is constant."""
    mean: float
    true_mean: float


def train_cooccurrence(plan: Plan) -> torch.Tensor | None:
    """P(i | j) among all train images of a benchmark, float64; None if their labels are not all known."""
    if not plan.labels_complete:
        return None
    used = {position for positions in plan.train.positions for position in positions.tolist()}
    labels = plan.train.labels[sorted(used)].double()
    together = labels.T @ labels
    return together / together.diagonal().clamp(min=1)


def block_quality(
    acm: Sequence[Sequence[float]], truth: Sequence[Sequence[float]], sizes: Sequence[int]
) -> dict[str, BlockQuality]:
    """Compare the blocks B (new-new), R (old-new) and Q (new-old) of every experience with the truth.

    Args:
        acm: [n, n], entry [i, j] = P(i | j).
        truth: the true matrix, of the same shape.
        sizes: classes of each experience.

    Returns:
        By the name of the block. The diagonal, which is 1 in both, does not count.
    """
    found, true = np.asarray(acm, dtype=float), np.asarray(truth, dtype=float)
    experience = np.repeat(np.arange(len(sizes)), sizes)
    row, column = experience[:, None], experience[None, :]
    blocks = {"B": (row == column) & ~np.eye(len(found), dtype=bool), "R": row < column, "Q": row > column}
    return {name: _compare(found[mask], true[mask]) for name, mask in blocks.items()}


def _compare(found: np.ndarray, true: np.ndarray) -> BlockQuality:
    if found.size == 0:
        return BlockQuality(*[math.nan] * 4)
    constant = np.ptp(found) == 0 or np.ptp(true) == 0
    correlation = math.nan if constant else float(np.corrcoef(found, true)[0, 1])
    error = float(np.abs(found - true).mean())
    return BlockQuality(error, correlation, float(found.mean()), float(true.mean()))
