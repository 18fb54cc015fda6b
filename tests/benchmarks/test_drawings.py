from itertools import combinations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from avalanche_agcn.benchmarks import _drawings
from avalanche_agcn.benchmarks._drawings import DRAWINGS, OBJECT_SIZE, QUARTERS, disc, paint_scene
from avalanche_agcn.benchmarks.coco import SPLIT_COCO_CLASSES
from avalanche_agcn.benchmarks.scenes import MAX_OBJECTS

CANVAS = 96
SKY = (200, 220, 240)
SPECK = (disc("k", 0, 0, 0.1),)


def paint(drawing, *, centre=(CANVAS / 2, CANVAS / 2), size=OBJECT_SIZE[1] * CANVAS, rotation=0.0, seed=0):
    canvas = Image.new("RGB", (CANVAS, CANVAS), SKY)
    palette = _drawings.random_palette(np.random.default_rng(seed))
    draw = ImageDraw.Draw(canvas)
    _drawings.paint_drawing(draw, drawing, centre=centre, size=size, rotation=rotation, palette=palette)
    return np.asarray(canvas)


def painted(pixels):
    return (pixels != SKY).any(-1)


def test_drawings_are_split_cocos_classes_in_colours_of_the_palette():
    assert tuple(DRAWINGS) == SPLIT_COCO_CLASSES
    used = {shape.colour for drawing in DRAWINGS.values() for shape in drawing}
    assert used == set(_drawings.FIXED_COLOURS) | set("abs")


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_fills_its_square_is_visible_and_stays_inside_the_image(name):
    points = np.concatenate([shape.points for shape in DRAWINGS[name]])
    assert abs(points).max() <= _drawings.SIDE / 2
    assert np.ptp(points, axis=0).max() >= 0.75 * _drawings.SIDE  # not a speck
    size = OBJECT_SIZE[0] * CANVAS
    # The thinnest (fork, spoon) cover a tenth of their square.
    assert painted(paint(DRAWINGS[name], size=size)).sum() >= 0.1 * size**2
    for rotation in (-_drawings.MAX_ROTATION, 0, _drawings.MAX_ROTATION):
        whole = painted(paint(DRAWINGS[name], rotation=rotation)).sum()
        for centre in [(0, 0), (CANVAS, 0), (0, CANVAS), (CANVAS, CANVAS)]:
            mask = painted(paint(DRAWINGS[name], centre=centre, rotation=rotation))
            assert not mask[[0, -1]].any()  # nothing touches the edge
            assert not mask[:, [0, -1]].any()
            assert mask.sum() == pytest.approx(whole, rel=0.1)  # nothing is cut off


def test_no_two_drawings_look_alike():
    images = {name: paint(drawing).astype(int) for name, drawing in DRAWINGS.items()}
    for one, other in combinations(DRAWINGS, 2):
        differing = (abs(images[one] - images[other]).max(-1) > 40).sum()
        assert differing >= 0.25 * (painted(images[one]) | painted(images[other])).sum(), (one, other)


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_object_of_a_full_scene_can_be_seen(name):
    others = [drawing for other, drawing in DRAWINGS.items() if other != name]
    rng = np.random.default_rng(0)
    for seed in range(20):
        company = [others[c] for c in rng.permutation(len(others))[: MAX_OBJECTS - 1]]
        # First, and so below all that comes later: the worst place.
        with_it = paint_scene([DRAWINGS[name], *company], 64, np.random.default_rng(seed))
        without = paint_scene([SPECK, *company], 64, np.random.default_rng(seed))
        assert with_it.shape == (64, 64, 3)
        assert (with_it != without).any(-1).sum() >= 40  # pixels, of 64 × 64


def test_scene_takes_as_many_objects_as_the_label_model_gives():
    assert MAX_OBJECTS <= QUARTERS
    with pytest.raises(ValueError, match="zip"):
        paint_scene([SPECK] * (QUARTERS + 1), 32, np.random.default_rng(0))
