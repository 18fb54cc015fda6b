import json

import pytest

from avalanche_agcn.benchmarks import protocols
from avalanche_agcn.experiments import settings as module
from avalanche_agcn.experiments.cli import read_config
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import SMOKE, TYPES, change_settings, differences, make_settings
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


def test_further_defaults_come_between_those_of_the_benchmark_and_the_given_ones():
    smoke = make_settings("scenes", SMOKE, protocol="B0-C1")
    assert (smoke.n_classes, smoke.n_experiences, smoke.image_size) == (4, None, 32)
    given = make_settings("scenes", {"preset": "statistics"}, lr_gcn=1.0, lambda_cls=0.9)
    assert STATISTICS | {"lr_gcn": 1.0, "lambda_cls": 0.9} | values(given) == values(given)


@pytest.mark.parametrize(
    ("benchmark", "given", "message"),
    [
        ("voc", {"split_lists": "lists.zip"}, "voc has no published split lists: leave split_lists out"),
        ("wide", {"crowds": "labels"}, "crowds are boxes of COCO: leave the setting out for wide"),
        ("coco", {"labels": "a.csv"}, "own photos need --labels, and other data have their own: .*"),
    ],
)
def test_settings_of_other_data_are_rejected(benchmark, given, message):
    with pytest.raises(ValueError, match=rf"^{message}\.$"):
        make_settings(benchmark, **given)


@pytest.mark.parametrize("name", ["B0-C10", "B40-C10", "B10", "xB0-C1", "B-C1", "b0-c10", "KRT", "B0-C10 "])
def test_protocols_are_those_of_the_benchmarks_and_others_are_named(name):
    known = protocols.B_PROTOCOL.fullmatch(name) is not None
    assert module.is_b_protocol(name) == known
    if known:
        assert make_settings("coco", protocol=name).image_size == protocols.B_IMAGE_SIZE
    else:
        with pytest.raises(ValueError, match=rf"^the setting protocol must be 'paper' or .*, not '{name}'"):
            make_settings("coco", protocol=name)


@pytest.mark.parametrize("method", METHODS)
def test_pseudo_labels_are_for_methods_that_train_by_gradient_on_the_stream(method):
    if method in ("multitask", "multitask_ridge", "streaming_ridge", "l3a", "csc"):
        with pytest.raises(ValueError, match=rf"^{method} cannot use pseudo_labels: .*\.$"):
            make_settings("scenes", method=method, pseudo_labels=True)
    else:
        assert make_settings("scenes", method=method, pseudo_labels=True).as_dict()["pseudo_labels"] is True


def test_fields_are_of_all_methods_and_their_choices_those_of_the_models():
    assert not {name for method in METHODS.values() for name in method.arguments} & set(TYPES)
    assert TYPES["pool"] == backbones.Pool
    assert TYPES["missing_words"] == word_vectors.Missing
    assert TYPES["crowds"] == protocols.Crowds | None
    assert TYPES["test_images"] == protocols.TestImages | None


@pytest.mark.parametrize(
    "given", [{"learning_rate": 1}, {"method": "er", "lambda_gph": 1.0}, {"newer_as_negative": True}]
)
def test_an_unknown_setting_is_named(given):
    message = rf"unknown settings \['{[*given][-1]}'\]; known are .*'lr'.*'mem_size'"
    with pytest.raises(ValueError, match=message):
        make_settings("scenes", **given)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("cross_blocks", "False", "true or false"),
        ("compile", 1, "true or false"),
        ("lr", "fast", "a finite number"),
        ("lr", True, "a finite number"),
        ("limit", 2.5, "a whole number or none"),
        ("dataset_root", 3, "text or none"),
        ("pool", "mean", "'max' or 'avg'"),
        ("storage_policy", "reservoir", "'er' or 'prs' or 'ocdm'"),
        ("graph", "dense", "'paper' or 'official' or 'plain' or 'identity' or none"),
        ("negatives", "pictures", "'memory' or 'statistics'"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_is_wanted(name, value, wanted):
    with pytest.raises(ValueError, match=f"^the setting {name} must be {wanted}, not {value!r}\\.$"):
        make_settings("scenes", **{name: value})


def test_method_settings_are_complete_and_take_another_methods_defaults():
    er = make_settings("coco", method="er", mem_size=7)
    assert er.method_settings == {"mem_size": 7, "batch_size_mem": None, "views": 1}
    assert change_settings(er, lr=0.5).method_settings == er.method_settings
    assert change_settings(er, method="lwf", lr=0.5).method_settings == {"alpha": 1.0, "temperature": 1.0}


@pytest.mark.parametrize(
    ("source", "methods"),
    [
        ("memory", ("ewc", "agem", "agcn", "multitask")),
        ("statistics", ("multitask", "multitask_ridge", "streaming_ridge", "l3a")),
    ],
)
def test_negatives_are_rejected_where_they_cannot_be_used(source, methods):
    for method in methods:
        with pytest.raises(ValueError, match=f"{method} cannot use negatives from {source}: .*--memory"):
            make_settings("scenes", negatives=[source], method=method)
    assert make_settings("scenes", negatives=[source], mem_size=5).negatives == (source,)


def test_results_of_an_older_version_are_named_with_it(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"settings": {"batch_size": 8}}))
    with pytest.raises(ValueError, match=r"results\.json has format 1, but .* reads format 2: run it again"):
        read_config(tmp_path / "results.json")


def test_differences_are_those_that_change_the_results():
    old = make_settings("scenes").as_dict()
    assert differences(old, make_settings("scenes", num_workers=4, checkpoint_minutes=1).as_dict()) == []
    assert differences(old, make_settings("scenes", lr=0.5).as_dict()) == ["lr: 0.001, now 0.5"]
    official = make_settings("scenes", preset="official").as_dict()
    assert differences(old, official) == ["preset: paper, now official"]
    assert json.loads(json.dumps(old)) == old


def test_a_newer_setting_has_its_default_in_older_settings():
    older = {name: value for name, value in module.Settings().as_dict().items() if name != "pool"}
    for changes, found in (
        ({}, []),
        ({"pool": "avg"}, ["pool: max, now avg"]),
        ({"cross_blocks": False}, ["cross_blocks: True, now False"]),
    ):
        assert differences(older, make_settings("coco", **changes).as_dict()) == found
