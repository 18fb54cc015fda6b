import numpy as np
import pytest

from avalanche_agcn.experiments.plots import class_precision, correlation, curves, describe_stream
from avalanche_agcn.experiments.results import METRICS

NAMES = ["person", "bicycle", "car", "motorcycle", "airplane"]


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


def test_a_method_looks_the_same_whatever_it_is_compared_with(make):
    alone = curves([make("er")]).axes[0].lines[0]
    among = curves([make("ewc"), make("er"), make("agcn")]).axes[0].lines[1]
    for line in (alone, among):
        assert (line.get_color(), line.get_marker()) == ("#009E73", "^")
        assert line.get_label() == "ER"


def test_multi_task_is_a_dashed_line_across_the_curves_of_others(make):
    curve, level = curves([make("agcn", seed=0), make("agcn", seed=2), make("multitask")]).axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), [81, 50])
    np.testing.assert_allclose(level.get_ydata(), [60, 60])
    assert (level.get_label(), level.get_linestyle()) == ("Multi-Task", "--")


def test_ap_of_a_class_is_the_mean_over_seeds(make):
    figure = class_precision([make(seed=0), make(seed=2), make("ewc")])
    cells = {tuple(text.get_position()): text.get_text() for text in figure.axes[0].texts}
    assert [cells[1, row] for row in range(5)] == ["41", "–", "0", "100", "5"]
    assert cells[0, 0] == "40"


def test_borders_are_those_of_unequal_experiences(make):
    for figure in (correlation(make()), class_precision([make()])):
        across = [line for line in figure.axes[0].lines if line.get_xdata()[0] == 0]
        assert {float(line.get_ydata()[0]) for line in across} == {2.5}


def test_titles_say_what_the_plots_are_of(make):
    assert describe_stream(make()) == "SplitCOCO: 5 classes in 2 experiences"
    part = make(settings={"limit": 60, "validation_size": 0.1})
    assert describe_stream(part).endswith("\nat most 60 images per experience, on 10% of the train images")
    scenes = make(benchmark="SplitScenes")
    expected = "SplitScenes (drawn scenes): 5 classes in 2 experiences"
    assert describe_stream(scenes) == expected
    assert curves([scenes]).axes[0].get_title() == expected
    assert class_precision([scenes])._suptitle.get_text().startswith(expected)
    assert correlation(scenes)._suptitle.get_text() == expected


def test_true_cooccurrence_is_shown_for_drawn_scenes_only(make):
    titles = [axes.get_title() for axes in correlation(make(benchmark="SplitScenes")).axes]
    assert titles[:2] == ["ACM of AGCN", "true co-occurrence"]
    assert "true co-occurrence" not in [axes.get_title() for axes in correlation(make()).axes]
