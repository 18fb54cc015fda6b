import io
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from avalanche_agcn.evaluation.plots import (
    LOOKS,
    MAX_LINES,
    SIGNS,
    LabelledPicture,
    Style,
    class_heatmap,
    correlation_heatmap,
    found_labels,
    labelled_pictures,
    learning_curve,
)

NAN = float("nan")
NAMES = ["cat", "dog", "car", "bus", "tree", "sea"]
TITLE = "SplitScenes (drawn scenes): 40 classes in 10 experiences\nat most 24 images\nlabels found at p ≥ 0.7"


def texts(artists):
    return [artist.get_text() for artist in artists]


def boxes_inside(plot, artists):
    """Boxes of the texts, none of which is cut off."""
    plot.draw_without_rendering()
    width, height = plot.canvas.get_width_height()
    boxes = [artist.get_window_extent() for artist in artists if artist.get_text()]
    for box in boxes:
        assert min(box.x0, box.y0) >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1
    return boxes


def names_are_readable(plot):
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
    np.testing.assert_allclose(curve.get_ydata(), [70, 60])
    np.testing.assert_allclose(level.get_ydata(), [85, 85])
    assert (level.get_linestyle(), list(level.get_xdata())) == ("--", [0, 1])  # of the width
    band = axes.collections[0].get_paths()[0].vertices
    spread = 100 * np.std([0.8, 0.6], ddof=1)
    assert band[:, 1].max() == pytest.approx(70 + spread)
    assert band[:, 1].min() == pytest.approx(min(60, 70 - spread))
    assert str(plot).endswith("Multi-Task 85.0")
    assert learning_curve({}, levels={"Multi-Task": [0.9]}).axes[0].lines[0].get_ydata()[0] == 90


def test_many_curves_can_be_told_apart_and_the_legend_covers_none():
    given_style = Style("#123456", "*", ":")
    plot = learning_curve({f"method {k}": [0.5, 0.4] for k in range(10)}, styles={"method 7": given_style})
    (axes,) = plot.axes
    styles = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
    assert len(set(styles)) == 10
    assert styles[7] == given_style
    plot.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


def test_plots_are_drawn_without_a_display():
    for plot in (learning_curve({"mAP": [0.8, 0.7]}), correlation_heatmap({"ACM": np.eye(3)})):
        file = io.BytesIO()
        plot.savefig(file, format="png", dpi=60)
        assert len(np.unique(np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3), axis=0)) > 10


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


@pytest.mark.parametrize("n", [1, 40, 81])
def test_long_names_are_readable_and_not_cut_off(n):
    names = [f"a rather long name {i}" for i in range(n)]
    names_are_readable(correlation_heatmap({"ACM": np.eye(n), "truth": np.eye(n)}, class_names=names))
    scores = {f"Fine-Tuning {k}": [1.0] * n for k in range(min(n, 10))}
    plot = class_heatmap(scores, class_names=names, title=TITLE)
    names_are_readable(plot)
    axes = plot.axes[0]
    width, height = np.abs(np.subtract(*axes.transData.transform([[0, 0], [1, 1]])))
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(box.width < width and box.height < height for box in boxes)


def test_heatmap_of_very_many_classes_leaves_names_out():
    plot = correlation_heatmap({"ACM": np.eye(500)}, class_names=[f"class {i}" for i in range(500)])
    plot.draw_without_rendering()
    assert len(plot.axes[0].get_yticklabels()) < 30


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


def test_a_notebook_shows_the_picture():
    plot = learning_curve({"mAP": [0.8, 0.7]})
    image = Image.open(io.BytesIO(plot._repr_png_()))
    assert image.format == "PNG"
    assert image.size == tuple((plot.get_size_inches() * plot.dpi).astype(int))


# Labelled pictures


def picture(labels, *scores):
    return LabelledPicture(np.zeros((8, 6, 3)), labels, scores)


