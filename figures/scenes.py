"""Draw figures/scenes.png: the forty classes of SplitScenes, and scenes with their labels.

    python figures/scenes.py [--out figures/scenes.png]

The result is deterministic.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from avalanche_agcn.benchmarks._drawings import (
    DRAWINGS,
    SUPERSAMPLING,
    Drawing,
    paint_drawing,
    random_palette,
)
from avalanche_agcn.benchmarks.scenes import CLASS_NAMES, ScenesDataset

CLASS_COLUMNS, CLASS_SIDE = 10, 96  # px
SCENE_COLUMNS, SCENE_ROWS, SCENE_SIDE = 6, 2, 152  # px; large, to be looked at: the benchmark's have 64
GAP, LINE = 8, 12  # px
PAPER, TILE, INK = (255, 255, 255), (235, 238, 240), (20, 20, 20)
SEED = 0


def main() -> None:
    """Draw the sheet and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    out = parser.parse_args().out
    contact_sheet().save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


def contact_sheet() -> Image.Image:
    """One labelled drawing of each class, then whole scenes with their labels."""
    rng = np.random.default_rng(SEED)
    classes = [(class_tile(drawing, rng), [name]) for name, drawing in DRAWINGS.items()]
    upper = grid(classes, CLASS_COLUMNS, lines=1)
    lower = grid(scene_tiles(), SCENE_COLUMNS, lines=2)
    sheet = Image.new("RGB", (max(upper.width, lower.width), upper.height + lower.height), PAPER)
    sheet.paste(upper, (0, 0))
    sheet.paste(lower, ((sheet.width - lower.width) // 2, upper.height))
    return sheet


def class_tile(drawing: Drawing, rng: np.random.Generator) -> Image.Image:
    """One drawing, upright, in random colours."""
    side = CLASS_SIDE * SUPERSAMPLING
    tile = Image.new("RGB", (side, side), TILE)
    paint_drawing(
        ImageDraw.Draw(tile),
        drawing,
        centre=(side / 2, side / 2),
        size=0.9 * side,
        rotation=0,
        palette=random_palette(rng),
    )
    return tile.reduce(SUPERSAMPLING)


def scene_tiles() -> list[tuple[Image.Image, list[str]]]:
    """Test scenes with their labels, two to a line."""
    tiles = []
    for image, target in ScenesDataset(
        SCENE_COLUMNS * SCENE_ROWS, image_size=SCENE_SIDE, split="test", seed=SEED
    ):
        names = [CLASS_NAMES[column] for column in target.nonzero().flatten().tolist()]
        tiles.append((image, [", ".join(names[:2]), ", ".join(names[2:])]))
    return tiles


def grid(tiles: list[tuple[Image.Image, list[str]]], columns: int, *, lines: int) -> Image.Image:
    """Tiles row by row, each with its lines of text below."""
    side = tiles[0][0].width
    step_x, step_y = side + GAP, side + GAP + lines * LINE
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * step_x + GAP, rows * step_y + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for position, (tile, texts) in enumerate(tiles):
        x, y = GAP + position % columns * step_x, GAP + position // columns * step_y
        sheet.paste(tile, (x, y))
        for row, text in enumerate(texts):
            draw.text((x, y + side + row * LINE), text, fill=INK)
    return sheet


if __name__ == "__main__":
    main()
