import numpy as np
import pytest

from avalanche_agcn.benchmarks import _drawings as d
from avalanche_agcn.benchmarks._painter import FIXED_COLOURS
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


def test_most_drawings_have_a_random_colour():
    without = [name for name, drawing in d.DRAWINGS.items() if not {s.colour for s in drawing} & {"a", "b"}]
    assert without == ["traffic light", "bench"]


def test_shapes_have_the_points_of_their_outline():
    x, y = d.oval("a", 1, 2, 3, 4).points.T
    np.testing.assert_allclose(((x - 1) / 3) ** 2 + ((y - 2) / 4) ** 2, 1)
    arc = d.arc("a", 1, 0, 0, 5, 5, 0, 90)  # clockwise from 3 o'clock; y is down
    np.testing.assert_allclose(arc.points[[0, -1]], [[5, 0], [0, 5]], atol=1e-12)
    assert arc.width == 1
    np.testing.assert_array_equal(d.box("a", 0, 1, 2, 3).points, [[0, 1], [2, 1], [2, 3], [0, 3]])