@given(st.lists(st.floats(0, 1), max_size=len(NAMES)), st.sets(st.sampled_from(NAMES)), st.floats(0, 1))
def test_found_labels_are_a_partition_by_threshold_and_truth(scores, labels, threshold):
    seen = dict(zip(NAMES, scores, strict=False))
    found = {kind: [] for kind in SIGNS}
    for kind, name in found_labels(scores, labels, NAMES, threshold):
        found[kind].append(name)
    assert set(found["right"]) == {name for name, p in seen.items() if p >= threshold and name in labels}
    assert set(found["wrong"]) == {name for name, p in seen.items() if p >= threshold and name not in labels}
    assert set(found["missed"]) == {name for name, p in seen.items() if p < threshold and name in labels}
    for names in found.values():
        assert [seen[name] for name in names] == sorted((seen[name] for name in names), reverse=True)


def test_cells_tell_right_missed_and_wrong_by_sign_and_colour():
    plot = labelled_pictures([picture(["cat", "sea"], [0.7], [0.2, 0.9, 0.69])], class_names=NAMES)
    first, second = plot.axes[1:]
    assert (texts(first.texts), texts(second.texts)) == (["✓ cat"], ["○ cat", "✗ dog"])
    assert [text.get_color() for text in second.texts] == [LOOKS["missed"][0], LOOKS["wrong"][0]]
    assert len({colour for colour, _ in LOOKS.values()}) == len(set(SIGNS.values())) == 3
    assert first.get_title(loc="left") == "after experience 1\n1 classes"
    assert second.get_title(loc="left") == "after experience 2\n3 classes"
    assert all(sign in " ".join(texts(plot.texts)) for sign in SIGNS.values())
    assert str(plot) == (
        "labels found at p ≥ 0.7 in 1 images after experiences 1, 2: 0 right, 1 missed, 1 wrong at the end"
    )


@pytest.mark.parametrize(
    ("scores", "columns"),
    [
        ([[0.1] * (t + 1) for t in range(6)], [1, 3, 4, 6]),  # few, with the first and the last
        ([[], [], [0.9, 0.1]], [3]),  # only those that were evaluated
    ],
)
def test_columns_are_of_few_evaluated_experiences(scores, columns):
    plot = labelled_pictures([picture(["cat"], *scores)], class_names=NAMES)
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in plot.axes[1:]]
    assert titles == [f"after experience {t}" for t in columns]


@pytest.mark.parametrize("pictures", [[], [picture(["cat"])], [picture(["cat"], [], [])]])
def test_nothing_to_show_is_rejected(pictures):
    with pytest.raises(ValueError, match="no picture to draw"):
        labelled_pictures(pictures, class_names=NAMES)


@pytest.mark.parametrize("n_columns", [1, 4])
@pytest.mark.parametrize("n_pictures", [1, 6])
def test_texts_do_not_overlap_and_are_not_cut_off(n_columns, n_pictures):
    names = [f"tennis racket {k}" for k in range(20)]
    pictures = [picture(names[3:4], *[[0.9] * 20] * n_columns) for _ in range(n_pictures)]
    plot = labelled_pictures(pictures, class_names=names, title=TITLE)
    written = texts(plot.axes[1].texts)
    assert (len(written), written[0]) == (MAX_LINES, "✓ tennis racket 3")
    assert written[-1] == f"✗ … {20 - (MAX_LINES - 1)} more"  # what does not fit is counted
    headings = [axes._left_title for axes in plot.axes]
    boxes = boxes_inside(plot, [*plot.texts, *headings, *(text for axes in plot.axes for text in axes.texts)])
    images = [axes.images[0].get_window_extent() for axes in plot.axes if axes.images]
    for box, other in combinations([*boxes, *images], 2):
        apart_x = min(box.x1, other.x1) - max(box.x0, other.x0) <= 1
        apart_y = min(box.y1, other.y1) - max(box.y0, other.y0) <= 1
        assert apart_x or apart_y
