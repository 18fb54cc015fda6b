import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from avalanche_agcn.evaluation.figures import Style, class_heatmap, correlation_heatmap, learning_curve


def drawn(figure):
    """The picture, as an array."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=60)
    return np.asarray(Image.open(file).convert("RGB"))


def texts_stay_inside(figure):
    figure.draw_without_rendering()
    width, height = figure.canvas.get_width_height()
    for axes in figure.axes:
        for text in [
            figure._suptitle or axes.title,
            axes.title,
            *axes.get_xticklabels(),
            *axes.get_yticklabels(),
        ]:
            box = text.get_window_extent()
            if text.get_text():
                assert box.x0 >= -1
                assert box.y0 >= -1
                assert box.x1 <= width + 1
                assert box.y1 <= height + 1


def test_learning_curve_shows_percentages_of_each_experience():
    figure = learning_curve({"mAP": [0.8, 0.7], "OF1": [0.75, 0.5]}, ylabel="score (%)")
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 80], [2, 70]])
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[1, 75], [2, 50]])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mAP", "OF1"]
    assert str(figure) == "score (%) after each experience: mAP 80.0 70.0; OF1 75.0 50.0"


def test_learning_curve_of_several_seeds_is_their_mean_in_a_band():
    figure = learning_curve({"AGCN": [[0.8, 0.6], [0.6, 0.6]]})
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [70, 60])
    band = axes.collections[0].get_paths()[0].vertices
    spread = 100 * np.std([0.8, 0.6], ddof=1)
    assert band[:, 1].max() == pytest.approx(70 + spread)
    assert band[:, 1].min() == pytest.approx(min(60, 70 - spread))


def test_many_curves_stay_distinguishable_and_the_legend_leaves_them_free():
    figure = learning_curve({f"method {k}": [0.5, 0.4] for k in range(10)})
    (axes,) = figure.axes
    styles = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 10
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


def test_experience_that_was_not_evaluated_is_a_gap():
    figure = learning_curve({"mAP": [0.8, float("nan"), 0.6]})
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).tolist() == [False, True, False]


def test_learning_curve_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no curve"):
        learning_curve({})


def test_a_score_of_no_experience_is_a_dashed_line_across():
    figure = learning_curve({"AGCN": [0.8, 0.6]}, levels={"Multi-Task": [0.9, 0.8]})
    curve, level = figure.axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), [80, 60])
    np.testing.assert_allclose(level.get_ydata(), [85, 85])
    assert (level.get_linestyle(), list(level.get_xdata())) == ("--", [0, 1])  # of the width
    assert str(figure).endswith("Multi-Task 85.0")
    assert learning_curve({}, levels={"Multi-Task": [0.9]}).axes[0].lines[0].get_ydata()[0] == 90


def test_given_styles_are_used_whatever_else_is_drawn():
    style = Style("#123456", "*", ":")
    for names in (["a", "b"], ["b"], ["c", "b", "a"]):
        figure = learning_curve({name: [0.5] for name in names}, styles={"b": style})
        line = figure.axes[0].lines[names.index("b")]
        assert (line.get_color(), line.get_marker(), line.get_linestyle()) == style


def test_class_heatmap_has_a_number_in_each_cell_and_borders_between_experiences():
    scores = {"ER": [0.5, 0.254, float("nan")], "AGCN": [0.0, 1.0, 0.75]}
    figure = class_heatmap(scores, class_names=["cat", "dog", "car"], block_sizes=[1, 2], title="of what")
    axes = figure.axes[0]
    cells = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "50", (0, 1): "25", (0, 2): "–", (1, 0): "0", (1, 1): "100", (1, 2): "75"}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cat", "dog", "car"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["ER", "AGCN"]
    assert [line.get_ydata()[0] for line in axes.lines] == [0.5]
    assert figure._suptitle.get_text() == "of what"


@pytest.mark.parametrize(("n_classes", "n_methods"), [(1, 1), (40, 10), (80, 10)])
def test_class_heatmap_is_readable_and_not_cut_off(n_classes, n_methods):
    figure = class_heatmap(
        {f"Fine-Tuning {k}": [1.0] * n_classes for k in range(n_methods)},
        class_names=[f"traffic light {i}" for i in range(n_classes)],
        title="SplitScenes (drawn scenes): 40 classes in 10 experiences\nAP of each class at the end",
    )
    texts_stay_inside(figure)
    axes = figure.axes[0]
    cell = axes.transData.transform([[0, 0], [1, 1]])
    width, height = np.abs(cell[1] - cell[0])
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(box.width < width and box.height < height for box in boxes)
    names = [text.get_window_extent() for text in axes.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 1.5 for upper, lower in pairwise(names))


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        ({}, {}, r"each of the 2 classes is needed, got {}"),
        ({"a": [1.0]}, {}, r"got {'a': 1}"),
        ({"a": [1.0, 1.0]}, {"block_sizes": [1]}, r"add up to 1, not to 2"),
    ],
)
def test_class_heatmap_of_what_does_not_fit_is_refused(scores, settings, message):
    with pytest.raises(ValueError, match=message):
        class_heatmap(scores, class_names=["cat", "dog"], **settings)


def test_heatmap_shows_matrix_names_and_borders():
    matrix = torch.tensor([[1.0, 0.2, 0.0], [0.3, 1.0, 0.5], [0.0, 0.4, 1.0]])
    figure = correlation_heatmap({"ACM": matrix}, class_names=["cat", "dog", "car"], block_sizes=[1, 2])
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), matrix)
    assert axes.images[0].get_clim() == (0.0, 1.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "car"]
    assert [line.get_xdata()[0] for line in axes.lines[1::2]] == [0.5]
    assert str(figure) == "P(row | column) of 3 classes: ACM"


@pytest.mark.parametrize("n", [1, 4, 40, 81])
def test_long_names_are_readable_and_not_cut_off(n):
    names = [f"a rather long name {i}" for i in range(n)]
    figure = correlation_heatmap({"ACM": np.eye(n), "truth": np.eye(n)}, class_names=names)
    texts_stay_inside(figure)
    labels = figure.axes[0].get_yticklabels()
    assert labels[0].get_fontsize() >= 4
    boxes = [label.get_window_extent() for label in labels]
    assert all(upper.y0 >= lower.y1 - 1.5 for upper, lower in pairwise(boxes))


def test_heatmap_of_very_many_classes_leaves_names_out():
    figure = correlation_heatmap({"ACM": np.eye(500)}, class_names=[f"class {i}" for i in range(500)])
    figure.draw_without_rendering()
    assert len(figure.axes[0].get_yticklabels()) < 30


@pytest.mark.parametrize(
    ("matrices", "settings", "message"),
    [
        ({}, {}, "square matrices of one size"),
        ({"a": np.zeros((2, 3))}, {}, "square matrices"),
        ({"a": np.eye(2), "b": np.eye(3)}, {}, "one size"),
        ({"a": np.eye(2)}, {"class_names": ["x"]}, "1 class names for a matrix of 2"),
        ({"a": np.eye(2)}, {"block_sizes": [1, 2]}, r"block_sizes \[1, 2\] add up to 3, not to 2"),
    ],
)
def test_heatmap_of_what_does_not_fit_is_refused(matrices, settings, message):
    with pytest.raises(ValueError, match=message):
        correlation_heatmap(matrices, **settings)


def test_figures_are_drawn_without_a_display():
    assert drawn(learning_curve({"mAP": [0.8, 0.7]})).std() > 1
    picture = drawn(correlation_heatmap({"ACM": np.eye(3)}))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
