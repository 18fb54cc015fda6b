"""The forty drawings of ``SplitScenes``, a few polygons and lines per class, and how scenes are painted.

A drawing fills a square from -10 to 10, x to the right and y down, and is painted in the order it is
written. Colours are letters: `a` main and `b` second colour, `s` skin (these three drawn for each object),
`k` nearly black, `d` dark grey, `g` grey, `w` white, `m` wood, `c` glass, `r` red, `y` yellow, `n` green.
"""

import colorsys
import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

SIDE = 20  # of the square of a drawing


class Shape(NamedTuple):
    """A filled polygon, or an open line if it has a width."""

    colour: str
    points: npt.NDArray[np.float64]  # [P, 2]
    width: float = 0.0


Drawing = tuple[Shape, ...]


def poly(colour: str, *xy: float) -> Shape:
    """A polygon through x0, y0, x1, y1, …."""
    return Shape(colour, np.array(xy, dtype=np.float64).reshape(-1, 2))


def box(colour: str, left: float, top: float, right: float, bottom: float) -> Shape:
    """An upright rectangle."""
    return poly(colour, left, top, right, top, right, bottom, left, bottom)


def line(colour: str, width: float, *xy: float) -> Shape:
    """An open line through x0, y0, x1, y1, …."""
    return poly(colour, *xy)._replace(width=width)


def oval(colour: str, x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360) -> Shape:
    """A filled ellipse, or its segment between two angles, in degrees clockwise from 3 o'clock."""
    n_points = 4 + int(abs(stop - start) / 20)
    angle = np.radians(np.linspace(start, stop, n_points))
    return Shape(colour, np.stack([x + rx * np.cos(angle), y + ry * np.sin(angle)], axis=1))


def arc(colour: str, width: float, *ellipse: float) -> Shape:
    """The outline of an `oval`, or its part between two angles."""
    return oval(colour, *ellipse)._replace(width=width)


def disc(colour: str, x: float, y: float, radius: float) -> Shape:
    """A filled circle."""
    return oval(colour, x, y, radius, radius)


def mirrored(*shapes: Shape) -> Drawing:
    """The shapes, then the same with left and right exchanged."""
    return shapes + tuple(shape._replace(points=shape.points * (-1, 1)) for shape in shapes)


