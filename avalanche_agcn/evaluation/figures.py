"""Figures: learning curves, correlation matrices, scores of each class.

They are plain ``matplotlib.figure.Figure`` objects, made without pyplot: nothing needs a display or has to
be closed, and ``figure.savefig(path)`` writes them. Colours are safe for colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

__all__ = ["Style", "TextFigure", "class_heatmap", "correlation_heatmap", "learning_curve"]

# Okabe and Ito's palette, without its yellow, which is too light for lines. Each colour has a marker of its
# own, and another kind of line when colours come round again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":")
# Every name is shown up to this many classes; beyond it they would overlap.
MOST_NAMES = 120


class Style(NamedTuple):
    """How a curve looks: by more than its colour, for those who do not see it and for print."""

    colour: str
    marker: str
    line: str = "-"


class TextFigure(Figure):
    """A figure that says what it shows where only text can be printed."""

    caption = ""

    def __str__(self) -> str:
        return self.caption


def learning_curve(
    curves: Mapping[str, Sequence[float] | Sequence[Sequence[float]]],
    *,
    levels: Mapping[str, Sequence[float]] | None = None,
    styles: Mapping[str, Style] | None = None,
    ylabel: str = "score (%)",
    title: str | None = None,
) -> TextFigure:
    """Draw scores over the experiences, a line for each name.

    Args:
        curves: For each name the score (as a fraction) after each experience, or several such rows, of runs
            with different seeds: then the line is their mean, in a band of one standard deviation. NaN leaves
            a gap.
        levels: For each name a score that belongs to no experience, of one run or several, such as that of
            training on everything at once: a dashed line across.
        styles: How the curves and levels of some names look; the others get styles of their own.
        ylabel: What the scores are.
        title: Above the figure.

    Raises:
        ValueError: If there is nothing to draw.

    Example:
        >>> figure = learning_curve({"mAP": [0.8, 0.7, 0.65]}, ylabel="mAP (%)")
        >>> print(figure)
        mAP (%) after each experience: mAP 80.0 70.0 65.0
    """
    levels = levels or {}
    if not curves and not levels:
        raise ValueError("no curve to draw")
    beside = max(0.0, 0.08 * max(map(len, [*curves, *levels])) - 1.0)  # inches for long names in the legend
    figure = TextFigure(figsize=(6.4 + beside, 4.0), layout="constrained")
    axes = figure.add_subplot()
    style_of = _all_styles([*curves, *levels], styles or {})
    means = {name: _draw_curve(axes, name, values, style_of[name]) for name, values in curves.items()}
    for name, values in levels.items():
        means[name] = _draw_level(axes, name, values, style_of[name])
    axes.set(xlabel="experiences learned", ylabel=ylabel, title=title or "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    _legend(axes, len(means))
    texts = [f"{name} " + " ".join(f"{value:.1f}" for value in mean) for name, mean in means.items()]
    figure.caption = f"{ylabel} after each experience: " + "; ".join(texts)
    return figure


def correlation_heatmap(
    matrices: Mapping[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    block_sizes: Sequence[int] = (),
    title: str | None = None,
) -> TextFigure:
    """Draw correlation matrices side by side: entry [i, j] is P(class i | class j), from 0 to 1.

    Args:
        matrices: For each title a square matrix (tensor, array or lists), all of one size.
        class_names: Names of the rows and columns.
        block_sizes: Number of classes of each experience; lines are drawn between them.
        title: Above the figure.

    Raises:
        ValueError: If there is no matrix, or sizes do not fit.

    Example:
        >>> print(correlation_heatmap({"ACM": [[1.0, 0.2], [0.3, 1.0]]}, block_sizes=[1, 1]))
        P(row | column) of 2 classes: ACM
    """
    arrays = {title: np.asarray(matrix, dtype=float) for title, matrix in matrices.items()}
    n = _common_size(arrays, class_names, block_sizes)
    side = min(max(3.0, 0.16 * n), 14.0)
    margin = 1.6 if class_names else 0.6
    figure = TextFigure(figsize=(len(arrays) * (side + margin) + 0.8, side + margin), layout="constrained")
    figure.suptitle(title or "", fontsize=max(10.0, 2 * side))
    for axes, (name, array) in zip(
        figure.subplots(1, len(arrays), squeeze=False)[0], arrays.items(), strict=True
    ):
        image = axes.imshow(array, cmap="cividis", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(name)
        _name_ticks(axes, n, class_names, size=min(8.0, 72 * side / n * 0.75))
        for border in np.cumsum(block_sizes)[:-1] - 0.5:
            axes.axhline(border, color="white", linewidth=0.8)
            axes.axvline(border, color="white", linewidth=0.8)
    figure.colorbar(image, ax=figure.axes, label="P(row | column)", shrink=0.8)
    figure.caption = f"P(row | column) of {n} classes: {', '.join(arrays)}"
    return figure


def class_heatmap(
    scores: Mapping[str, Sequence[float]],
    *,
    class_names: Sequence[str],
    block_sizes: Sequence[int] = (),
    label: str = "AP (%)",
    title: str | None = None,
) -> TextFigure:
    """Draw a score of each class as a coloured number: a row for each class, a column for each name.

    Args:
        scores: For each name the score (as a fraction) of every class; NaN is shown as a dash.
        class_names: Names of the rows.
        block_sizes: Number of classes of each experience; lines are drawn between them.
        label: What the scores are.
        title: Above the figure.

    Raises:
        ValueError: If there is nothing to draw, or sizes do not fit.

    Example:
        >>> print(class_heatmap({"ER": [0.5, 0.25], "AGCN": [0.75, 1.0]}, class_names=["cat", "dog"]))
        AP (%) of 2 classes: ER, AGCN
    """
    n = len(class_names)
    if not scores or not n or any(len(values) != n for values in scores.values()):
        sizes = {name: len(values) for name, values in scores.items()}
        raise ValueError(f"a score of each of the {n} classes is needed, got {sizes}")
    _check_blocks(block_sizes, n)
    percent = 100 * np.array(list(scores.values()), dtype=float).T  # [classes, names]
    slant = 0.06 * max(map(len, scores))  # inches that the longest name takes upwards and to the right
    size = (max(4.8, 1.6 + slant + 0.42 * len(scores)), 1.0 + slant + 0.19 * n)
    figure = TextFigure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(percent, cmap="cividis", vmin=0.0, vmax=100.0, aspect="auto")
    slanted: dict[str, Any] = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(scores)), list(scores), fontsize=9, **slanted)
    axes.set_yticks(range(n), class_names, fontsize=8)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    for (row, column), value in np.ndenumerate(percent):
        text, colour = ("–", "black") if np.isnan(value) else (f"{value:.0f}", _ink(value / 100))
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    for border in np.cumsum(block_sizes)[:-1] - 0.5:
        axes.axhline(border, color="white", linewidth=1.5)
    figure.colorbar(image, ax=axes, label=label, shrink=min(1.0, 4 / size[1]), aspect=30)
    figure.suptitle(title or "", fontsize=10)
    figure.caption = f"{label} of {n} classes: {', '.join(scores)}"
    return figure


def _ink(shade: float) -> str:
    """What is readable on a shade of cividis, which is dark below the middle."""
    return "white" if shade < 0.5 else "black"


def _all_styles(names: Sequence[str], given: Mapping[str, Style]) -> dict[str, Style]:
    """A style for each name; those not given differ from each other."""
    return {name: given.get(name) or _style(k) for k, name in enumerate(names)}


def _style(k: int) -> Style:
    return Style(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], LINES[k // len(COLOURS) % len(LINES)])


def _draw_curve(axes: Axes, name: str, values: Sequence[Any], style: Style) -> np.ndarray:
    """Mean and band over runs; returns the mean, in percent."""
    runs = 100 * np.atleast_2d(np.asarray(values, dtype=float))  # [runs, experiences]
    mean = runs.mean(axis=0)
    x = np.arange(1, len(mean) + 1)
    axes.plot(
        x, mean, label=name, color=style.colour, marker=style.marker, linestyle=style.line, markersize=5
    )
    if len(runs) > 1:
        spread = runs.std(axis=0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=style.colour, alpha=0.2, linewidth=0)
    return mean


def _draw_level(axes: Axes, name: str, values: Sequence[float], style: Style) -> np.ndarray:
    runs = 100 * np.asarray(values, dtype=float)
    mean = runs.mean()
    axes.axhline(mean, label=name, color=style.colour, linestyle="--")
    if len(runs) > 1:
        spread = runs.std(ddof=1)
        axes.axhspan(mean - spread, mean + spread, color=style.colour, alpha=0.1, linewidth=0)
    return np.array([mean])


def _legend(axes: Axes, n_curves: int) -> None:
    """Inside for a few curves; beside them for many, where it covers none."""
    if n_curves > 4:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    else:
        axes.legend(frameon=False)


def _common_size(
    arrays: Mapping[str, np.ndarray], class_names: Sequence[str] | None, block_sizes: Sequence[int]
) -> int:
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[0] != shape[1] or not shape[0]:
        raise ValueError(f"square matrices of one size are needed, got {[a.shape for a in arrays.values()]}")
    n = shape[0]
    if class_names is not None and len(class_names) != n:
        raise ValueError(f"{len(class_names)} class names for a matrix of {n} classes")
    _check_blocks(block_sizes, n)
    return n


def _check_blocks(block_sizes: Sequence[int], n: int) -> None:
    if len(block_sizes) and sum(block_sizes) != n:
        raise ValueError(f"block_sizes {list(block_sizes)} add up to {sum(block_sizes)}, not to {n} classes")


def _name_ticks(axes: Axes, n: int, class_names: Sequence[str] | None, *, size: float) -> None:
    if class_names is None or n > MOST_NAMES:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return
    axes.set_xticks(range(n), class_names, rotation=90, fontsize=size)
    axes.set_yticks(range(n), class_names, fontsize=size)
