import inspect
from collections import defaultdict
from dataclasses import fields
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from avalanche.training.plugins import EvaluationPlugin
from matplotlib.colors import CSS4_COLORS, to_rgb
from torch.optim import SGD

from avalanche_agcn import training
from avalanche_agcn.experiments.methods import (
    ABLATIONS,
    METHODS,
    SEARCHES,
    VARIANTS,
    Label,
    LogUniform,
    name_of,
    style_of,
)
from avalanche_agcn.experiments.settings import TYPES, change_settings, make_settings
from avalanche_agcn.experiments.tables import TABLE_1, TABLE_3
from avalanche_agcn.models import MultiLabelClassifier, Precomputed
from avalanche_agcn.training import GraphOptions
from avalanche_agcn.training.template import MultiLabelTemplate

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
WEIGHTS = ("lambda_cls", "lambda_dst", "lambda_gph")


def test_every_strategy_and_method_of_the_paper_is_registered_and_in_the_readme():
    public = [getattr(training, name) for name in training.__all__]
    strategies = [one for one in public if isinstance(one, type) and issubclass(one, MultiLabelTemplate)]
    assert {method.strategy for method in METHODS.values()} == {one.__name__ for one in strategies}
    assert [method.strategy for method in METHODS.values() if f"`{method.strategy}`" not in README] == []
    assert set(TABLE_1["SplitCOCO"]) == set(TABLE_1["SplitWIDE"]) <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_arguments_and_searches_are_those_the_constructor_takes(method):
    own = METHODS[method].arguments
    assert not set(own) & set(inspect.signature(MultiLabelTemplate).parameters)
    if METHODS[method].model != "agcn":
        model = MultiLabelClassifier(Precomputed(2), 2)
        optimizer = SGD(model.parameters(), lr=1.0)
        defaults = {name: argument.default for name, argument in own.items()}
        parts = {"model": model, "optimizer": optimizer, "evaluator": EvaluationPlugin()}
        METHODS[method].strategy_class(**parts, **defaults)
    for name, choice in SEARCHES.get(method, {}).items():
        settings = [{name: choice.low}] if isinstance(choice, LogUniform) else choice
        for given in settings:
            make_settings("coco", method=method, **given)
    for variant in VARIANTS.values():
        assert {*variant.settings, *variant.scale} <= {*TYPES, *METHODS[variant.method].arguments}


def test_settings_of_the_graph_are_one_argument_of_agcn():
    chosen = {"cross_blocks": False, "neighbour_weight": 0.5, "new_threshold": 0.3, "cross_threshold": 0.2}
    settings = make_settings("coco", preset="official", lambda_gph=2.0, **chosen).method_settings
    assert {field.name for field in fields(GraphOptions)} == set(chosen) <= set(settings)
    others = {name: value for name, value in settings.items() if name not in chosen}
    made = METHODS["agcn"].constructor_arguments(settings)
    assert made == {**others, "graph_options": GraphOptions(**chosen)}
    assert METHODS["er"].constructor_arguments({"mem_size": 7}) == {"mem_size": 7}


def test_log_uniform_stays_in_its_bounds_and_is_even_in_the_logarithm():
    generator = np.random.default_rng(0)
    drawn = [LogUniform(1e-4, 1e-2).draw(generator) for _ in range(2000)]
    assert 1e-4 <= min(drawn) < max(drawn) <= 1e-2
    assert 0.45 < np.mean(np.array(drawn) < 1e-3) < 0.55


def test_weights_vary_around_their_own_and_with_the_papers_settings_as_in_its_table_3():
    paper = make_settings("coco")
    variants = [variant for variant in ABLATIONS.values() if variant.table == "3"]
    used = [change_settings(paper, **v.changes(paper.method_settings)).method_settings for v in variants]
    weights = {tuple(own[name] for name in WEIGHTS) for own in (paper.method_settings, *used)}
    assert weights == set(TABLE_3)
    own = dict(zip(WEIGHTS, (0.35, 0.65, 1e3), strict=True))
    nine_sevenths = VARIANTS["agcn-lambda1-9/7-lambda3-0"].changes(own)
    assert nine_sevenths == pytest.approx({"lambda_cls": 0.45, "lambda_dst": 0.55, "lambda_gph": 0.0})
    assert VARIANTS["agcn-lambda3-10"].changes(own) == {"lambda_gph": 1e4}


def test_names_are_written_as_in_the_paper_and_line_styles_differ():
    for label, name in {
        "agem": "A-GEM",
        "mine": "mine",
        "agcn-lambda3-0": "AGCN 0×λ₃",
        "agcn official + prs": "AGCN official + PRS",
        "er + negatives, 50 photos": "ER + negatives, 50 photos",
    }.items():
        assert name_of(label) == name
    assert all(label.isascii() and variant.method in METHODS for label, variant in VARIANTS.items())
    styles = [style_of(label) for label in (*METHODS, *VARIANTS)]
    assert len(set(styles)) == len(styles)
    assert style_of("mine") is None
    for part in (0, 1):  # colours and markers
        by_style = defaultdict(list)
        for label, method in METHODS.items():
            by_style[method.style[part]].append(label)
        assert [labels for labels in by_style.values() if len(labels) > 1] == []  # choose another style
    assert all(style_of(label).line != style_of("agcn").line for label in VARIANTS)


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        ("er", Label("er")),
        ("er + negatives, 50 photos", Label("er", ("negatives",), "50 photos")),
        ("agcn statistics + er + negatives", Label("agcn statistics", ("er", "negatives"))),
        ("a, b, c", Label("a", (), "b, c")),
        ("mine, ", Label("mine", (), "")),
    ],
)
def test_a_label_has_the_parts_of_the_stored_text(stored, label):
    assert Label.parse(stored) == label
    assert str(label) == stored
    assert label.row == stored.partition(", ")[0]


def test_method_colours_differ_for_colour_blind_readers():
    colours = {name: method.style.colour for name, method in METHODS.items()}
    near = [pair for pair in combinations(colours, 2) if distance(*(colours[name] for name in pair)) <= 0.05]
    dark = [colour for colour in CSS4_COLORS if np.mean(to_rgb(colour)) < 0.6]  # enough to be seen on white
    free = [colour for colour in dark if min(distance(colour, own) for own in colours.values()) > 0.1]
    assert not near, f"{near} look alike to colour-blind readers; free are {free[:12]}"


def distance(one, other):
    """Largest difference of a channel for readers without green cones (Machado et al. 2009, severity 1)."""
    matrix = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    seen = [np.clip(np.array(matrix) @ to_rgb(colour), 0, 1) for colour in (one, other)]
    return np.abs(seen[0] - seen[1]).max()
