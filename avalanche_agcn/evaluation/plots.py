"""Plots of learning curves, correlation matrices and scores of each class.

They are Matplotlib figures made without pyplot, so that nothing needs a display or has to be closed.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from avalanche_agcn.evaluation.style import Style, default_style

MAX_NAMES = 120  # class names of a matrix; more would overlap


class Plot(Figure):
    """A figure that notebooks display without pyplot, with a caption for loggers that print text only."""

    caption = ""

    def __str__(self) -> str:
        return self.caption

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def learning_curve(
    curves: Mapping[str, Sequence[float] | Sequence[Sequence[float]]],
    *,
    levels: Mapping[str, Sequence[float]] | None = None,
    styles: Mapping[str, Style] | None = None,
    ylabel: str = "score (%)",
    title: str | None = None,
    x: Sequence[float] | None = None,
    xlabel: str = "experiences learned",
) -> Plot:
    """Plot scores over the experiences, or over ``x`` on a logarithmic axis, a line for each name.

    ``curves`` has for each name the score (as a fraction) after each experience, or several such rows, of
    runs with different seeds: then the line is their mean, in a band of one standard deviation. NaN leaves a
    gap. ``levels`` has for each name a score that belongs to no experience, of one or several runs, such as
    that of training on everything at once: a dashed horizontal line. Curves and levels that are not in
    ``styles`` get different default ones.
    """
    levels = levels or {}
    styles = styles or {}
    names = [*curves, *levels]
    if not names:
        raise ValueError("There is no curve to draw; pass curves or levels.")
    legend_width = max(0.0, 0.08 * max(map(len, names)) - 1.0)  # inches more, for long names
    plot = Plot(figsize=(6.4 + legend_width, max(4.0, 0.22 * len(names))), layout="constrained")
    axes = plot.add_subplot()
    style_of = {name: styles.get(name) or default_style(k) for k, name in enumerate(names)}
    texts = []
    for name, values in curves.items():
        mean = _draw_curve(axes, name, values, style_of[name], x)
        texts.append(f"{name} " + " ".join(f"{value:.1f}" for value in mean))
    for name, values in levels.items():
        level = _draw_level(axes, name, values, style_of[name])
        texts.append(f"{name} {level:.1f}")
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title or "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if x is not None:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.minorticks_off()
    axes.grid(alpha=0.3)
    if len(names) > 4:  # the legend of many curves is placed beside them, where it covers none
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(frameon=False)
    where = "after each experience" if x is None else f"by {xlabel}"
    plot.caption = f"{ylabel} {where}: " + "; ".join(texts)
    return plot


def _draw_curve(
    axes: Axes, name: str, values: Sequence[Any], style: Style, positions: Sequence[float] | None
) -> np.ndarray:
    """Draw mean and band over runs, and return the mean, in percent."""
    runs = 100 * np.atleast_2d(np.asarray(values, dtype=float))  # [runs, experiences]
    mean = runs.mean(axis=0)
    x = np.arange(1, len(mean) + 1) if positions is None else np.asarray(positions)
    colour, marker, line = style
    axes.plot(x, mean, label=name, markersize=5, color=colour, marker=marker, linestyle=line)
    if len(runs) > 1:
        spread = runs.std(axis=0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    return mean


def _draw_level(axes: Axes, name: str, values: Sequence[float], style: Style) -> float:
    """Draw mean and band over runs, and return the mean, in percent."""
    runs = 100 * np.asarray(values, dtype=float)
    mean = runs.mean()
    axes.axhline(mean, label=name, color=style.colour, linestyle="--")
    if len(runs) > 1:
        spread = runs.std(ddof=1)
        axes.axhspan(mean - spread, mean + spread, color=style.colour, alpha=0.1, linewidth=0)
    return float(mean)


def correlation_heatmap(
    matrices: Mapping[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    block_sizes: Sequence[int] = (),
    title: str | None = None,
) -> Plot:
    """Draw correlation matrices of one size side by side: entry [i, j] is P(class i | class j), from 0 to 1.

    ``matrices`` has a tensor, array or lists for each title. Lines separate the blocks of ``block_sizes``,
    the number of classes of each experience.
    """
    arrays = {name: np.asarray(matrix, dtype=float) for name, matrix in matrices.items()}
    n = max((len(array) for array in arrays.values()), default=0)
    if not n or any(array.shape != (n, n) for array in arrays.values()):
        raise ValueError(f"Pass square matrices of one size, got {[a.shape for a in arrays.values()]}.")
    _check_classes(n, class_names, block_sizes)
    side = min(max(3.0, 0.16 * n), 14.0)
    margin = 1.6 if class_names else 0.6
    plot = Plot(figsize=(len(arrays) * (side + margin) + 0.8, side + margin), layout="constrained")
    plot.suptitle(title or "", fontsize=max(10.0, 2 * side))
    grid = plot.subplots(1, len(arrays), squeeze=False)[0]
    for axes, (name, array) in zip(grid, arrays.items(), strict=True):
        image = axes.imshow(array, cmap="cividis", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(name)
        if class_names is None or n > MAX_NAMES:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            font_size = min(8.0, 72 * side / n * 0.75)
            axes.set_xticks(range(n), class_names, rotation=90, fontsize=font_size)
            axes.set_yticks(range(n), class_names, fontsize=font_size)
        for border in np.cumsum(block_sizes)[:-1] - 0.5:
            axes.axhline(border, color="white", linewidth=0.8)
            axes.axvline(border, color="white", linewidth=0.8)
    plot.colorbar(image, ax=plot.axes, label="P(row | column)", shrink=0.8)
    plot.caption = f"P(row | column) of {n} classes: {', '.join(arrays)}"
    return plot


def _check_classes(n: int, class_names: Sequence[str] | None, block_sizes: Sequence[int]) -> None:
    if class_names is not None and len(class_names) != n:
        raise ValueError(f"There are {len(class_names)} class names for {n} classes; name them all.")
    if len(block_sizes) and sum(block_sizes) != n:
        raise ValueError(f"block_sizes {list(block_sizes)} must add up to the {n} classes.")


def class_heatmap(
    scores: Mapping[str, Sequence[float]],
    *,
    class_names: Sequence[str],
    block_sizes: Sequence[int] = (),
    label: str = "AP (%)",
    title: str | None = None,
) -> Plot:
    """Draw a score of each class as a coloured number: a row for each class, a column for each name.

    ``scores`` has for each name the score (as a fraction) of every class; NaN is shown as a dash. Lines
    separate the blocks of ``block_sizes``, the number of classes of each experience.
    """
    n = len(class_names)
    sizes = {name: len(values) for name, values in scores.items()}
    if not n or set(sizes.values()) != {n}:
        raise ValueError(f"Pass one score for each of the {n} classes, got {sizes}.")
    _check_classes(n, class_names, block_sizes)
    percent = 100 * np.array(list(scores.values()), dtype=float).T  # [classes, names]
    slant = 0.06 * max(map(len, scores))  # inches that the longest name takes upwards and to the right
    width = max(4.8, 1.6 + slant + 0.42 * len(scores))
    height = 1.0 + slant + 0.19 * n
    plot = Plot(figsize=(width, height), layout="constrained")
    axes = plot.add_subplot()
    image = axes.imshow(percent, cmap="cividis", vmin=0.0, vmax=100.0, aspect="auto")
    columns = range(len(scores))
    axes.set_xticks(columns, list(scores), fontsize=9, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(n), class_names, fontsize=8)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    for (row, column), value in np.ndenumerate(percent):
        text = "–" if np.isnan(value) else f"{value:.0f}"
        colour = "white" if value < 50 else "black"  # cividis is dark below the middle
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    for border in np.cumsum(block_sizes)[:-1] - 0.5:
        axes.axhline(border, color="white", linewidth=1.5)
    plot.colorbar(image, ax=axes, label=label, shrink=min(1.0, 4 / height), aspect=30)
    plot.suptitle(title or "", fontsize=10)
    plot.caption = f"{label} of {n} classes: {', '.join(scores)}"
    return plot
