"""Plots of results: learning curves, AP of each class, correlation matrices, labelled pictures."""

from __future__ import annotations

import math
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
from avalanche_agcn.experiments.methods import Label, name_of, style_of
from avalanche_agcn.experiments.results import Results, group_by_label


def curves(results: Sequence[Results], metric: str = "mAP") -> Figure:
    """The metric on all classes seen, after each experience: mean and standard deviation over seeds.

    A method that is evaluated at the end only, such as Multi-Task, is a dashed horizontal line.
    """
    rows: dict[str, list[list[float]]] = {}
    levels: dict[str, list[float]] = {}
    groups = group_by_label(results)
    for label, group in groups.items():
        scores = [[_fraction(row[-1]) for row in result.nested[metric] if row] for result in group]
        if all(group[0].nested[metric]):
            rows[name_of(label)] = scores
        else:
            levels[name_of(label)] = [own[-1] for own in scores]
    return learning_curve(
        rows,
        levels=levels,
        styles={name_of(label): style for label in groups if (style := style_of(label))},
        ylabel=f"{metric} on classes seen (%)",
        title=describe_stream(results[0]),
    )


def dependence(results: Sequence[Results], setting: str, xlabel: str, **levels: Sequence[Results]) -> Figure:
    """Last mAP by the value of a setting, a curve for each row: mean and standard deviation over seeds.

    Labels are such as ``"er, 9 experiences"``: the part before the comma names the row. ``levels`` are rows
    without the setting, drawn as horizontal lines.
    """

    def last(result: Results) -> float:
        return _fraction(result.summary["mAP"]["last"])

    rows: dict[str, dict[float, list[float]]] = {}
    methods: dict[str, str] = {}
    for result in results:
        value = {**result.settings, **result.settings["method_settings"]}[setting]
        methods[Label.parse(result.label).row] = result.method
        rows.setdefault(Label.parse(result.label).row, {}).setdefault(value, []).append(last(result))
    x = sorted(next(iter(rows.values())))
    styles = {name_of(label): style_of(label) or style_of(method) for label, method in methods.items()}
    return learning_curve(
        {name_of(label): list(zip(*(own[value] for value in x), strict=True)) for label, own in rows.items()},
        levels={name: list(map(last, own)) for name, own in levels.items()},
        styles={name: style for name, style in styles.items() if style},
        ylabel="mAP after the last experience (%)",
        x=x,
        xlabel=xlabel,
    )


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
    """Test pictures of a run with the labels found at p ≥ 0.7, as more experiences are learned.

    A FileNotFoundError names a photo that was moved, a ValueError a scene that is drawn differently now.
    """
    shown: list[Picture] = []
    for picture in result.pictures or []:
        scores = [[_fraction(p) for p in row] for row in picture["probabilities"]]
        shown.append((open_picture(result, picture), picture["labels"], scores))
    title = f"{describe_stream(result)}\nlabels found by {name_of(result.label)} at p ≥ {THRESHOLD}"
    return labelled_pictures(shown, class_names=result.class_names, title=title)


def open_picture(result: Results, picture: Mapping[str, Any]) -> Image.Image:
    """Open one of ``result.pictures``: read a photo from the data, or redraw a scene from the settings."""
    if result.benchmark == "SplitScenes":
        return _draw_scene(result, picture)
    root = result.settings.get("dataset_root")
    if root is None:
        raise FileNotFoundError("The settings of the run do not have the folder of its images.")
    return load_image(Path(root) / str(picture["image"]))


def _draw_scene(result: Results, picture: Mapping[str, Any]) -> Image.Image:
    settings, number = result.settings, picture["image"]
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


def describe_stream(result: Results) -> str:
    """Title of a plot: ``"SplitScenes (drawn scenes): 40 classes in 10 experiences"``.

    A second line tells whether only a part of the data was used, and whether the backbone was frozen.
    """
    what = " (drawn scenes)" if result.benchmark == "SplitScenes" else ""
    n_classes, n_experiences = len(result.class_names), len(result.classes_per_experience)
    stream = f"{result.benchmark}{what}: {n_classes} classes in {n_experiences} experiences"
    parts = {
        "limit": "at most {} images per experience",
        "validation_size": "on {:.0%} of the train images",
        "freeze_backbone": "frozen backbone",
    }
    notes = [text.format(value) for name, text in parts.items() if (value := result.settings.get(name))]
    return stream + ("\n" + ", ".join(notes) if notes else "")


def _fraction(percent: float | None) -> float:
    return math.nan if percent is None else percent / 100


