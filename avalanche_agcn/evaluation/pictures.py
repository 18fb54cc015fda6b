"""Pictures with the labels found in them as more experiences are learned: the AGCN paper's Fig. 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from avalanche_agcn.evaluation.figures import TextFigure

__all__ = ["LabelledPicture", "found_labels", "labelled_pictures"]

PAPER_THRESHOLD = 0.7
"""Caption of the paper's Fig. 1: labels of a higher probability are shown."""
MOST_COLUMNS = 4
MOST_LINES = 8  # of a cell; what does not fit is counted in the last one
# By a sign as well as by a colour that colour-blind readers tell from the others.
SIGNS = {"right": "✓", "missed": "○", "wrong": "✗"}
LOOKS: dict[str, dict[str, Any]] = {
    "right": {"color": "#0072B2", "weight": "bold"},
    "missed": {"color": "#707070"},
    "wrong": {"color": "#D55E00"},
}
# Inches: side of a picture, height of a line, width of a letter, what the title needs, rows above and below.
_PICTURE, _LINE, _LETTER, _TITLE, _HEAD, _FOOT = 1.3, 0.16, 0.085, 4.6, 0.9, 0.3
_TEXT = 8.5  # points


class LabelledPicture(NamedTuple):
    """A picture and what was found in it.

    Attributes:
        image: PIL image or array [H, W, 3].
        labels: Names of what it shows.
        scores: Row t: after experience t the probability of each class seen by then, in the order of the
            columns; empty if nothing was evaluated then.
    """

    image: Any
    labels: Sequence[str]
    scores: Sequence[Sequence[float]]


class Found(NamedTuple):
    """Labels of a picture at some time; classes that were not learned by then are in none."""

    right: list[str]
    missed: list[str]
    wrong: list[str]


def found_labels(
    scores: Sequence[float],
    labels: Sequence[str],
    class_names: Sequence[str],
    threshold: float = PAPER_THRESHOLD,
) -> Found:
    """Sort the classes that ``scores`` covers into right, missed and wrong; the most probable first.

    Args:
        scores: Probability of the first classes.
        labels: Names of what the picture shows.
        class_names: Names of all classes.
        threshold: A label of this probability or more is found.

    Example:
        >>> found_labels([0.9, 0.1, 0.8], ["cat", "dog", "sea"], ["cat", "dog", "car", "sea"])
        Found(right=['cat'], missed=['dog'], wrong=['car'])
    """
    order = sorted(range(len(scores)), key=lambda column: -scores[column])
    found = [class_names[column] for column in order if scores[column] >= threshold]
    not_found = [class_names[column] for column in order if scores[column] < threshold]
    return Found(
        [name for name in found if name in labels],
        [name for name in not_found if name in labels],
        [name for name in found if name not in labels],
    )


def labelled_pictures(
    pictures: Sequence[LabelledPicture],
    *,
    class_names: Sequence[str],
    threshold: float = PAPER_THRESHOLD,
    title: str | None = None,
) -> TextFigure:
    """Draw pictures, each beside the labels found in it after some experiences, the first and last included.

    Args:
        pictures: The pictures, all evaluated after the same experiences.
        class_names: Names of all classes.
        threshold: A label of this probability or more is found.
        title: Above the figure.

    Raises:
        ValueError: If there is no picture, or nothing was evaluated.

    Example:
        >>> picture = LabelledPicture(np.zeros((8, 8, 3)), ["cat", "dog"], [[0.9], [0.2, 0.8]])
        >>> print(labelled_pictures([picture], class_names=["cat", "dog"]))
        labels found at p ≥ 0.7 in 1 pictures after experiences 1, 2: 1 right, 1 missed, 0 wrong at the end
    """
    evaluated = [t for t, row in enumerate(pictures[0].scores) if len(row)] if pictures else []
    if not evaluated:
        raise ValueError("no picture to draw, or none that was evaluated")
    columns = _spread(evaluated, MOST_COLUMNS)
    figure, grid = _grid(len(pictures), len(columns), longest=max(map(len, class_names)))
    figure.suptitle(title or "", fontsize=10)
    for axes, t in zip(grid[0, 1:], columns, strict=True):
        heading = f"after experience {t + 1}\n{len(pictures[0].scores[t])} classes"
        axes.set_title(heading, fontsize=_TEXT, loc="left")
    at_end = np.zeros(len(SIGNS), dtype=int)
    for (picture_axes, *text_axes), picture in zip(grid, pictures, strict=True):
        picture_axes.imshow(np.asarray(picture.image))
        picture_axes.set_anchor("N")  # level with the first label, whatever its shape
        found = [found_labels(picture.scores[t], picture.labels, class_names, threshold) for t in columns]
        for axes, labels in zip(text_axes, found, strict=True):
            _write(axes, labels)
        at_end += [len(names) for names in found[-1]]
    _explain(figure, threshold)
    counts = ", ".join(f"{n} {kind}" for n, kind in zip(at_end, SIGNS, strict=True))
    figure.caption = (
        f"labels found at p ≥ {threshold:g} in {len(pictures)} pictures after experiences "
        f"{', '.join(str(t + 1) for t in columns)}: {counts} at the end"
    )
    return figure


def _grid(n_pictures: int, n_columns: int, *, longest: int) -> tuple[TextFigure, np.ndarray]:
    """Empty axes [pictures, 1 + columns], large enough for names of ``longest`` letters."""
    width = max(1.3, _LETTER * (2 + longest))
    height = max(_PICTURE, _LINE * MOST_LINES) + 0.1
    size = (max(_TITLE, _PICTURE + 0.3 + width * n_columns), _HEAD + height * n_pictures + _FOOT)
    foot = _FOOT / size[1]
    figure = TextFigure(figsize=size, layout=ConstrainedLayoutEngine(rect=(0, foot, 1, 1 - foot)))
    ratios = [_PICTURE, *[width] * n_columns]
    grid = figure.subplots(n_pictures, 1 + n_columns, squeeze=False, width_ratios=ratios)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure, grid


def _spread(evaluated: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, with the first and the last."""
    chosen = np.linspace(0, len(evaluated) - 1, min(most, len(evaluated))).round().astype(int)
    return [evaluated[k] for k in chosen]


def _write(axes: Axes, found: Found) -> None:
    lines = [(kind, f"{sign} {name}") for kind, sign in SIGNS.items() for name in getattr(found, kind)]
    if len(lines) > MOST_LINES:
        kind = lines[MOST_LINES - 1][0]
        lines[MOST_LINES - 1 :] = [(kind, f"{SIGNS[kind]} … {len(lines) - MOST_LINES + 1} more")]
    for k, (kind, text) in enumerate(lines):
        y = 1 - (k + 0.5) / MOST_LINES
        axes.text(0.0, y, text, transform=axes.transAxes, va="center", fontsize=_TEXT, **LOOKS[kind])


def _explain(figure: TextFigure, threshold: float) -> None:
    """What the signs mean, below the pictures."""
    texts = {"right": "right", "wrong": "wrong", "missed": f"missed: learned by then, but p < {threshold:g}"}
    for k, (kind, text) in enumerate(texts.items()):
        x, y = (0.1 + 0.8 * k) / figure.get_figwidth(), 0.1 / figure.get_figheight()
        figure.text(x, y, f"{SIGNS[kind]} {text}", fontsize=_TEXT, **LOOKS[kind])
