import json
import re
from itertools import pairwise

import pytest

from avalanche_agcn.benchmarks import protocols, split
from avalanche_agcn.experiments import settings as module
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import (
    LAYERS,
    SMOKE,
    TYPES,
    change_settings,
    differences,
    make_settings,
    merge,
    run_name,
)
from avalanche_agcn.models import backbones, word_vectors


def values(settings):
    """All settings by name, with the name of the run."""
    return {**vars(settings), **settings.method_settings, "name": settings.name}


PAPER = {"backbone": "resnet101", "image_size": 448, "train_mb_size": 8, "lr": 1e-4, "lr_gcn": 3e-5}
PAPER |= {"lambda_cls": 0.07, "lambda_dst": 0.93, "lambda_gph": 1e5, "train_epochs": 1}
PAPER |= {"orthogonal_words": False, "n_classes": 40, "n_experiences": 10}
B_SIZES = {"n_classes": None, "n_experiences": None, "image_size": protocols.B_IMAGE_SIZE}
STATISTICS = {"lr_gcn": 3e-4, "lambda_cls": 0.5, "lambda_gph": 1e3, "orthogonal_words": True}


@pytest.mark.parametrize(
    ("benchmark", "given", "expected"),
    [
        ("coco", {}, PAPER),
        ("coco", {"protocol": "paper"}, PAPER),
        ("wide", {}, {"n_classes": 21, "n_experiences": 7}),
        ("scenes", {}, {"backbone": "small", "lambda_gph": 1e3, "name": "agcn-seed0"}),
        ("scenes", {"backbone": "resnet18", "lambda_gph": 5, "limit": None, "amp": "bf16"}, {}),
        ("coco", {"protocol": "B0-C10"}, B_SIZES),
        ("coco", {"protocol": "B40-C10"}, B_SIZES),
        ("coco", {"protocol": "B0-C4", "n_classes": 12, "image_size": 128}, {"n_experiences": None}),
        ("wide", {"protocol": "B0-C9", "n_experiences": 3}, B_SIZES | {"n_experiences": 3}),
        ("scenes", {"protocol": "B0-C10"}, B_SIZES | {"image_size": 64}),
        ("voc", {}, B_SIZES | {"protocol": "B0-C4", "image_size": 224}),
        ("coco", {"preset": "statistics"}, STATISTICS),
        ("scenes", {"preset": "statistics"}, STATISTICS),
        ("scenes", {"label": "agcn 10×λ₃", "seed": 2}, {"name": "agcn-10-seed2"}),
        ("scenes", {"label": "a/b: c_1.5"}, {"name": "a-b-c_1.5-seed0"}),
        ("scenes", {"label": "中国"}, {"name": "name-737014929-seed0"}),
        ("scenes", {"method": "er", "class_order": "shuffled-1"}, {"name": "er-shuffled-1-seed0"}),
    ],
)
def test_given_settings_override_those_of_preset_protocol_and_benchmark(benchmark, given, expected):
    settings = make_settings(benchmark, **given)
    wanted = {**expected, **given}
    assert {name: values(settings)[name] for name in wanted} == wanted
    if "protocol" not in given:  # which sets only what is not set yet
        assert change_settings(make_settings(benchmark), **given) == settings


def test_each_layer_overrides_those_before_it():
    names = list(LAYERS)
    for weaker, stronger in pairwise(names):
        layers = {stronger: {"lr": 2.0}, weaker: {"lr": 1.0, "lr_gcn": 1.0}}
        assert merge(layers) == ({"lr": 2.0, "lr_gcn": 1.0}, {"lr": stronger, "lr_gcn": weaker})


def test_further_defaults_come_between_those_of_the_benchmark_and_the_given_ones():
    smoke = make_settings("scenes", SMOKE, protocol="B0-C1")
    assert (smoke.n_classes, smoke.n_experiences, smoke.image_size) == (4, None, 32)
    given = make_settings("scenes", {"preset": "statistics"}, lr_gcn=1.0, lambda_cls=0.9)
    assert STATISTICS | {"lr_gcn": 1.0, "lambda_cls": 0.9} | values(given) == values(given)


def test_fields_are_of_all_methods_and_their_choices_those_of_the_models():
    assert not {name for method in METHODS.values() for name in method.arguments} & set(TYPES)
    assert TYPES["pool"] == backbones.Pool
    assert TYPES["missing_words"] == word_vectors.Missing
    assert TYPES["crowds"] == protocols.Crowds | None
    assert TYPES["test_images"] == split.TestImages | None


ONE_PASS = ["multitask", "multitask_ridge", "streaming_ridge", "l3a", "csc"]
REJECTED = [
    ("voc", {"split_lists": "lists.zip"}, "voc has no published split lists: leave split_lists out"),
    ("wide", {"crowds": "labels"}, "crowds are boxes of COCO: leave the setting out for wide"),
    ("coco", {"labels": "a.csv"}, "--labels is for own photos: .*"),
]
for given in ({"learning_rate": 1}, {"method": "er", "lambda_gph": 1.0}, {"newer_as_negative": True}):
    message = rf"unknown settings \['{[*given][-1]}'\]; known are .*'lr'.*'mem_size'.*"
    REJECTED.append(("scenes", given, message))
