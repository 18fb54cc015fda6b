"""The report as one page, ``report.html``: a single file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import io
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from avalanche_agcn import __version__
from avalanche_agcn.evaluation.style import default_style
from avalanche_agcn.experiments.checkpoint import write_text
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS, VARIANTS, name_of, style_of
from avalanche_agcn.experiments.plots import count_of, describe_data, open_picture, true_matrix
from avalanche_agcn.experiments.results import METRICS, PICTURES, Results, group_by_label, known
from avalanche_agcn.experiments.tables import (
    EXPLANATIONS,
    all_tables,
    conclusion,
    decision_thresholds,
    explain,
    ranking,
    trained_at_once,
)

PAGE_FILE = "report.html"
PHOTO_SIDE = 160  # pixels of the longer side
PHOTO_BYTES = 3_000_000
"""Limit for all photos of a page together; those of later methods are skipped."""
MAX_SHOWN = 12
"""With more methods than this, curves of ablations are hidden at first."""
NOT_SHOWN = {"format", "seed", "label", "method", "method_settings", "packages"}


def write_html(
    path: Path,
    parts: Mapping[str, Sequence[Results]],
    *,
    title: str | None = None,
    progress: str | None = None,
    stages: bool = False,
) -> None:
    """Write the page, atomically: results of one stream each, by title; several parts have a tab each.

    The heading is that of the first part if ``title`` is None. With ``progress``, a text about the current
    run, the page reloads itself from time to time. ``stages`` also shows the table of the B protocols' papers
    for other protocols. Results of a part that are not comparable raise a ValueError.
    """
    photos = Photos()
    content = [part_data(name, results, photos, stages) for name, results in parts.items()]
    folder = files("avalanche_agcn.experiments") / "templates"
    script = (folder / "report.js").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["explain"] = explain
    template = environment.from_string((folder / "report.html").read_text("utf-8"))
    text = template.render(
        title=content[0]["title"] if title is None else title,
        parts=content,
        data={"parts": [part["data"] for part in content], "photos": photos.uris},
        progress=progress,
        version=__version__,
        script=Markup(script),
        # Only this script may run, whatever the names of classes and labels are.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        css=Markup((folder / "report.css").read_text("utf-8")),
    )
    write_text(path, text.encode("utf-8", "replace").decode())


def part_data(title: str, results: Sequence[Results], photos: Photos, stages: bool) -> dict[str, Any]:
    """What the template shows of one stream, and under ``data`` what its script draws."""
    groups = group_by_label(results)
    results = [result for group in groups.values() for result in group]
    first = results[0]
    ranked = ranking(groups)
    methods = [_method(label, group, k) for k, (label, group) in enumerate(groups.items())]
    # The worst photos come last, as there may be no room for all.
    n_before = photos.n_missing
    for part in ("pictures", "worst"):
        for method, group in zip(methods, groups.values(), strict=True):
            method[part] = photos.select(group[0], part)
    shown = _shown_at_first(groups)
    for method in methods:
        method["shown"] = method["label"] in shown
    made = all_tables(results, stages=stages)
    titles = " ".join(name for _, _, table in made for name in table.header)
    return {
        "title": title,
        "about": describe_data(first),
        "facts": _facts(results, methods),
        "conclusion": conclusion(results),
        "tables": made,
        "explanations": {word: text for word, text in EXPLANATIONS.items() if word in titles},
        "experiences": np.split(first.class_names, np.cumsum(first.classes_per_experience)[:-1]),
        "runs": results,
        **_describe_runs(groups),
        "data": {
            "classes": first.class_names,
            "sizes": first.classes_per_experience,
            "metrics": METRICS,
            "methods": methods,
            "best": ranked[0] if ranked else methods[0]["label"],
            "missing_photos": photos.n_missing - n_before,
        },
    }


def _facts(results: Sequence[Results], methods: Sequence[Any]) -> list[str]:
    """Sizes of a stream and of its runs, such as ``"4 classes"``."""
    first = results[0]
    facts = [
        count_of(len(first.class_names), "class"),
        count_of(len(first.classes_per_experience), "experience"),
    ]
    for stream, counts in (first.n_images or {}).items():
        facts.append(count_of(sum(counts), f"{stream} image"))
    facts.append(count_of(len(methods), "method"))
    facts.append(count_of(len(results), "run"))
    facts.append(_duration(sum(result.seconds["total"] for result in results)) + " of computing")
    parents = filter(None, (result.settings.get("continues") for result in results))
    if names := list(dict.fromkeys(Path(parent).name for parent in parents)):
        facts.append(f"continued from {', '.join(names)}")
    return facts


def _shown_at_first(groups: Mapping[str, Any]) -> Collection[str]:
    """Labels whose curves are shown at first: all, unless they are too many."""
    if len(groups) <= MAX_SHOWN:
        return groups.keys()
    preferred = (METHODS.keys() | VARIANTS.keys() - ABLATIONS.keys()) & groups.keys()
    return preferred or [*groups][:MAX_SHOWN]


def _describe_runs(groups: Mapping[str, Sequence[Results]]) -> dict[str, Any]:
    """Settings that all methods share, settings that differ, and the different environments."""
    settings = {name_of(label): _pairs(group[0].settings) for label, group in groups.items()}
    first, *others = settings.values()
    common = [pair for pair in first if all(pair in other for other in others)]
    different = {}
    for name, pairs in settings.items():
        different[name] = [pair for pair in pairs if pair not in common]
    environments = dict.fromkeys(_pairs(result.environment) for group in groups.values() for result in group)
    return {"common": common, "different": different, "environments": environments}


def _method(label: str, group: Sequence[Results], k: int) -> dict[str, Any]:
    """Means over the seeds of one label, in percent; matrix and thresholds are those of the first seed."""
    registered = METHODS.get(group[0].method)
    with_matrix = next((result for result in group if result.acm is not None), None)
    title, truth = true_matrix(with_matrix) if with_matrix else ("", None)
    by_class = [[result.per_class_ap.get(name) for result in group] for name in group[0].class_names]
    nested, deviation = {}, {}
    for metric in METRICS:
        # A run that has not reached all experiences has fewer rows: an empty matrix pads them.
        empty: list[list[float | None]] = [[] for _ in group[0].classes_per_experience]
        matrices = [empty, *(result.nested[metric] for result in group)]
        nested[metric] = _means(matrices)
        # Of the score on all classes seen, after each experience.
        deviation[metric] = [_deviation(row[-1] for row in rows if row) for rows in zip_longest(*matrices)]
    return {
        "label": label,
        "name": name_of(label),
        "description": registered.description if registered else "",
        **(style_of(label) or default_style(k))._asdict(),
        "seeds": [result.seed for result in group],
        "at_once": trained_at_once(group[0]),
        "nested": nested,
        "deviation": deviation,
        "ap": [_mean(values) for values in by_class],
        "ap_deviation": [_deviation(values) for values in by_class],
        "class_ap": _means(result.class_ap for result in group if result.class_ap),
        "thresholds": decision_thresholds(group[0]),
        "decisions": _decisions(group),
        "reliability": _reliability(group),
        "acm": _per_mille(with_matrix and with_matrix.acm),
        "truth": _per_mille(truth),
        "truth_title": title,
    }


def _means(matrices: Iterable[Sequence[Sequence[float | None]]]) -> list[list[float | None]]:
    """Mean of each entry over matrices with rows of different lengths."""
    by_row = zip_longest(*matrices, fillvalue=())
    return [[_mean(values) for values in zip_longest(*rows)] for rows in by_row]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = known(values)
    return round(statistics.fmean(numbers), 2) if numbers else None


def _deviation(values: Iterable[float | None]) -> float | None:
    numbers = known(values)
    return round(statistics.stdev(numbers), 2) if len(numbers) > 1 else None


def _decisions(group: Sequence[Results]) -> dict[str, Any] | None:
    """Counts of found labels, means over the seeds, at the thresholds of the first seed that has counts."""
    counted = [result.decisions for result in group if result.decisions]
    if not counted:
        return None
    thresholds = counted[0]["thresholds"]
    comparable = [counts for counts in counted if counts["thresholds"] == thresholds]
    n_classes = len(group[0].class_names)

    def mean(name: str) -> list[list[float]]:
        padded = []
        for counts in comparable:
            rows = np.atleast_2d(counts[name])
            # A run that has not reached all classes has fewer columns.
            padded.append(np.pad(rows, ((0, 0), (0, n_classes - rows.shape[1]))))
        return np.mean(padded, axis=0).round(2).tolist()

    (true,) = mean("true")
    means = {"thresholds": thresholds, "true": true, "found": mean("found"), "right": mean("right")}
    if all("chosen_found" in counts for counts in comparable):  # each seed at its own thresholds
        (means["chosen_found"],) = mean("chosen_found")
        (means["chosen_right"],) = mean("chosen_right")
    return means


def _reliability(group: Sequence[Results]) -> dict[str, Any] | None:
    """Mean probability and share of positives in each bin, over all seeds; means of each class over seeds."""
    measured = [result.reliability for result in group if result.reliability]
    if not measured:
        return None
    cells = np.sum([one["cells"] for one in measured], axis=0)
    true = np.sum([one["true"] for one in measured], axis=0)
    sums = np.sum([np.multiply(one["cells"], _zero_if_none(one["probability"])) for one in measured], axis=0)
    is_used = cells > 0
    return {
        "cells": cells[is_used].tolist(),
        "probability": (sums[is_used] / cells[is_used]).round(2).tolist(),
        "share": (100 * true[is_used] / cells[is_used]).round(2).tolist(),
        "class_probability": [_mean(p) for p in zip_longest(*(one["class_probability"] for one in measured))],
        "class_share": [_mean(p) for p in zip_longest(*(one["class_share"] for one in measured))],
    }


def _zero_if_none(values: Sequence[float | None]) -> list[float]:
    return [0.0 if value is None else value for value in values]


def _per_mille(matrix: Any) -> list[list[int]] | None:
    return None if matrix is None else [[round(1000 * float(value)) for value in row] for row in matrix]


class Photos:
    """Photos of a page, small and each once, as ``data:`` addresses in ``uris``."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.n_missing = 0  # pictures that could not be shown
        self._indices: dict[tuple[Any, ...], int | None] = {}

    def select(self, run: Results, part: str) -> list[dict[str, Any]]:
        """``pictures`` or ``worst`` of a run that can be shown, with the index of each photo."""
        # Scenes are drawn by seed and split; files are the same for all seeds.
        source = run.settings.get("dataset_root")
        if source is None:
            source = (run.settings.get("seed"), run.settings.get("validation_size"))
        names = PICTURES[part].keys() - {"image"}
        shown = []
        for picture in getattr(run, part) or []:
            key = (source, picture["image"])
            if key not in self._indices:
                self._indices[key] = self._add(run, picture)
            index = self._indices[key]
            if index is None:
                self.n_missing += 1
            else:
                shown.append({"photo": index, **{name: picture[name] for name in names}})
        return shown

    def _add(self, run: Results, picture: Mapping[str, Any]) -> int | None:
        """Index of a new photo; None if it cannot be opened, or there is no room for it."""
        if sum(map(len, self.uris)) >= PHOTO_BYTES:
            return None
        try:
            image = open_picture(run, picture).convert("RGB")
        except (OSError, ValueError):  # moved or damaged, or drawn differently now
            return None
        image.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
        file = io.BytesIO()
        image.save(file, "WEBP", quality=60)
        self.uris.append("data:image/webp;base64," + base64.b64encode(file.getvalue()).decode())
        return len(self.uris) - 1


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and texts of settings or versions, including those of the method or of packages."""
    flat = {**values, **values.get("method_settings", {}), **values.get("packages", {})}
    return tuple((name, _text(value)) for name, value in flat.items() if name not in NOT_SHOWN)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def _duration(seconds: float) -> str:
    """``"90 s"``, ``"5 min"``, ``"1 h 05 min"``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
