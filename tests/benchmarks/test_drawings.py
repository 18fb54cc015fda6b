import numpy as np
import pytest

from avalanche_agcn.benchmarks import _drawings as d
from avalanche_agcn.benchmarks._drawings import FIXED_COLOURS
from avalanche_agcn.benchmarks.coco import SPLIT_COCO_CLASSES


def test_classes_are_split_cocos_columns():
    assert tuple(d.DRAWINGS) == SPLIT_COCO_CLASSES


@pytest.mark.parametrize("name", d.DRAWINGS)
def test_drawing_keeps_to_its_square_and_fills_it(name):
    points = np.concatenate([shape.points for shape in d.DRAWINGS[name]])
    assert abs(points).max() <= d.SIDE / 2
    assert np.ptp(points, axis=0).max() >= 0.75 * d.SIDE  # not a speck


def test_drawings_use_colours_of_the_palette_only():
    used = {shape.colour for drawing in d.DRAWINGS.values() for shape in drawing}
    assert used == set(FIXED_COLOURS) | set("abs")