# Images with the labels found in them as more experiences are learned: the AGCN paper's Fig. 1.

THRESHOLD = 0.7  # caption of the paper's Fig. 1: labels with a higher probability are shown
MAX_COLUMNS = 4
MAX_LINES = 8  # of a cell; the last one counts those that do not fit
SIGNS = {"right": "✓", "missed": "○", "wrong": "✗"}  # for readers who cannot tell the colours apart
COLOURS = {"right": "#0072B2", "missed": "#707070", "wrong": "#D55E00"}
# Inches: side of an image, height of a line, width of a letter, of the title, height above and below.
_IMAGE, _LINE, _LETTER, _TITLE, _HEAD, _FOOT = 1.3, 0.16, 0.085, 4.6, 0.9, 0.3


Picture = tuple[Any, Sequence[str], Sequence[Sequence[float]]]
"""An image (PIL or array [H, W, 3]), the names of its true classes, and its scores: row t has the probability
of each class seen after experience t, and is empty if nothing was evaluated."""


def found_labels(
    scores: Sequence[float], labels: Sequence[str], class_names: Sequence[str], threshold: float
) -> list[tuple[str, str]]:
    """Classify the classes that ``scores`` covers as right, missed or wrong; the most probable first."""
    kinds = {(True, True): "right", (False, True): "missed", (True, False): "wrong"}  # (found, true)
    named = sorted(zip(scores, class_names, strict=False), key=lambda pair: -pair[0])
    kind_of = {name: kinds.get((score >= threshold, name in labels)) for score, name in named}
    return [(kind, name) for kind in SIGNS for name, own in kind_of.items() if own == kind]


def labelled_pictures(pictures: Sequence[Picture], *, class_names: Sequence[str], title: str = "") -> Plot:
    """Draw images, each beside the labels found in it after the first, the last and some other experiences.

    All must have been evaluated after the same experiences.
    """
    evaluated = [(t, len(row)) for t, row in enumerate(pictures[0][2]) if len(row)] if pictures else []
    if not evaluated:
        raise ValueError("There is no picture to draw; pass at least one that was evaluated.")
    spaced = np.linspace(0, len(evaluated) - 1, min(MAX_COLUMNS, len(evaluated))).round()
    columns = [evaluated[int(k)] for k in spaced]
    plot, grid = _picture_grid(len(pictures), len(columns), longest=max(map(len, class_names)))
    plot.suptitle(title, fontsize=10)
    for axes, (t, n_classes) in zip(grid[0, 1:], columns, strict=True):
        axes.set_title(f"after experience {t + 1}\n{n_classes} classes", fontsize=8.5, loc="left")
    at_end: Counter[str] = Counter()
    for (image_axes, *text_axes), (image, labels, scores) in zip(grid, pictures, strict=True):
        image_axes.imshow(np.asarray(image))
        image_axes.set_anchor("N")  # aligned with the first label, whatever its shape
        for axes, (t, _) in zip(text_axes, columns, strict=True):
            found = found_labels(scores[t], labels, class_names, THRESHOLD)
            _write_labels(axes, found)
        at_end.update(kind for kind, _ in found)
    after = ", ".join(str(t + 1) for t, _ in columns)
    counts = ", ".join(f"{at_end[kind]} {kind}" for kind in SIGNS)
    where = f"in {len(pictures)} images after experiences {after}"
    plot.caption = f"labels found at p ≥ {THRESHOLD} {where}: {counts} at the end"
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
    legend = {"right": "right", "wrong": "wrong", "missed": f"missed: already learned, but p < {THRESHOLD}"}
    for k, (kind, text) in enumerate(legend.items()):
        plot.text((0.1 + 0.8 * k) / size[0], 0.1 / size[1], f"{SIGNS[kind]} {text}", **_style(kind))
    return plot, grid


def _write_labels(axes: Axes, lines: list[tuple[str, str]]) -> None:
    if len(lines) > MAX_LINES:
        more = f"… {len(lines) - MAX_LINES + 1} more"
        lines = [*lines[: MAX_LINES - 1], (lines[MAX_LINES - 1][0], more)]
    for k, (kind, name) in enumerate(lines):
        y, text = 1 - (k + 0.5) / MAX_LINES, f"{SIGNS[kind]} {name}"
        axes.text(0, y, text, transform=axes.transAxes, va="center", **_style(kind))


def _style(kind: str) -> dict[str, Any]:
    return {"fontsize": 8.5, "color": COLOURS[kind], "weight": "bold" if kind == "right" else "normal"}
