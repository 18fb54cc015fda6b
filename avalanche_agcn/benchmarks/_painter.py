"""Paint drawings and whole scenes: place, size, rotation, colours, background and clutter."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from avalanche_agcn.benchmarks._drawings import SIDE, Drawing

SUPERSAMPLING = 2  # painted this much larger and averaged, for smooth edges
OBJECT_SIZE = (0.42, 0.54)  # side of an object's square, as a share of the image's
MAX_ROTATION = 20.0  # degrees, in both directions: objects stand upright or lie, as usual
MAX_CLUTTER = 5  # strokes and polygons that are no object
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
    """Paint one object of each drawing, in quarters of the image drawn at random.

    Args:
        drawings: at most ``QUARTERS`` drawings.
        image_size: side of the image in pixels.
        rng: draws everything that varies.

    Returns:
        The image, [image_size, image_size, 3].
    """
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
            centre=(
                (quarter % 2 + 0.3 + 0.4 * x) * side / 2,
                (quarter // 2 + 0.3 + 0.4 * y) * side / 2,
            ),
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

    Args:
        draw: the canvas.
        drawing: the shapes.
        centre: middle of the drawing's square, in pixels.
        size: side of that square, in pixels.
        rotation: degrees, clockwise.
        palette: colour of each letter.
    """
    scale = size / SIDE
    cos, sin = scale * math.cos(math.radians(rotation)), scale * math.sin(math.radians(rotation))
    points = np.concatenate([shape.points for shape in drawing]) @ ((cos, sin), (-sin, cos))
    margin = EDGE + scale * max(shape.width for shape in drawing) / 2
    points += np.clip(
        centre,
        margin - points.min(axis=0),
        np.subtract(draw.im.size, margin) - points.max(axis=0),
    )
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