# Split-COCO's columns in their order: ten experiences of four.
DRAWINGS: dict[str, Drawing] = {
    "person": (line("b", 2.6, -1.4, 2, -2, 9.5), line("b", 2.6, 1.4, 2, 2, 9.5),
        line("s", 1.8, -3.2, -3.6, -5.6, 2.2), line("s", 1.8, 3.2, -3.6, 5.6, 2.2),
        poly("a", -3.8, -4.6, 3.8, -4.6, 2.8, 3, -2.8, 3), disc("s", 0, -7.2, 2.6),
        oval("k", 0, -7.6, 2.7, 2.4, 180, 360)),
    "bicycle": (arc("k", 0.9, -5.6, 3.4, 4.1, 4.1), arc("k", 0.9, 5.6, 3.4, 4.1, 4.1),
        line("a", 1.2, -5.6, 3.4, -2.4, -2.2, 3.8, -2.2, 0, 3.4, -5.6, 3.4),
        line("a", 1.2, -2.8, -3.6, 0, 3.4), line("a", 1.2, 5.6, 3.4, 3.4, -5, 6, -6),
        line("k", 1.6, -4.6, -4, -1, -4)),
    "car": (poly("a", -6.6, -0.6, -4, -5.4, 3.4, -5.4, 6.4, -0.6),
        poly("c", -5, -0.8, -3.2, -4.2, -0.6, -4.2, -0.6, -0.8),
        poly("c", 0.6, -0.8, 0.6, -4.2, 2.8, -4.2, 4.8, -0.8),
        poly("a", -9.8, 4, -9.8, 0.4, -7, -0.8, 7, -0.8, 9.8, 0.6, 9.8, 4), box("y", 8.4, 0.8, 9.8, 2.2),
        disc("k", -5.4, 4, 2.6), disc("k", 5.4, 4, 2.6), disc("g", -5.4, 4, 1.1), disc("g", 5.4, 4, 1.1)),
    "motorcycle": (arc("k", 2, -6, 4, 3, 3), arc("k", 2, 6, 4, 3, 3),
        line("d", 1.4, 6, 4, 3.6, -4.4, 1.4, -5.6), poly("d", -3.4, 0, 2.6, 0, 2, 4.6, -2.6, 4.6),
        line("g", 1.4, -1, 5.2, -9, 5.2), oval("a", 1, -1.6, 3.6, 2.2),
        poly("k", -8.6, -2.6, -2, -1.6, -1.6, 0.6, -6, 0.8), disc("y", 4.8, -3.4, 1.4)),
    "airplane": (poly("b", 0, -3.4, 10, 3, 10, 5, 0, 2, -10, 5, -10, 3),
        poly("b", 0, 5, 4.4, 8.6, 4.4, 10, 0, 8.6, -4.4, 10, -4.4, 8.6), oval("a", 0, 0, 1.9, 9.8),
        poly("c", -1.3, -6.4, 0, -8.2, 1.3, -6.4, 0, -5.8)),
    "bus": (box("a", -10, -6.6, 10, 4.6), *(box("c", x, -5, x + 3.2, -1) for x in (-9, -4.9, -0.8)),
        box("c", 4.4, -5, 9, 3.4), line("k", 0.6, 6.7, -5, 6.7, 3.4), box("b", -10, 0.6, 3.6, 2),
        disc("k", -6, 4.8, 2.1), disc("k", 3, 4.8, 2.1)),
    "train": (line("d", 0.9, -10, 8, 10, 8), box("a", -3, -3.2, 7, 3), disc("a", 6.8, -0.1, 3.1),
        poly("k", 4.6, -3, 3.8, -8, 8, -8, 7.2, -3), oval("b", 1.4, -3, 1.8, 2.2, 180, 360),
        box("b", -9.4, -7.4, -3, 3), box("c", -8, -5.8, -4.4, -2), box("k", -10, -9, -2.2, -7.4),
        poly("r", 7.2, 3, 10, 7.4, 6.2, 7.4), *(disc("k", x, 5, 2.6) for x in (-6.6, -0.6, 4.4)),
        line("g", 0.9, -6.6, 5, 4.4, 5)),
    "truck": (box("a", -10, -7.4, 3, 3.6), line("b", 1, -10, -2, 3, -2),
        poly("b", 4, 3.6, 4, -4, 7.6, -4, 10, 0, 10, 3.6),
        poly("c", 5.4, -0.4, 5.4, -2.8, 7.2, -2.8, 8.6, -0.4), box("d", -10, 3.2, 10, 4.6),
        *(disc("k", x, 4.8, 2.4) for x in (-7, -1.6, 6.8)), *(disc("g", x, 4.8, 1) for x in (-7, -1.6, 6.8))),
    "traffic light": (box("g", -0.9, 4, 0.9, 10), box("k", -3.6, -10, 3.6, 5), disc("r", 0, -7.2, 2),
        disc("y", 0, -2.5, 2), disc("n", 0, 2.2, 2)),
    "bench": (*mirrored(line("k", 1.4, 7, -6, 7, 1, 8, 7.6), line("k", 1.2, 7, 2, 5, 7.6)),
        *(box("m", -10, y, 10, y + 2) for y in (-6.4, -3.4, 0.6))),
    "bird": (line("y", 0.9, -0.6, 4, -0.6, 8.6, 1.2, 8.6), line("y", 0.9, 1.6, 4, 1.6, 8.6, 3.4, 8.6),
        poly("b", -3, 0, -10, 1, -9.4, 4.4, -2, 3.6), oval("a", 0.6, 1.2, 5, 4), disc("a", 4.6, -3.6, 3.2),
        poly("y", 7.2, -4.8, 10, -3.2, 7.2, -2.2), poly("b", 3.4, -0.6, -6, -1.6, -1.6, 3.4, 2, 3),
        disc("k", 5.4, -4.2, 0.8)),
    "cat": (arc("a", 1.8, 4.6, 5, 4, 4, 100, -60), oval("a", 0, 5, 4.4, 5),
        *mirrored(poly("a", 0.6, -6.4, 4.4, -10, 4.8, -3.6)), oval("a", 0, -3.4, 5.2, 4.2),
        *mirrored(disc("y", 2.2, -4, 1.1), disc("k", 2.2, -4, 0.5)),
        poly("k", -0.9, -2.4, 0.9, -2.4, 0, -1.4),
        *mirrored(line("k", 0.4, 2, -1.8, 7, -2.8), line("k", 0.4, 2, -1.2, 7, -0.6)),
        oval("w", 0, 5.6, 2, 3.2)),
    "dog": (line("a", 1.8, -7, -0.4, -9.6, -5), *(line("a", 2.2, x, 3, x, 9) for x in (-6, -3.4, 1.6, 4.2)),
        poly("a", -7.6, -1.6, 3, -1.6, 5.4, 0, 5.2, 4.6, -7.4, 4.6),
        poly("a", 1.6, 0, 2, -7.4, 6.2, -7.4, 9.8, -4.6, 9.8, -2, 5.6, -1.8, 5.4, 2),
        poly("k", 1, -7.6, 3.8, -7.4, 3.4, -2.4, 0.8, -2.6), disc("k", 9, -4.4, 1), disc("k", 5.8, -5.6, 0.7),
        line("r", 1, 2, -0.6, 5.4, -0.6)),
    "backpack": (arc("k", 1.2, 0, -7.4, 2.4, 2.4, 180, 360), *mirrored(box("b", 5, 0, 7.6, 7)),
        oval("a", 0, -2.4, 6, 6, 180, 360), box("a", -6, -2.4, 6, 9.4), line("k", 0.7, -6, -2, 6, -2),
        box("b", -4.2, 1.6, 4.2, 7.6), line("k", 0.7, -4.2, 3.6, 4.2, 3.6),
        *mirrored(line("k", 0.9, 3, -7, 3, 0))),
    "umbrella": (line("k", 1, 0, -9.8, 0, 7), arc("k", 1, 1.6, 7, 1.6, 2.4, 180, 0),
        oval("a", 0, 0.6, 9.8, 8.6, 180, 360), oval("b", 0, 0.6, 3.4, 8.6, 180, 360)),
    "handbag": (arc("k", 1.3, 0, -2.6, 4, 6), poly("a", -7, -2.4, 7, -2.4, 9, 8.4, -9, 8.4),
        poly("b", -7, -2.4, 7, -2.4, 4.6, 2.6, -4.6, 2.6), disc("y", 0, 2.4, 1.5)),
    "tie": (*mirrored(poly("w", 0, -7.6, 4.6, -10, 6.4, -6.4, 2, -3.4)),
        poly("a", -1.4, -5, 1.4, -5, 3.8, 6.6, 0, 10, -3.8, 6.6),
        poly("a", -2.2, -8.4, 2.2, -8.4, 1.5, -4.8, -1.5, -4.8),
        poly("b", -1.9, -2.6, 1.7, -0.8, 2.2, 1, -2.3, -1), poly("b", -2.9, 2, 2.9, 4.4, 3.4, 6, -3.3, 3.6)),
    "sports ball": (disc("k", 0, 0, 9.4), disc("w", 0, 0, 8.6),
        poly("a", 0, -3.6, 3.4, -1.1, 2.1, 2.9, -2.1, 2.9, -3.4, -1.1),
        *mirrored(line("k", 0.7, 3.4, -1.1, 6, -2), line("k", 0.7, 2.1, 2.9, 3.6, 5)),
        line("k", 0.7, 0, -3.6, 0, -6.2), poly("a", -3, -7.6, 0, -6, 3, -7.6, 0, -8.6),
        *mirrored(poly("a", 8.4, -1.4, 5.8, -2.2, 5.6, -6, 7.4, -4.4),
            poly("a", 5.8, 6, 3.4, 4.8, 2.6, 7.6, 4, 7.6))),
    "skateboard": (line("a", 2.2, -9.6, -2.4, -6.6, 0, 6.6, 0, 9.6, -2.4),
        *mirrored(poly("g", 3.4, 0.8, 6.4, 0.8, 4.9, 3), disc("k", 4.9, 3.6, 2.2)),
        *mirrored(disc("b", 4.9, 3.6, 0.9))),
    "surfboard": (poly("a", 0, -10, 2, -7.6, 3.2, -3.6, 3.4, 1, 2.6, 6, 1, 9.8,
            -1, 9.8, -2.6, 6, -3.4, 1, -3.2, -3.6, -2, -7.6),
        poly("b", -3.2, -3.8, 3.2, -3.8, 3.4, -0.4, -3.4, -0.4), line("w", 0.8, 0, -9, 0, 9),
        poly("k", -0.7, 4.6, 0.7, 4.6, 1.2, 8.4, -1.2, 8.4)),
    "tennis racket": (*(line("w", 0.5, x, -9, x, 1) for x in (-2.6, 0, 2.6)),
        *(line("w", 0.5, -4.4, y, 4.4, y) for y in (-7, -4.2, -1.4)), arc("a", 1.5, 0, -4.2, 4.6, 5.4),
        line("a", 1.3, -2.4, 0.4, 0, 4.6, 2.4, 0.4), line("k", 2.2, 0, 4.2, 0, 10)),
    "bottle": (poly("a", -1.4, -7, 1.4, -7, 1.6, -3.6, 3.8, -0.6, 3.8, 10, -3.8, 10, -3.8, -0.6, -1.6, -3.6),
        box("b", -1.9, -10, 1.9, -7.4), box("w", -3.8, 1.6, 3.8, 6.4), line("d", 0.7, -2.2, 4, 2.2, 4)),
    "cup": (arc("a", 1.8, 5.4, 2.4, 3.2, 3.2), poly("a", -7, -3.4, 5.4, -3.4, 4.4, 9, -6, 9),
        oval("k", -0.8, -3.4, 6.2, 1.4),
        *(line("g", 0.8, x, -5.4, x + 1, -7, x, -8.4, x + 1, -10) for x in (-3.6, 0))),
    "fork": (*(line("g", 1.1, x, -9.6, x, -4) for x in (-3, -1, 1, 3)), oval("g", 0, -4.2, 3.5, 3.8, 0, 180),
        line("g", 1.6, 0, -2, 0, 2), line("a", 2.6, 0, 1.6, 0, 9.6)),
    "knife": (poly("g", -2, 1.6, -2, -8, -0.6, -10, 1.4, -8, 2.2, -4, 2, 1.6),
        line("w", 0.6, -1, -7.6, -1, 1), box("k", -2.2, 1.4, 2.2, 2.6),
        poly("a", -1.7, 2.6, 1.7, 2.6, 2.1, 9, 0, 10, -2.1, 9)),
    "spoon": (line("g", 1.6, 0, -3, 0, 2.4), oval("g", 0, -6, 3.4, 4), oval("w", -0.4, -6.2, 1.8, 2.6),
        line("a", 2.6, 0, 1.8, 0, 9.6)),
    "bowl": (box("b", -3.4, 6, 3.4, 8), oval("a", 0, -1.4, 9.8, 8.8, 0, 180), oval("b", 0, -1.4, 9.8, 2.6),
        oval("w", 0, -1.2, 8, 1.7)),
    "chair": (line("m", 1.4, -4.6, -9.6, -4.6, 9.4), line("m", 1.4, 1.4, -9.6, 1.4, 6.6),
        line("m", 1.4, 6, 1.6, 6, 9.4), line("m", 1.4, -1.4, 1.6, -1.4, 9.4), box("a", -4.6, -9, 1.4, -5.6),
        line("m", 1, -4.6, -3.4, 1.4, -3.4), poly("a", -5.4, -0.8, 2, -0.8, 7, 1.6, -1.8, 2)),
    "couch": (*mirrored(box("k", 6, 5, 7.6, 7.4)), box("a", -8, -6, 8, 4),
        *mirrored(box("b", 0.3, -4.4, 6.4, 1)), box("a", -8, 1, 8, 5.6),
        line("k", 0.6, -6.4, 1.2, 6.4, 1.2),
        *mirrored(box("a", 6.4, -1, 9.8, 5.6), oval("a", 8.1, -1, 1.7, 1.6, 180, 360)),
        *mirrored(line("k", 0.6, 6.4, -1, 6.4, 5.6))),
    "potted plant": (line("n", 1, 0, 4, 0, -6),
        *mirrored(poly("n", 0, 3, 3.4, -2, 8.4, -3, 5.6, 1.6),
            poly("n", 0, -1, 1.6, -5.6, 6.4, -8.6, 5, -3.4)),
        poly("n", 0, -3, -1.8, -6.6, 0, -10, 1.8, -6.6),
        poly("a", -4.6, 3.8, 4.6, 3.8, 3.2, 10, -3.2, 10), box("a", -5.4, 2.6, 5.4, 4.8)),
    "bed": (box("m", -10, -5.6, -8.4, 7), box("m", 8.6, -0.6, 10, 7), box("w", -8.4, 0.6, 8.6, 4.6),
        oval("w", -5.6, -0.8, 2.8, 1.8), poly("a", -3.4, -0.6, 6, -1.4, 8.6, 0.4, 8.6, 4, -3.4, 4),
        box("m", -8.4, 4, 8.6, 5.4), poly("b", -3.4, -0.6, -1, -0.8, -1, 4, -3.4, 4)),
    "dining table": (*mirrored(line("m", 1.6, 8, 0, 8, 8.4), line("m", 1.3, 5, 0, 5, 5.6)),
        poly("a", -6.6, -4.4, 6.6, -4.4, 9.8, 0, -9.8, 0), box("b", -9.8, 0, 9.8, 1.8),
        oval("w", 0, -2.4, 3.4, 1.2)),
    "toilet": (box("w", -7.6, -9, -2.6, 2), box("g", -8.2, -9.6, -2, -7.8),
        poly("w", -4.6, 1, 7.6, 1, 6.4, 5, 2.6, 6.6, 3, 9.6, -5, 9.6, -4.6, 6),
        box("a", -4.2, -0.8, 8.4, 1.4), line("a", 1.4, -1.8, -0.6, -0.8, -8)),
    "tv": (*mirrored(line("k", 0.7, 0, -5, 5, -10), line("k", 1.4, 5, 7, 6.4, 9.4)),
        box("m", -9.6, -5.4, 9.6, 7.6), box("k", -8.4, -4.2, 5.2, 6.4), box("c", -7.6, -3.4, 4.4, 5.6),
        disc("a", 7.4, -2, 1.1), disc("a", 7.4, 1.2, 1.1),
        *(line("k", 0.5, 6.4, y, 8.6, y) for y in (3.8, 5))),
    "laptop": (box("d", -7, -7.4, 7, 3), box("a", -6, -6.4, 6, 2), poly("g", -7, 3, 7, 3, 10, 7.6, -10, 7.6),
        *(line("k", 0.8, -x, y, x, y) for x, y in ((6.4, 4.2), (7.2, 5.6))),
        poly("d", -2, 6.4, 2, 6.4, 2.4, 7.4, -2.4, 7.4)),
    "cell phone": (box("k", -5, -10, 5, 10), box("c", -4, -7.8, 4, 6.8),
        *(box("a", x, y, x + 2, y + 2) for x in (-3.2, 1.2) for y in (-6.6, -3.4)),
        box("b", -3.2, 2.6, 3.2, 5), disc("g", 0, 8.4, 1), line("g", 0.6, -1.6, -8.9, 1.6, -8.9)),
    "sink": (poly("w", -1.8, 4, 1.8, 4, 2.8, 10, -2.8, 10), oval("w", 0, -0.6, 9, 6.6, 0, 180),
        box("g", -10, -2, 10, 0.4), line("d", 1.6, -3, -2, -3, -8, 1.6, -8, 1.6, -5.6),
        box("a", -5.2, -9.8, -0.8, -8.4), poly("c", 1.6, -5, 2.4, -3.2, 1.6, -2.4, 0.8, -3.2)),
    "book": (poly("a", -10, -5, 0, -3.4, 10, -5, 10, 6.4, 0, 8, -10, 6.4),
        *mirrored(poly("w", 0, -4, 3.4, -6, 9, -5.6, 9, 5.4, 3.4, 5, 0, 7)),
        *mirrored(*(line("d", 0.6, 2, y, 7.6, y - 0.6) for y in (-2.6, -0.4, 1.8))),
        line("d", 0.7, 0, -4, 0, 7)),
    "clock": (*mirrored(line("k", 1.4, 3.6, 6, 6, 9.8), oval("b", 5, -6.6, 3.4, 3.4, 200, 400)),
        disc("a", 0, 0.4, 8.2), disc("w", 0, 0.4, 6.4), line("k", 1.1, 0, -4.2, 0, 0.4, 3, 2),
        *(line("k", 0.7, x, y + 0.4, 0.8 * x, 0.8 * y + 0.4) for x, y in ((0, -6), (6, 0), (0, 6), (-6, 0)))),
    "vase": (*(line("n", 0.7, 0, 0, x, y) for x, y in ((-4.4, -7), (0, -8), (4.4, -7))),
        *(disc(colour, x, y, 1.9) for colour, x, y in (("r", -4.4, -7), ("y", 0, -8), ("r", 4.4, -7))),
        poly("a", -3, -1.8, 3, -1.8, 1.8, 0.6, 4.6, 4, 4.2, 7, 2.2, 10,
            -2.2, 10, -4.2, 7, -4.6, 4, -1.8, 0.6),
        poly("b", -4.6, 4, 4.6, 4, 4.4, 6, -4.4, 6)),
}  # fmt: skip

