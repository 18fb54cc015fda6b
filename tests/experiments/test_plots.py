from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.plots import SIGNS, class_precision, correlation, curves, describe_stream
from avalanche_agcn.experiments.results import METRICS

NAMES = ["person", "bicycle", "car", "motorcycle", "airplane"]
WORDS = ["cat", "dog", "car", "bus", "tree", "sea"]
THRESHOLDS = st.lists(st.floats(0, 1), min_size=len(WORDS), max_size=len(WORDS))
TITLE = "SplitScenes (drawn scenes): 40 classes in 10 experiences\nat most 24 images\nlabels found at p ≥ 0.7"


def texts(artists):
    return [artist.get_text() for artist in artists]


@pytest.fixture
def make(make_result):
    """A function that makes results of five classes in experiences of three and two."""

    def make(method="agcn", seed=0, **changes):
        rows = [[], [70.0, 60.0]] if method == "multitask" else [[80.0 + seed], [60.0, 50.0]]
        precision = dict(zip(NAMES, (40.0 + seed, None, 0.0, 100.0, 5.0), strict=True))
        content = {"benchmark": "SplitCOCO", "class_names": NAMES, "classes_per_experience": [3, 2]}
        content |= {"nested": dict.fromkeys(METRICS, rows), "per_class_ap": precision}
        return make_result(method, seed, **content | {"acm": np.eye(5).tolist()} | changes)

    return make


def test_a_method_has_its_own_style_and_multi_task_is_a_dashed_horizontal_line(make):
    for methods in (["er"], ["er", "ewc", "agcn"]):
        lines = curves([make(method) for method in methods]).axes[0].lines
        styles = {line.get_label(): (line.get_color(), line.get_marker()) for line in lines}
        assert styles["ER"] == ("#009E73", "^")
    curve, level = curves([make("agcn", seed=0), make("agcn", seed=2), make("multitask")]).axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), [81, 50])
    np.testing.assert_allclose(level.get_ydata(), [60, 60])
    assert (level.get_label(), level.get_linestyle()) == ("Multi-Task", "--")


def test_ap_of_a_class_is_the_mean_over_seeds_with_borders_of_unequal_experiences(make):
    figure = class_precision([make(seed=0), make(seed=2), make("ewc")])
    cells = {tuple(text.get_position()): text.get_text() for text in figure.axes[0].texts}
    assert [cells[1, row] for row in range(5)] == ["41", "–", "0", "100", "5"]
    assert cells[0, 0] == "40"
    for figure in (correlation(make()), class_precision([make()])):
        across = [line for line in figure.axes[0].lines if line.get_xdata()[0] == 0]
        assert {float(line.get_ydata()[0]) for line in across} == {2.5}


def test_titles_describe_the_stream_and_the_matrices(make):
    assert describe_stream(make()) == "Split-COCO: 5 classes in 2 experiences"
    part = make(settings={"limit": 60, "validation_size": 0.1})
    assert describe_stream(part).endswith("\nat most 60 images per experience, on 10% of the train images")
    scenes = make(benchmark="SplitScenes")
    expected = "SplitScenes: 5 classes in 2 experiences\ndrawn scenes"
    one = make(class_names=NAMES[:1], classes_per_experience=[1])
    assert describe_stream(one) == "Split-COCO: 1 class in 1 experience"
    assert describe_stream(scenes) == curves([scenes]).axes[0].get_title() == expected
    assert class_precision([scenes])._suptitle.get_text().startswith(expected)
    assert correlation(scenes)._suptitle.get_text() == expected
    titles = [[axes.get_title() for axes in correlation(own).axes] for own in (scenes, make())]
    assert titles == [["ACM of AGCN", "true co-occurrence", ""], ["ACM of AGCN", ""]]  # and the colour bar


def picture(labels, *scores):
    return np.zeros((8, 6, 3)), labels, scores


@given(st.lists(st.floats(0, 1), max_size=len(WORDS)), st.sets(st.sampled_from(WORDS)), THRESHOLDS)
def test_found_labels_are_a_partition_by_threshold_and_truth(scores, labels, thresholds):
    threshold_of = dict(zip(WORDS, thresholds, strict=True))
    seen = dict(zip(WORDS, scores, strict=False))
    found = {kind: [] for kind in SIGNS}
    for kind, name in plots.found_labels(scores, labels, WORDS, thresholds):
        found[kind].append(name)
    for kind, is_found, is_true in (("right", True, True), ("wrong", True, False), ("missed", False, True)):
        expected = {n for n, p in seen.items() if (p >= threshold_of[n], n in labels) == (is_found, is_true)}
        assert set(found[kind]) == expected
        probabilities = [seen[name] for name in found[kind]]
        assert probabilities == sorted(probabilities, reverse=True)


