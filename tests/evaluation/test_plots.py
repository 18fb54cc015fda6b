import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from avalanche_agcn.evaluation.plots import Style, class_heatmap, correlation_heatmap, learning_curve

NAN = float("nan")
TITLE = "SplitScenes (drawn scenes): 40 classes in 10 experiences\nat most 24 images\nlabels found at p ≥ 0.7"


def texts(artists):
    return [artist.get_text() for artist in artists]


def check_names_are_readable(plot, boxes_inside):
    """Names of rows and columns are not cut off and do not overlap."""
    axes = plot.axes[0]
    boxes_inside(plot, [plot._suptitle, axes.title, *axes.get_xticklabels(), *axes.get_yticklabels()])
    rows = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 1.5 for upper, lower in pairwise(rows))
    assert axes.get_yticklabels()[0].get_fontsize() >= 4


# Learning curves


def test_learning_curve_shows_percentages_of_each_experience():
    plot = learning_curve({"mAP": [0.8, NAN, 0.7], "OF1": [0.75, 0.6, 0.5]}, ylabel="score (%)")
    (axes,) = plot.axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 80], [2, NAN], [3, 70]])  # with a gap
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [75, 60, 50])
    assert texts(axes.get_legend().get_texts()) == ["mAP", "OF1"]
    assert str(plot) == "score (%) after each experience: mAP 80.0 nan 70.0; OF1 75.0 60.0 50.0"
    with pytest.raises(ValueError, match="no curve"):
        learning_curve({})


def test_several_seeds_are_their_mean_in_a_band_and_levels_a_dashed_line_across():
    plot = learning_curve({"AGCN": [[0.8, 0.6], [0.6, 0.6]]}, levels={"Multi-Task": [0.9, 0.8]})
    (axes,) = plot.axes
    curve, level = axes.lines
    np.testing.assert_allclose([curve.get_ydata(), level.get_ydata()], [[70, 60], [85, 85]])
    assert (level.get_linestyle(), list(level.get_xdata())) == ("--", [0, 1])  # of the width
    heights, spread = axes.collections[0].get_paths()[0].vertices[:, 1], 100 * np.std([0.8, 0.6], ddof=1)
    assert (heights.min(), heights.max()) == pytest.approx((70 - spread, 70 + spread))
    assert str(plot).endswith("Multi-Task 85.0")
    assert learning_curve({}, levels={"Multi-Task": [0.9]}).axes[0].lines[0].get_ydata()[0] == 90


def test_many_curves_can_be_told_apart_and_the_legend_covers_none(boxes_inside):
    given_style = Style("#123456", "*", ":")
    plot = learning_curve({f"method {k}": [0.5, 0.4] for k in range(10)}, styles={"method 7": given_style})
    (axes,) = plot.axes
    styles = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
    assert (len(set(styles)), styles[7]) == (10, given_style)
    plot.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    many = learning_curve({f"method {k}": [0.8, 0.7] for k in range(40)})
    assert len(boxes_inside(many, many.axes[0].get_legend().get_texts())) == 40  # none is cut off


@pytest.mark.parametrize("plot", [learning_curve({"AP": [0.8, 0.7]}), correlation_heatmap({"A": np.eye(3)})])
def test_a_notebook_shows_the_picture_without_a_display(plot):
    image = Image.open(io.BytesIO(plot._repr_png_()))
    assert (image.format, image.size) == ("PNG", tuple((plot.get_size_inches() * plot.dpi).astype(int)))
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 10


# Heatmaps


def test_class_heatmap_has_a_number_in_each_cell_and_borders_between_experiences():
    scores = {"ER": [0.5, 0.254, NAN], "AGCN": [0.0, 1.0, 0.75]}
    plot = class_heatmap(scores, class_names=["cat", "dog", "car"], block_sizes=[1, 2], title="of what")
    axes = plot.axes[0]
    cells = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "50", (0, 1): "25", (0, 2): "–", (1, 0): "0", (1, 1): "100", (1, 2): "75"}
    assert texts(axes.get_yticklabels()) == ["cat", "dog", "car"]
    assert texts(axes.get_xticklabels()) == ["ER", "AGCN"]
    assert [line.get_ydata()[0] for line in axes.lines] == [0.5]
    assert plot._suptitle.get_text() == "of what"
    assert str(plot) == "AP (%) of 3 classes: ER, AGCN"


def test_correlation_heatmap_shows_matrix_names_and_borders():
    matrix = torch.tensor([[1.0, 0.2, 0.0], [0.3, 1.0, 0.5], [0.0, 0.4, 1.0]])
    plot = correlation_heatmap({"ACM": matrix}, class_names=["cat", "dog", "car"], block_sizes=[1, 2])
    axes = plot.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), matrix)
    assert axes.images[0].get_clim() == (0.0, 1.0)
    assert texts(axes.get_yticklabels()) == ["cat", "dog", "car"]
    assert [line.get_xdata()[0] for line in axes.lines[1::2]] == [0.5]
    assert str(plot) == "P(row | column) of 3 classes: ACM"
    plot = correlation_heatmap({"ACM": np.eye(500)}, class_names=[f"class {i}" for i in range(500)])
    plot.draw_without_rendering()
    assert len(plot.axes[0].get_yticklabels()) < 30  # names of very many classes are left out


@pytest.mark.parametrize("n", [1, 40, 81])
def test_long_names_are_readable_and_not_cut_off(n, boxes_inside):
    names = [f"a rather long name {i}" for i in range(n)]
    matrices = correlation_heatmap({"ACM": np.eye(n), "truth": np.eye(n)}, class_names=names)
    check_names_are_readable(matrices, boxes_inside)
    scores = {f"Fine-Tuning {k}": [1.0] * n for k in range(min(n, 10))}
    plot = class_heatmap(scores, class_names=names, title=TITLE)
    check_names_are_readable(plot, boxes_inside)
    axes = plot.axes[0]
    width, height = np.abs(np.subtract(*axes.transData.transform([[0, 0], [1, 1]])))
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(box.width < width and box.height < height for box in boxes)


@pytest.mark.parametrize(
    ("draw", "data", "settings", "message"),
    [
        (class_heatmap, {}, {}, r"each of the 2 classes, got {}"),
        (class_heatmap, {"a": [1.0]}, {}, r"got {'a': 1}"),
        (class_heatmap, {"a": [1.0, 1.0]}, {"block_sizes": [1]}, r"\[1\] must add up to the 2 classes"),
        (correlation_heatmap, {}, {}, "square matrices of one size"),
        (correlation_heatmap, {"a": np.zeros((2, 3))}, {}, "square matrices"),
        (correlation_heatmap, {"a": np.eye(2), "b": np.eye(3)}, {}, "one size"),
        (correlation_heatmap, {"a": np.eye(3)}, {}, "2 class names for 3 classes"),
        (correlation_heatmap, {"a": np.eye(2)}, {"block_sizes": [1, 2]}, r"must add up to the 2 classes"),
    ],
)
def test_sizes_that_differ_are_rejected(draw, data, settings, message):
    with pytest.raises(ValueError, match=message):
        draw(data, class_names=["cat", "dog"], **settings)