for name, value, wanted in [
    *(("protocol", text, "'paper' or .*") for text in ("B10", "xB0-C1", "B-C1", "b0-c10", "KRT", "B0-C10 ")),
    ("cross_blocks", "False", "true or false"),
    ("compile", 1, "true or false"),
    ("lr", "fast", "a finite number"),
    ("lr", True, "a finite number"),
    ("dataset_root", 3, "text or none"),
    ("pool", "mean", "'max' or 'avg'"),
    ("label", "two\nlines", "text of 1 to 200 printable characters"),
    ("label", " ", "text of 1 to 200 printable characters"),
    ("graph", "dense", "'paper', 'official', 'plain' or 'identity' or none"),
]:
    REJECTED.append(
        ("coco", {name: value}, f"the setting {name} must be {wanted}, not {re.escape(repr(value))}")
    )
for name, value, reason, methods in [
    ("pseudo_labels", True, "pseudo_labels: .*", ONE_PASS),
    ("negatives", ["memory"], "negatives from memory: .*--memory.*", ["ewc", "agem", "agcn", "multitask"]),
    ("negatives", ["statistics"], "negatives from statistics: .*--memory.*", ONE_PASS[:4]),
]:
    REJECTED += [("scenes", {name: value, "method": own}, f"{own} cannot use {reason}") for own in methods]


@pytest.mark.parametrize(("benchmark", "given", "message"), REJECTED)
def test_settings_that_do_not_fit_are_named_with_what_is_wanted(benchmark, given, message):
    with pytest.raises(ValueError, match=rf"^{message}\.$"):
        make_settings(benchmark, **given)


def test_a_label_is_as_long_as_results_and_folders_allow():
    longest = "é" * 200
    settings = make_settings("scenes", label=longest, class_order="shuffled-" + "9" * 18, seed=2**32 - 1)
    assert len(run_name("e" * 200, settings.class_order, settings.seed, None)) <= 255 - len("-continued99")
    with pytest.raises(ValueError, match="the setting label must be text of 1 to 200 printable characters"):
        make_settings("scenes", label=longest + "é")


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("ewc", {"label": "agcn"}),
        ("ewc", {"label": " Streaming_Ridge, tuned"}),
        ("er", {"label": "fine-tuning"}),
        ("finetuning", {"label": "AGCN Statistics"}),
        ("er", {"label": "er_negatives"}),
        ("agcn", {"label": "agcn statistics"}),
        ("er", {"label": "er + negatives, 50 photos"}),
    ],
)
def test_no_method_can_pass_as_another_by_its_label(method, given):
    with pytest.raises(
        ValueError, match=r"^the label .* is that of .* does not have: choose another --label\.$"
    ):
        make_settings("scenes", method=method, **given)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("ewc", {"label": "ewc"}),
        ("ewc", {"label": "EWC, strong"}),
        ("ewc", {"label": "agcn and more"}),
        ("agcn", {"label": "agcn statistics", "preset": "statistics"}),
        ("er", {"label": "er + negatives, 50 photos", "negatives": ["memory"]}),
    ],
)
def test_a_run_may_have_the_label_of_what_it_is(method, given):
    assert make_settings("scenes", method=method, **given).label == given["label"]


def test_sources_of_labels_are_taken():
    for method in METHODS.keys() - ONE_PASS:
        assert make_settings("scenes", method=method, pseudo_labels=True).as_dict()["pseudo_labels"] is True
    for source in ("memory", "statistics"):
        assert make_settings("scenes", negatives=[source], mem_size=5).negatives == (source,)


def test_method_settings_are_complete_and_take_another_methods_defaults():
    er = make_settings("coco", method="er", mem_size=7)
    assert er.method_settings == {"mem_size": 7, "batch_size_mem": None, "views": 1}
    assert change_settings(er, lr=0.5).method_settings == er.method_settings
    assert change_settings(er, method="lwf", lr=0.5).method_settings == {"alpha": 1.0, "temperature": 1.0}


def test_differences_are_those_that_change_the_results_and_older_settings_have_defaults():
    old = make_settings("scenes").as_dict()
    assert differences(old, make_settings("scenes", num_workers=4, checkpoint_minutes=1).as_dict()) == []
    assert differences(old, make_settings("scenes", lr=0.5).as_dict()) == ["lr: 0.001, now 0.5"]
    official = make_settings("scenes", preset="official").as_dict()
    assert differences(old, official) == ["preset: paper, now official"]
    assert json.loads(json.dumps(old)) == old
    older = {name: value for name, value in module.Settings().as_dict().items() if name != "pool"}
    for changes, found in (
        ({}, []),
        ({"pool": "avg"}, ["pool: max, now avg"]),
        ({"cross_blocks": False}, ["cross_blocks: True, now False"]),
    ):
        assert differences(older, make_settings("coco", **changes).as_dict()) == found
