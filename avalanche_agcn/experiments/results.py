"""``results.json``: the one place where the figures of a run live."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avalanche_agcn.evaluation.functional import nested_summary
from avalanche_agcn.experiments.files import write_json

METRICS = ("mAP", "CF1", "OF1")
TRIALS_FOLDER = "trials"
NestedMatrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Results:
    """What one method with one seed came to; all scores in percent.

    Attributes:
        benchmark: Name of the benchmark.
        method: Name of the method.
        seed: Its seed.
        settings: All settings of the run.
        class_names: Names of the columns.
        nested: For each metric the matrix a[t][i]: after experience t, on nested test set i. Row t has t + 1
            entries, or none if nothing was evaluated then (Multi-Task has the last row only).
        per_class_ap: AP of each class after the last experience; None where it has no positive.
        seconds: Time of ``train``, ``eval`` and ``total``.
        environment: Versions, commit and hardware.
        acm: The final correlation matrix, for AGCN.
        cooccurrence: P(i | j) among the train images, for AGCN, where all their labels are known.
        classes_per_experience: Number of columns each experience adds.
        pictures: A few test pictures chosen by their labels (`choose_pictures`). Each has ``image``, the
            number of a drawn scene or the name of a file below the setting ``data``; ``labels``, the names of
            what it shows; and ``probabilities``, in percent to two digits: row t for the classes seen by
            experience t, empty if nothing was evaluated then.
    """

    benchmark: str
    method: str
    seed: int
    settings: dict[str, Any]
    class_names: list[str]
    nested: dict[str, list[list[float | None]]]
    per_class_ap: dict[str, float | None]
    seconds: dict[str, float]
    environment: dict[str, Any]
    acm: list[list[float]] | None = None
    cooccurrence: list[list[float]] | None = None
    classes_per_experience: list[int] | None = None
    pictures: list[dict[str, Any]] | None = None
    summary: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.summary:
            object.__setattr__(self, "summary", summarise(self.nested))

    @property
    def label(self) -> str:
        """What stands for this run in tables: the method, or a name that the settings give it."""
        return self.settings.get("label") or self.method

    def write(self, path: str | os.PathLike) -> None:
        """Write the file, atomically."""
        write_json(path, {key: value for key, value in vars(self).items() if value is not None})


def summarise(nested: Mapping[str, NestedMatrix]) -> dict[str, dict[str, float | None]]:
    """``nested_summary`` of each metric; None where a figure is not defined."""
    summaries = {}
    for metric, matrix in nested.items():
        rows = [[math.nan if value is None else value for value in row] for row in matrix]
        figures = nested_summary(rows)._asdict()
        figures["forgetting_relative"] *= 100  # a share of the first score, in percent like the others
        summaries[metric] = {name: none_if_nan(value) for name, value in figures.items()}
    return summaries


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


def read_results(path: str | os.PathLike) -> Results:
    """Read a ``results.json``.

    Raises:
        ValueError: If the file is damaged or is not one of ours; the message names it.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return Results(**content)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a results.json of this package, or is damaged: {error}") from None


def find_results(folders: Iterable[str | os.PathLike]) -> list[Results]:
    """All results below some folders, sorted by path; but not the trials by which a study chose settings.

    Raises:
        FileNotFoundError: If there are none.
    """
    below = [Path(folder) for folder in folders]
    paths = sorted(
        path
        for path in {path for folder in below for path in folder.rglob("results.json")}
        if path.parent.parent.name != TRIALS_FOLDER
    )
    if not paths:
        raise FileNotFoundError(f"no results.json below {', '.join(map(str, below))}; has a run ended there?")
    return [read_results(path) for path in paths]
