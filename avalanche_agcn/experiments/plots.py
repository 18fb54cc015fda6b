"""Plots of results: learning curves, AP of each class, correlation matrices, labelled pictures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from avalanche_agcn.benchmarks.image_files import load_image
from avalanche_agcn.benchmarks.scenes import CLASS_NAMES, ScenesDataset, true_cooccurrence
from avalanche_agcn.evaluation.plots import Plot, class_heatmap, correlation_heatmap, learning_curve
from avalanche_agcn.evaluation.style import Style
from avalanche_agcn.experiments.methods import Label, name_of, style_of
from avalanche_agcn.experiments.results import Results, group_by_label
from avalanche_agcn.experiments.tables import decision_thresholds


def curves(results: Sequence[Results], metric: str = "mAP") -> Figure:
    """The metric on all classes seen, after each experience: mean and standard deviation over seeds.

    A method that is evaluated at the end only, such as Multi-Task, is a dashed horizontal line.
    """
    rows: dict[str, list[list[float]]] = {}
    levels: dict[str, list[float]] = {}
    groups = group_by_label(results)
    styles: dict[str, Style] = {}
    for label, group in groups.items():
        name = name_of(label)
        if all(group[0].nested[metric]):
            rows[name] = [_seen_scores(result, metric) for result in group]
        else:
            levels[name] = [_seen_scores(result, metric)[-1] for result in group]
        style = style_of(label)
        if style is not None:
            styles[name] = style
    return learning_curve(
        rows,
        levels=levels,
        styles=styles,
        ylabel=f"{metric} on classes seen (%)",
        title=describe_stream(results[0]),
    )


def _seen_scores(result: Results, metric: str) -> list[float]:
    """The score on all classes seen after each experience that was evaluated, as fractions."""
    return [_fraction(row[-1]) for row in result.nested[metric] if row]


def dependence(results: Sequence[Results], setting: str, xlabel: str, **levels: Sequence[Results]) -> Figure:
    """Last mAP by the value of a setting, a curve for each row: mean and standard deviation over seeds.

    Labels are such as ``"er, 9 experiences"``: the part before the comma names the row. ``levels`` are rows
    without the setting, drawn as horizontal lines.
    """
    by_row: dict[str, dict[float, list[float]]] = {}
    methods: dict[str, str] = {}
    for result in results:
        value = {**result.settings, **result.settings["method_settings"]}[setting]
        label = Label.parse(result.label).row
        methods[label] = result.method
        by_row.setdefault(label, {}).setdefault(value, []).append(_last(result))
    x = sorted(next(iter(by_row.values())))
    rows: dict[str, list[tuple[float, ...]]] = {}
    styles: dict[str, Style] = {}
    for label, by_value in by_row.items():
        scores = [by_value[value] for value in x]  # [values, seeds]
        rows[name_of(label)] = list(zip(*scores, strict=True))  # [seeds, values]
        style = style_of(label) or style_of(methods[label])
        if style is not None:
            styles[name_of(label)] = style
    return learning_curve(
        rows,
        levels={name: [_last(result) for result in group] for name, group in levels.items()},
        styles=styles,
        ylabel="mAP after the last experience (%)",
        x=x,
        xlabel=xlabel,
    )


def _last(result: Results) -> float:
    return _fraction(result.summary["mAP"]["last"])


def class_precision(results: Sequence[Results]) -> Figure:
    """AP of each class after the last experience, a column for each method: mean over seeds."""
    names = results[0].class_names
    scores = {}
    for label, group in group_by_label(results).items():
        rows = [[_fraction(result.per_class_ap[name]) for name in names] for result in group]
        scores[name_of(label)] = np.mean(rows, axis=0).tolist()
    return class_heatmap(
        scores,
        class_names=names,
        block_sizes=results[0].classes_per_experience,
        title=f"{describe_stream(results[0])}\nAP of each class at the end",
    )


def correlation(result: Results) -> Figure:
    """The final correlation matrix of an AGCN run, beside the true one where it is known."""
    matrices: dict[str, Any] = {f"ACM of {name_of(result.label)}": result.acm}
    title, truth = true_matrix(result)
    return correlation_heatmap(
        matrices if truth is None else matrices | {title: truth},
        class_names=result.class_names,
        block_sizes=result.classes_per_experience,
        title=describe_stream(result),
    )


def true_matrix(result: Results) -> tuple[str, Any]:
    """Title and entries [i][j] = P(i | j) of the true matrix of a run, or None for unknown entries."""
    if result.benchmark == "SplitScenes":
        return "true co-occurrence", true_cooccurrence(result.class_names)
    return "co-occurrence of the train images", result.cooccurrence


def pictures(result: Results) -> Figure:
    """Test pictures of a run with the labels found in them, as more experiences are learned.

    Labels are found at the thresholds of the run. A FileNotFoundError names a photo that was moved, a
    ValueError a scene that is drawn differently now.
    """
    shown: list[Picture] = []
    for picture in result.pictures or []:
        scores = [[_fraction(p) for p in row] for row in picture["probabilities"]]
        shown.append((open_picture(result, picture), picture["labels"], scores))
    thresholds = decision_thresholds(result)
    title = f"{describe_stream(result)}\nlabels found by {name_of(result.label)} {describe_rule(thresholds)}"
    return labelled_pictures(shown, class_names=result.class_names, thresholds=thresholds, title=title)


def open_picture(result: Results, picture: Mapping[str, Any]) -> Image.Image:
    """Open one of ``result.pictures``: read a photo from the data, or redraw a scene from the settings."""
    if result.benchmark == "SplitScenes":
        return _draw_scene(result, picture)
    root = result.settings.get("dataset_root")
    if root is None:
        raise FileNotFoundError(f"the settings of {result.name} do not name the folder of its images.")
    return load_image(Path(root) / str(picture["image"]))


def _draw_scene(result: Results, picture: Mapping[str, Any]) -> Image.Image:
    settings = result.settings
    number = picture["image"]
    needed = ("validation_size", "n_train", "n_test", "image_size", "seed")
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ValueError(f"the settings of {result.name} lack {', '.join(missing)} to redraw scenes.")
    held_out = bool(settings["validation_size"])
    scenes = ScenesDataset(
        settings["n_train" if held_out else "n_test"],
        class_names=[name for name in CLASS_NAMES if name in result.class_names],
        image_size=settings["image_size"],
        split="train" if held_out else "test",
        seed=settings["seed"],
        in_memory=False,
    )
    if not isinstance(number, int) or number >= len(scenes):
        raise ValueError(f"there is no scene {number!r} among {len(scenes)}: run {result.name} again.")
    image, target = scenes[number]
    labels = {scenes.class_names[column] for column in target.nonzero()}
    if labels != set(picture["labels"]):
        raise ValueError(f"scene {number} shows {sorted(labels)} now, not {picture['labels']}: run it again.")
    return image


def count_of(n: int, noun: str) -> str:
    """A number with its noun: ``"1 class"``, ``"4 classes"``, ``"2 experiences"``."""
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{ending}"


def describe_stream(result: Results) -> str:
    """Title of a plot: ``"SplitScenes: 40 classes in 10 experiences"``, and `describe_data` below it."""
    classes = count_of(len(result.class_names), "class")
    experiences = count_of(len(result.classes_per_experience), "experience")
    data = describe_data(result)
    stream = re.sub(r"^Split(?=COCO|WIDE|VOC)", "Split-", result.benchmark)  # as papers write it
    return f"{stream}: {classes} in {experiences}" + (f"\n{data}" if data else "")


def describe_data(result: Results) -> str:
    """Whether scenes were drawn, only a part of the data was used, and the backbone was frozen."""
    settings = result.settings
    notes = []
    if result.benchmark == "SplitScenes":
        notes.append("drawn scenes")
    if settings.get("limit"):
        notes.append(f"at most {count_of(settings['limit'], 'image')} per experience")
    if settings.get("validation_size"):
        notes.append(f"on {settings['validation_size']:.0%} of the train images")
    if settings.get("freeze_backbone"):
        notes.append("frozen backbone")
    return ", ".join(notes)


def _fraction(percent: float | None) -> float:
    return math.nan if percent is None else percent / 100


# Images with the labels found in them as more experiences are learned: the AGCN paper's Fig. 1.

MAX_COLUMNS = 6
MAX_LINES = 8  # of a cell; the last one counts those that do not fit
SIGNS = {"right": "✓", "missed": "○", "wrong": "✗"}  # for readers who cannot tell the colours apart
COLOURS = {"right": "#0072B2", "missed": "#707070", "wrong": "#D55E00"}
# Inches:
_IMAGE = 1.3  # side of an image
_LINE = 0.16  # height of a line
_LETTER = 0.085  # width of a letter
_TITLE = 4.9  # least width
_HEAD = 0.9  # height of the title
_FOOT = 0.5  # height of the legend


Picture = tuple[Any, Sequence[str], Sequence[Sequence[float]]]
"""An image (PIL or array [H, W, 3]), the names of its true classes, and its scores: row t has the probability
of each class seen after experience t, and is empty if nothing was evaluated."""


def describe_rule(thresholds: Sequence[float]) -> str:
    """When a label counts as found: ``"at p ≥ 0.5"``."""
    if len(set(thresholds)) == 1:
        return f"at p ≥ {thresholds[0]:g}"
    return f"at thresholds of p from {min(thresholds):g} to {max(thresholds):g}"


def found_labels(
    scores: Sequence[float], labels: Sequence[str], class_names: Sequence[str], thresholds: Sequence[float]
) -> list[tuple[str, str]]:
    """Classify the classes that ``scores`` covers as right, missed or wrong; the most probable first.

    A class is found if its score is at or above its threshold.
    """
    names: dict[str, list[str]] = {kind: [] for kind in SIGNS}
    for c in sorted(range(len(scores)), key=lambda c: -scores[c]):
        is_found = scores[c] >= thresholds[c]
        is_true = class_names[c] in labels
        if is_true:
            names["right" if is_found else "missed"].append(class_names[c])
        elif is_found:
            names["wrong"].append(class_names[c])
    return [(kind, name) for kind in SIGNS for name in names[kind]]


def labelled_pictures(
    pictures: Sequence[Picture], *, class_names: Sequence[str], thresholds: Sequence[float], title: str = ""
) -> Plot:
    """Draw images, each beside the labels found in it after the first, the last and some other experiences.

    All must have been evaluated after the same experiences. Experiences that are not shown are named below
    the pictures.
    """
    first_scores = pictures[0][2] if pictures else []  # by experience
    evaluated = [t for t, row in enumerate(first_scores) if len(row)]
    if not evaluated:
        raise ValueError("There is no picture to draw; pass at least one that was evaluated.")
    spaced = np.linspace(0, len(evaluated) - 1, min(MAX_COLUMNS, len(evaluated))).round()
    columns = [evaluated[int(k)] for k in spaced]  # the experience that each column shows
    skipped = [str(t + 1) for t in range(len(first_scores)) if t not in columns]
    plot, grid = _picture_grid(len(pictures), len(columns), longest=max(map(len, class_names)))
    _add_legend(plot, describe_rule(thresholds), skipped)
    plot.suptitle(title, fontsize=10)
    for axes, t in zip(grid[0, 1:], columns, strict=True):
        n_classes = count_of(len(first_scores[t]), "class")
        axes.set_title(f"after experience {t + 1}\n{n_classes}", fontsize=8.5, loc="left")
    at_end: Counter[str] = Counter()
    for (image_axes, *text_axes), (image, labels, scores) in zip(grid, pictures, strict=True):
        image_axes.imshow(np.asarray(image))
        image_axes.set_anchor("N")  # aligned with the first label, whatever its shape
        for axes, t in zip(text_axes, columns, strict=True):
            found = found_labels(scores[t], labels, class_names, thresholds)
            _write_labels(axes, found)
        found_at_end = found_labels(scores[columns[-1]], labels, class_names, thresholds)
        at_end.update(kind for kind, _ in found_at_end)
    after = ", ".join(str(t + 1) for t in columns)
    counts = ", ".join(f"{at_end[kind]} {kind}" for kind in SIGNS)
    where = f"in {count_of(len(pictures), 'image')} after experiences {after}"
    plot.caption = f"labels found {describe_rule(thresholds)} {where}: {counts} at the end"
    return plot


def _picture_grid(n_pictures: int, n_columns: int, *, longest: int) -> tuple[Plot, np.ndarray]:
    """Empty axes [pictures, 1 + columns] with room for names of ``longest`` letters, above a legend."""
    width = max(1.3, _LETTER * (2 + longest))
    height = max(_IMAGE, _LINE * MAX_LINES) + 0.1
    size = (max(_TITLE, _IMAGE + 0.3 + width * n_columns), _HEAD + height * n_pictures + _FOOT)
    foot = _FOOT / size[1]
    plot = Plot(figsize=size, layout=ConstrainedLayoutEngine(rect=(0, foot, 1, 1 - foot)))
    ratios = [_IMAGE, *[width] * n_columns]
    grid = plot.subplots(n_pictures, 1 + n_columns, squeeze=False, width_ratios=ratios)
    for axes in grid.flat:
        axes.set_axis_off()
    return plot, grid


def _add_legend(plot: Plot, rule: str, skipped: Sequence[str]) -> None:
    """Explain the signs below the pictures, and name the experiences that are not shown."""
    width, height = plot.get_size_inches()
    legend = {"right": "right", "wrong": "wrong", "missed": f"missed: already learned, but not found {rule}"}
    for k, (kind, text) in enumerate(legend.items()):
        x = (0.1 + 0.8 * k) / width
        plot.text(x, 0.3 / height, f"{SIGNS[kind]} {text}", **_style(kind))
    if skipped:
        text = f"not shown: after {'experience' if len(skipped) == 1 else 'experiences'} {', '.join(skipped)}"
        plot.text(0.1 / width, 0.1 / height, text, **_style("missed"))


def _write_labels(axes: Axes, lines: list[tuple[str, str]]) -> None:
    if len(lines) > MAX_LINES:
        more = f"… {len(lines) - MAX_LINES + 1} more"
        lines = [*lines[: MAX_LINES - 1], (lines[MAX_LINES - 1][0], more)]
    for k, (kind, name) in enumerate(lines):
        y = 1 - (k + 0.5) / MAX_LINES
        axes.text(0, y, f"{SIGNS[kind]} {name}", transform=axes.transAxes, va="center", **_style(kind))


def _style(kind: str) -> dict[str, Any]:
    return {"fontsize": 8.5, "color": COLOURS[kind], "weight": "bold" if kind == "right" else "normal"}