def test_cells_tell_right_missed_and_wrong_by_sign_and_colour_after_few_experiences():
    rows = {"class_names": WORDS, "thresholds": [0.7] * 6}
    plot = plots.labelled_pictures([picture(["cat", "sea"], [0.7], [0.2, 0.9, 0.69])], **rows)
    first, second = plot.axes[1:]
    assert (texts(first.texts), texts(second.texts)) == (["✓ cat"], ["○ cat", "✗ dog"])
    assert [text.get_color() for text in second.texts] == [plots.COLOURS["missed"], plots.COLOURS["wrong"]]
    assert len(set(plots.COLOURS.values())) == len(set(SIGNS.values())) == 3
    assert first.get_title(loc="left") == "after experience 1\n1 class"
    assert second.get_title(loc="left") == "after experience 2\n3 classes"
    assert all(sign in " ".join(texts(plot.texts)) for sign in SIGNS.values())
    assert str(plot) == (
        "labels found at p ≥ 0.7 in 1 image after experiences 1, 2: 0 right, 1 missed, 1 wrong at the end"
    )
    for pictures in ([], [picture(["cat"])], [picture(["cat"], [], [])]):
        with pytest.raises(ValueError, match="no picture to draw"):
            plots.labelled_pictures(pictures, **rows)


@pytest.mark.parametrize(
    ("scores", "columns", "skipped"),
    [
        ([[0.1]] * 6, [1, 2, 3, 4, 5, 6], None),
        ([[0.1]] * 8, [1, 2, 4, 5, 7, 8], "not shown: after experiences 3, 6"),  # with the first and the last
        ([[], [0.9, 0.1]], [2], "not shown: after experience 1"),  # only those that were evaluated
    ],
)
def test_experiences_that_are_not_shown_are_named(scores, columns, skipped):
    thresholds = [0.5, 0.6, 0.5, 0.5, 0.5, 0.4]
    plot = plots.labelled_pictures([picture(["cat"], *scores)], class_names=WORDS, thresholds=thresholds)
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in plot.axes[1:]]
    assert titles == [f"after experience {t}" for t in columns]
    legend = texts(plot.texts)
    assert "○ missed: already learned, but not found at thresholds of p from 0.4 to 0.6" in legend
    assert [text for text in legend if text.startswith("not shown")] == ([skipped] if skipped else [])


def test_pictures_are_labelled_at_the_thresholds_of_the_run(make, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "1.jpg")
    shown = {"image": "1.jpg", "labels": ["car"], "probabilities": [[], [60.0, 20.0, 60.0, 0.0, 0.0]]}
    settings = {"dataset_root": str(tmp_path)}
    for thresholds, expected in ((None, ["✓ car", "✗ person"]), ([0.7, 0.1, 0.7], ["○ car", "✗ bicycle"])):
        plot = plots.pictures(make(settings=settings, pictures=[shown], thresholds=thresholds))
        assert texts(plot.axes[1].texts) == expected


@pytest.mark.parametrize("n_columns", [1, 4])
@pytest.mark.parametrize("n_pictures", [1, 6])
def test_texts_do_not_overlap_and_are_not_cut_off(n_columns, n_pictures, boxes_inside):
    names = [f"tennis racket {k}" for k in range(20)]
    pictures = [picture(names[3:4], *[[0.9] * 20] * n_columns) for _ in range(n_pictures)]
    plot = plots.labelled_pictures(pictures, class_names=names, thresholds=[0.5] * 20, title=TITLE)
    written = texts(plot.axes[1].texts)
    assert (len(written), written[0]) == (plots.MAX_LINES, "✓ tennis racket 3")
    assert written[-1] == f"✗ … {20 - (plots.MAX_LINES - 1)} more"  # what does not fit is counted
    headings = [axes._left_title for axes in plot.axes]
    boxes = boxes_inside(plot, [*plot.texts, *headings, *(text for axes in plot.axes for text in axes.texts)])
    images = [axes.images[0].get_window_extent() for axes in plot.axes if axes.images]
    for box, other in combinations([*boxes, *images], 2):
        apart_x = min(box.x1, other.x1) - max(box.x0, other.x0) <= 1
        apart_y = min(box.y1, other.y1) - max(box.y0, other.y0) <= 1
        assert apart_x or apart_y