SUPERSAMPLING = 2  # painted this much larger and averaged, for smooth edges
OBJECT_SIZE = (0.42, 0.54)  # side of an object's square, as a share of the image's
MAX_ROTATION = 20.0  # degrees, in both directions: no object is upside down
MAX_CLUTTER = 5  # strokes and polygons that belong to no object
CLUTTER_SPREAD = 0.3  # side of the square they stay in, as a share of the image's
QUARTERS = 4  # of the image, at most one object in each
EDGE = 3  # pixels at least between an object and the edge of the canvas, for the outline and rounding
Colour = tuple[int, int, int]
FIXED_COLOURS: dict[str, Colour] = {
    "k": (32, 32, 38), "d": (84, 86, 94), "g": (150, 154, 162), "w": (248, 248, 245), "m": (150, 100, 56),
    "c": (176, 222, 240), "r": (220, 50, 45), "y": (250, 200, 40), "n": (52, 150, 66),
}  # fmt: skip
SKIN: tuple[Colour, ...] = ((244, 208, 176), (224, 172, 128), (176, 120, 80), (112, 74, 50))


def paint_scene(
    drawings: Sequence[Drawing], image_size: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Paint one object of each of at most ``QUARTERS`` drawings, each in a quarter drawn at random."""
    side = image_size * SUPERSAMPLING
    canvas = _background(side, rng)
    draw = ImageDraw.Draw(canvas)
    _clutter(draw, side, rng)
    quarters = np.argsort(rng.random(QUARTERS))[: len(drawings)]
    for quarter, drawing in zip(quarters.tolist(), drawings, strict=True):
        size, rotation, x, y = rng.random(4)
        smallest, largest = OBJECT_SIZE
        paint_drawing(
            draw,
            drawing,
            # The centre stays in the inner part of its quarter, so that no object hides another.
            centre=((quarter % 2 + 0.3 + 0.4 * x) * side / 2, (quarter // 2 + 0.3 + 0.4 * y) * side / 2),
            size=(smallest + (largest - smallest) * size) * side,
            rotation=(2 * rotation - 1) * MAX_ROTATION,
            palette=random_palette(rng),
        )
    return np.asarray(canvas.reduce(SUPERSAMPLING))


def paint_drawing(
    draw: ImageDraw.ImageDraw,
    drawing: Drawing,
    *,
    centre: tuple[float, float],
    size: float,
    rotation: float,
    palette: dict[str, Colour],
) -> None:
    """Paint a drawing, moved where needed so that all of it is inside the image.

    The drawing's square has ``centre`` and ``size`` in pixels, its ``rotation`` is in degrees, clockwise.
    """
    scale = size / SIDE
    cos, sin = scale * math.cos(math.radians(rotation)), scale * math.sin(math.radians(rotation))
    points = np.concatenate([shape.points for shape in drawing]) @ ((cos, sin), (-sin, cos))
    margin = EDGE + scale * max(shape.width for shape in drawing) / 2
    lowest, highest = margin - points.min(axis=0), np.subtract(draw.im.size, margin) - points.max(axis=0)
    points += np.clip(centre, lowest, highest)
    coordinates = iter(points.ravel().tolist())
    for shape in drawing:
        xy, colour = list(islice(coordinates, shape.points.size)), palette[shape.colour]
        if shape.width:
            draw.line(xy, fill=colour, width=max(1, round(shape.width * scale)), joint="curve")
        else:
            draw.polygon(xy, fill=colour, outline=palette["k"])


def random_palette(rng: np.random.Generator) -> dict[str, Colour]:
    """The colours of one object: two random ones of different hue, a skin, and the fixed ones."""
    hue, step, saturation, value, other_saturation, skin = rng.random(6)
    return FIXED_COLOURS | {
        "a": _hsv(hue, 0.6 + 0.4 * saturation, 0.6 + 0.4 * value),
        "b": _hsv(hue + 0.25 + 0.5 * step, 0.6 + 0.4 * other_saturation, 0.7),
        "s": SKIN[int(skin * len(SKIN))],
    }


def _background(side: int, rng: np.random.Generator) -> Image.Image:
    """A wall and a floor in two pale colours."""
    hue, floor_hue, depth, floor_depth, horizon = rng.random(5)
    canvas = Image.new("RGB", (side, side), _hsv(hue, 0.3 * depth, 0.95 - 0.15 * depth))
    floor = _hsv(floor_hue, 0.35 * floor_depth, 0.85 - 0.2 * floor_depth)
    canvas.paste(floor, (0, int((0.3 + 0.6 * horizon) * side), side, side))
    return canvas


def _clutter(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    """A few strokes and polygons of four corners each."""
    for _ in range(int(rng.random() * (MAX_CLUTTER + 1))):
        kind, hue, saturation, value = rng.random(4)
        colour = _hsv(hue, 0.6 * saturation, 0.4 + 0.5 * value)
        points = (rng.random(2) + CLUTTER_SPREAD * (rng.random((4, 2)) - 0.5)) * side
        if kind < 0.5:
            draw.line(points.ravel().tolist(), fill=colour, width=1 + side // 64)
        else:
            draw.polygon(points.ravel().tolist(), fill=colour)


def _hsv(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return int(255 * red), int(255 * green), int(255 * blue)
