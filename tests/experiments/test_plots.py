import numpy as np
import pytest
from matplotlib.colors import to_rgb

from avalanche_agcn.experiments.ablations import VARIANTS
from avalanche_agcn.experiments.plots import (
    METHOD_STYLES,
    STYLES,
    class_blocks,
    class_precision,
    correlation,
    curves,
    describe_stream,
)
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.tables import METHOD_NAMES

NAMES = ["person", "bicycle", "car", "motorcycle", "airplane"]


def make(method="agcn", seed=0, benchmark="SplitCOCO", settings=None, **changes):
    nested = [[80.0 + seed], [60.0, 50.0]] if method != "multitask" else [[], [70.0, 60.0]]
    content = {
        "benchmark": benchmark,
        "method": method,
        "seed": seed,
        "settings": settings or {},
        "class_names": NAMES,
        "nested": dict.fromkeys(("mAP", "CF1", "OF1"), nested),
        "per_class_ap": dict(zip(NAMES, (40.0 + seed, None, 0.0, 100.0, 5.0), strict=True)),
        "seconds": {"train": 1.0, "eval": 2.0, "total": 3.0},
        "environment": {},
        "acm": np.eye(5).tolist(),
        "classes_per_experience": [3, 2],
    }
    return Results(**content | changes)


def simulate_deuteranopia(colour):
    """A colour as readers without green cones see it (Machado et al. 2009, severity 1)."""
    matrix = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    return np.clip(np.array(matrix) @ to_rgb(colour), 0, 1)


def test_every_method_and_variant_has_a_look_of_its_own():
    assert set(METHOD_STYLES) == set(METHOD_NAMES)
    assert set(STYLES) >= set(METHOD_NAMES) | set(VARIANTS)
    assert len(set(STYLES.values())) == len(STYLES)
    assert len({style.colour for style in METHOD_STYLES.values()}) == len(METHOD_STYLES)
    assert len({style.marker for style in METHOD_STYLES.values()}) == len(METHOD_STYLES)


def test_method_colours_differ_for_colour_blind_readers():
    seen = [simulate_deuteranopia(style.colour) for style in METHOD_STYLES.values()]
    distances = [np.abs(a - b).max() for k, a in enumerate(seen) for b in seen[:k]]
    assert min(distances) > 0.05


def test_a_method_looks_the_same_whatever_it_is_compared_with():
    alone = curves([make("er")]).axes[0].lines[0]
    among = curves([make("ewc"), make("er"), make("agcn")]).axes[0].lines[1]
    for line in (alone, among):
        assert (line.get_color(), line.get_marker()) == STYLES["er"][:2]
        assert line.get_label() == "ER"


def test_multi_task_is_a_dashed_line_across_the_curves_of_others():
    curve, level = curves([make("agcn", seed=0), make("agcn", seed=2), make("multitask")]).axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), [81, 50])
    np.testing.assert_allclose(level.get_ydata(), [60, 60])
    assert (level.get_label(), level.get_linestyle()) == ("Multi-Task", "--")


def test_ap_of_a_class_is_the_mean_over_seeds():
    figure = class_precision([make(seed=0), make(seed=2), make("ewc")])
    cells = {tuple(text.get_position()): text.get_text() for text in figure.axes[0].texts}
    assert [cells[1, row] for row in range(5)] == ["41", "–", "0", "100", "5"]
    assert cells[0, 0] == "40"


def test_borders_are_those_of_unequal_experiences():
    for figure in (correlation(make()), class_precision([make()])):
        assert {float(line.get_ydata()[0]) for line in figure.axes[0].lines if line.get_xdata()[0] == 0} == {
            2.5
        }


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({}, [3, 2]),
        ({"classes_per_experience": None}, []),  # five classes do not split into two
        ({"classes_per_experience": None, "class_names": NAMES[:4]}, [2, 2]),
        ({"classes_per_experience": None, "class_names": NAMES[:4], "settings": {"split_lists": "a"}}, []),
    ],
)
def test_blocks_are_not_guessed(changes, blocks):
    assert class_blocks(make(**changes)) == blocks


def test_titles_say_what_the_figures_are_of():
    assert describe_stream(make()) == "SplitCOCO: 5 classes in 2 experiences"
    part = make(settings={"limit": 60, "validation": 0.1})
    assert describe_stream(part).endswith("\nat most 60 images an experience, on 10% of the train images")
    scenes = make(benchmark="SplitScenes")
    expected = "SplitScenes (drawn scenes): 5 classes in 2 experiences"
    assert describe_stream(scenes) == expected
    assert curves([scenes]).axes[0].get_title() == expected
    assert class_precision([scenes])._suptitle.get_text().startswith(expected)
    assert correlation(scenes)._suptitle.get_text() == expected


def test_true_cooccurrence_is_shown_for_drawn_scenes_only():
    titles = [axes.get_title() for axes in correlation(make(benchmark="SplitScenes")).axes]
    assert titles[:2] == ["ACM of AGCN", "true co-occurrence"]
    assert "true co-occurrence" not in [axes.get_title() for axes in correlation(make()).axes]
