"""The report as one page, ``report.html``: a single file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from avalanche_agcn import __version__
from avalanche_agcn.evaluation.style import default_style
from avalanche_agcn.experiments.checkpoint import write_text
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS, VARIANTS, name_of, style_of
from avalanche_agcn.experiments.plots import describe_stream, open_picture, true_matrix
from avalanche_agcn.experiments.results import METRICS, Results, group_by_label, known
from avalanche_agcn.experiments.tables import all_tables

PAGE_FILE = "report.html"
PHOTO_SIDE = 160  # pixels of the longer side
PHOTO_BYTES = 3_000_000
"""All photos of a page together; those of later methods are left out."""
MAX_SHOWN = 12
"""With more methods than this, curves of ablations are switched off at first."""
NOT_SHOWN = {"format", "seed", "label", "method", "method_settings", "packages"}


def write_html(
    path: Path,
    parts: Mapping[str, Sequence[Results]],
    *,
    title: str | None = None,
    progress: str | None = None,
    stages: bool = False,
) -> None:
    """Write the page, atomically.

    Args:
        path: the file.
        parts: results of one stream each, by title; a page with several parts has a tab for each.
        title: heading of the page; that of the first part if None.
        progress: what is still to be run, in words; the page then loads itself again from time to time.
        stages: also show the table of the B protocols' papers for other protocols.

    Raises:
        ValueError: if the results of a part are not comparable.
    """
    photos = Photos()
    content = [part_data(name, results, photos, stages) for name, results in parts.items()]
    folder = files("avalanche_agcn.experiments") / "templates"
    script, css, html = ((folder / f"report.{kind}").read_text("utf-8") for kind in ("js", "css", "html"))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["duration"] = _duration
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
    groups = group_by_label(map(_padded, results))
    results = [result for group in groups.values() for result in group]
    first = results[0]
    truths: list[list[list[int]]] = []
    methods = [_method(label, group, k, truths) for k, (label, group) in enumerate(groups.items())]
    firsts = [(method, group[0]) for method, group in zip(methods, groups.values(), strict=True)]
    for method, run in firsts:
        method["pictures"] = photos.shown(run, run.pictures, "labels", "probabilities")
    for method, run in firsts:  # last, as there may be no room for all
        method["worst"] = photos.shown(run, run.worst, "class", "error", "labels", "probability")
    _choose_shown(methods)
    return {
        "title": title,
        "stream": describe_stream(first).replace("\n", ", "),
        "tables": {caption: table._asdict() for caption, table in all_tables(results, stages=stages).items()},
        "experiences": _experiences(first),
        "runs": results,
        "seconds": sum(result.seconds["total"] for result in results),
        **_describe_runs(groups),
        "data": {
            "title": title,
            "classes": first.class_names,
            "sizes": first.classes_per_experience,
            "metrics": METRICS,
            "methods": methods,
            "truths": truths,
        },
    }


def _describe_runs(groups: Mapping[str, Sequence[Results]]) -> dict[str, Any]:
    """Settings that all methods share, those of each alone, and the different environments."""
    settings = {name_of(label): _flat(group[0].settings) for label, group in groups.items()}
    common = next(iter(settings.values()))
    for own in settings.values():
        common = {name: value for name, value in common.items() if own.get(name) == value}
    alone = {
        name: {key: value for key, value in own.items() if key not in common}
        for name, own in settings.items()
    }
    environments: list[dict[str, str]] = []
    for environment in (_flat(result.environment) for group in groups.values() for result in group):
        environments += [] if environment in environments else [environment]
    return {"common": common, "own": alone, "environments": environments}


def _padded(result: Results) -> Results:
    """Results with empty rows for the experiences that a run has yet to learn."""
    missing = len(result.classes_per_experience) - len(result.nested[METRICS[0]])
    nested = {metric: [*rows, *([] for _ in range(missing))] for metric, rows in result.nested.items()}
    return replace(result, nested=nested)


def _experiences(result: Results) -> list[dict[str, Any]]:
    """Names of classes, and numbers of images, of each experience."""
    names, rows = iter(result.class_names), []
    for t, size in enumerate(result.classes_per_experience):
        images = {stream: own[t] for stream, own in (result.n_images or {}).items()}
        rows.append({"classes": [next(names) for _ in range(size)], "images": images})
    return rows


def _method(label: str, group: Sequence[Results], k: int, truths: list[Any]) -> dict[str, Any]:
    """One row of the tables: means over seeds, in percent."""
    style = style_of(label) or default_style(k)
    own = METHODS.get(group[0].method)
    with_matrix = next((result for result in group if result.acm is not None), None)
    by_class = [[result.per_class_ap.get(name) for result in group] for name in group[0].class_names]
    return {
        "label": label,
        "name": name_of(label),
        "description": own.description if own else "",
        **style._asdict(),
        "seeds": [result.seed for result in group],
        "done": [sum(map(bool, result.nested[METRICS[0]])) for result in group],
        "nested": {metric: _means(result.nested[metric] for result in group) for metric in METRICS},
        "deviation": {metric: _deviations(group, metric) for metric in METRICS},
        "ap": [_mean(values) for values in by_class],
        "ap_deviation": [_deviation(values) for values in by_class],
        "class_ap": _means(result.class_ap for result in group if result.class_ap),
        "decisions": _decisions(group),
        "acm": None if with_matrix is None else _per_mille(with_matrix.acm),
        "truth": None if with_matrix is None else _truth(with_matrix, truths),
    }


def _means(matrices: Iterable[Sequence[Sequence[float | None]]]) -> list[list[float | None]]:
    """Mean of each entry over matrices with rows of different lengths."""
    by_row = zip_longest(*matrices, fillvalue=())
    return [[_mean(values) for values in zip_longest(*rows)] for rows in by_row]


def _deviations(group: Sequence[Results], metric: str) -> list[float | None]:
    """Deviation over seeds of the score on all classes seen, after each experience."""
    by_row = zip(*(result.nested[metric] for result in group), strict=True)
    return [_deviation(row[-1] for row in rows if row) for rows in by_row]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = known(values)
    return round(statistics.fmean(numbers), 2) if numbers else None


def _deviation(values: Iterable[float | None]) -> float | None:
    numbers = known(values)
    return round(statistics.stdev(numbers), 2) if len(numbers) > 1 else None


def _decisions(group: Sequence[Results]) -> dict[str, Any] | None:
    """Counts of found labels, added up over seeds; 0 for the classes that runs have yet to learn."""
    own = [result.decisions for result in group if result.decisions]
    if not own:
        return None
    total: dict[str, Any] = {"thresholds": own[0]["thresholds"]}
    none = [0] * len(group[0].class_names)

    def add(rows: Iterable[Sequence[int]]) -> list[int]:
        return [sum(counts) for counts in zip_longest(none, *rows, fillvalue=0)]

    total["true"] = add(counts["true"] for counts in own)
    for kind in ("found", "right"):
        total[kind] = [add(rows) for rows in zip(*(counts[kind] for counts in own), strict=True)]
    return total


def _per_mille(matrix: Any) -> list[list[int]]:
    return [[round(1000 * float(value)) for value in row] for row in matrix]


def _truth(result: Results, truths: list[Any]) -> dict[str, Any] | None:
    """Title of the true matrix, and its place among those of the page, which methods share."""
    title, matrix = true_matrix(result)
    if matrix is None:
        return None
    rounded = _per_mille(matrix)
    if rounded not in truths:
        truths.append(rounded)
    return {"title": title, "index": truths.index(rounded)}


def _choose_shown(methods: Sequence[dict[str, Any]]) -> None:
    """Mark the methods whose curves are shown at first."""
    first = METHODS.keys() | VARIANTS.keys() - ABLATIONS.keys()
    for method in methods:
        method["shown"] = len(methods) <= MAX_SHOWN or method["label"] in first
    if not any(method["shown"] for method in methods):
        for method in methods[:MAX_SHOWN]:
            method["shown"] = True


class Photos:
    """Photos of a page, small and each once, as ``data:`` addresses in ``uris``."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self._places: dict[tuple[Any, ...], int | None] = {}
        self._room = PHOTO_BYTES

    def shown(self, run: Results, pictures: Sequence[Mapping[str, Any]] | None, *names: str) -> Any:
        """Pictures of a run that can be shown: the place of the photo, and some of what is recorded of it."""
        places = [(picture, self._place(run, picture)) for picture in pictures or []]
        return [
            {"photo": photo, **{name: picture[name] for name in names}}
            for picture, photo in places
            if photo is not None
        ]

    def _place(self, run: Results, picture: Mapping[str, Any]) -> int | None:
        """Place among the addresses; None if the picture cannot be opened, or there is no room for it."""
        settings = run.settings
        scene = (settings.get("seed"), settings.get("validation_size"))  # else a file, the same for all seeds
        key = (settings.get("dataset_root") or scene, picture["image"])
        if key not in self._places:
            self._places[key] = self._add(run, picture)
        return self._places[key]

    def _add(self, run: Results, picture: Mapping[str, Any]) -> int | None:
        if self._room <= 0:
            return None
        try:
            image = open_picture(run, picture).convert("RGB")
        except (OSError, ValueError):  # moved or damaged, or drawn differently now
            return None
        image.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
        file = io.BytesIO()
        image.save(file, "WEBP", quality=60)
        self.uris.append("data:image/webp;base64," + base64.b64encode(file.getvalue()).decode())
        self._room -= len(self.uris[-1])
        return len(self.uris) - 1


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings or versions as text, those of the method or of packages among them."""
    flat = {**values, **values.get("method_settings", {}), **values.get("packages", {})}
    return {name: _text(value) for name, value in flat.items() if name not in NOT_SHOWN}


def _duration(seconds: float) -> str:
    """Seconds in words: ``"1 h 05 min"``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
