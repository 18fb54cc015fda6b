"""The report as one page, ``report.html``: a single file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
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
from avalanche_agcn.experiments.plots import describe_stream, open_picture, true_matrix
from avalanche_agcn.experiments.results import METRICS, PICTURES, Results, group_by_label, known
from avalanche_agcn.experiments.tables import all_tables

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
    script, css, html = ((folder / f"report.{kind}").read_text("utf-8") for kind in ("js", "css", "html"))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    text = environment.from_string(html).render(
        title=content[0]["title"] if title is None else title,
        parts=content,
        data={"parts": [part["data"] for part in content], "photos": photos.uris},
        progress=progress,
        version=__version__,
        script=Markup(script),
        # Only this script may run, whatever the names of classes and labels are.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        css=Markup(css),
    )
    write_text(path, text.encode("utf-8", "replace").decode())


def part_data(title: str, results: Sequence[Results], photos: Photos, stages: bool) -> dict[str, Any]:
    """What the template shows of one stream, and under ``data`` what its script draws."""
    groups = group_by_label(results)
    results = [result for group in groups.values() for result in group]
    first = results[0]
    classes, sizes = first.class_names, first.classes_per_experience
    methods = [_method(label, group, k) for k, (label, group) in enumerate(groups.items())]
    # The worst photos come last, as there may be no room for all.
    for part in ("pictures", "worst"):
        for method, group in zip(methods, groups.values(), strict=True):
            method[part] = photos.select(group[0], part)
    # Methods whose curves are shown at first.
    preferred = (METHODS.keys() | VARIANTS.keys() - ABLATIONS.keys()) & groups.keys()
    shown = preferred if len(groups) > MAX_SHOWN else groups
    for method in methods:
        method["shown"] = method["label"] in (shown or [*groups][:MAX_SHOWN])
    return {
        "title": title,
        "stream": describe_stream(first).replace("\n", ", "),
        "tables": all_tables(results, stages=stages),
        "experiences": np.split(classes, np.cumsum(sizes)[:-1]),
        "runs": results,
        "duration": _duration(sum(result.seconds["total"] for result in results)),
        **_describe_runs(groups),
        "data": {"classes": classes, "sizes": sizes, "metrics": METRICS, "methods": methods},
    }


def _describe_runs(groups: Mapping[str, Sequence[Results]]) -> dict[str, Any]:
    """Settings that all methods share, settings that differ, and the different environments."""
    settings = {name_of(label): _pairs(group[0].settings) for label, group in groups.items()}
    first, *others = settings.values()
    common = [pair for pair in first if all(pair in own for own in others)]
    different = {label: [pair for pair in own if pair not in common] for label, own in settings.items()}
    environments = dict.fromkeys(_pairs(result.environment) for group in groups.values() for result in group)
    return {"common": common, "own": different, "environments": environments}


def _method(label: str, group: Sequence[Results], k: int) -> dict[str, Any]:
    """Means over the seeds of one label, in percent."""
    own = METHODS.get(group[0].method)
    with_matrix = next((result for result in group if result.acm is not None), None)
    title, truth = true_matrix(with_matrix) if with_matrix else ("", None)
    by_class = [[result.per_class_ap.get(name) for result in group] for name in group[0].class_names]
    # A run that has not reached all experiences has fewer rows: an empty matrix pads them.
    empty: list[list[float | None]] = [[] for _ in group[0].classes_per_experience]
    nested = {metric: [empty, *(result.nested[metric] for result in group)] for metric in METRICS}
    return {
        "label": label,
        "name": name_of(label),
        "description": own.description if own else "",
        **(style_of(label) or default_style(k))._asdict(),
        "seeds": [result.seed for result in group],
        "nested": {metric: _means(matrices) for metric, matrices in nested.items()},
        # Of the score on all classes seen, after each experience.
        "deviation": {
            metric: [_deviation(row[-1] for row in rows if row) for rows in zip_longest(*matrices)]
            for metric, matrices in nested.items()
        },
        "ap": [_mean(values) for values in by_class],
        "ap_deviation": [_deviation(values) for values in by_class],
        "class_ap": _means(result.class_ap for result in group if result.class_ap),
        "decisions": _decisions(group),
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
    """Counts of found labels at the thresholds of the first seed, summed over all seeds that have them."""
    own = [result.decisions for result in group if result.decisions]
    if not own:
        return None
    thresholds, n = own[0]["thresholds"], len(group[0].class_names)

    def total(name: str) -> list[list[int]]:
        counts = [np.atleast_2d(one[name]) for one in own if one["thresholds"] == thresholds]
        # A run that has not reached all classes has fewer columns.
        return np.sum([np.pad(c, ((0, 0), (0, n - c.shape[1]))) for c in counts], axis=0).tolist()

    (true,) = total("true")
    return {"thresholds": thresholds, "true": true, "found": total("found"), "right": total("right")}


def _per_mille(matrix: Any) -> list[list[int]] | None:
    return None if matrix is None else [[round(1000 * float(value)) for value in row] for row in matrix]


class Photos:
    """Photos of a page, small and each once, as ``data:`` addresses in ``uris``."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self._indices: dict[tuple[Any, ...], int | None] = {}

    def select(self, run: Results, part: str) -> list[dict[str, Any]]:
        """``pictures`` or ``worst`` of a run that can be shown, with the index of each photo."""
        settings, shown = run.settings, []
        names = PICTURES[part].keys() - {"image"}
        scene = (settings.get("seed"), settings.get("validation_size"))  # else a file, the same for all seeds
        for picture in getattr(run, part) or []:
            key = (settings.get("dataset_root") or scene, picture["image"])
            if key not in self._indices:
                self._indices[key] = self._add(run, picture)
            if (index := self._indices[key]) is not None:
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
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _duration(seconds: float) -> str:
    """``"90 s"``, ``"5 min"``, ``"1 h 05 min"``."""
    hours, minutes = divmod(round(seconds / 60), 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
