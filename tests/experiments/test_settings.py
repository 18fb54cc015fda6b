import json
from typing import get_args

import pytest

from avalanche_agcn.benchmarks import protocols
from avalanche_agcn.experiments import settings as module
from avalanche_agcn.experiments.cli import read_config
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import (
    KINDS,
    SMOKE,
    Settings,
    change_settings,
    differences,
    is_b_protocol,
    make_settings,
)
from avalanche_agcn.models import backbones, word_vectors


def test_the_papers_settings_are_the_defaults():
    settings = make_settings("coco")
    assert (settings.backbone, settings.image_size, settings.train_mb_size) == ("resnet101", 448, 8)
    assert (settings.lr, settings.lr_gcn, settings.train_epochs) == (1e-4, 3e-5, 1)
    weights = [settings.method_settings[name] for name in ("lambda_cls", "lambda_dst", "lambda_gph")]
    assert weights == [0.07, 0.93, 1e5]
    assert not settings.orthogonal_words
    assert (make_settings("wide").n_classes, make_settings("wide").n_experiences) == (21, 7)


def test_given_settings_come_before_a_benchmarks_own():
    assert make_settings("scenes").backbone == "small"
    assert make_settings("scenes").method_settings["lambda_gph"] == 1e3
    settings = make_settings("scenes", backbone="resnet18", seed=3, lambda_gph=5, limit=None, amp="bf16")
    assert (settings.backbone, settings.name) == ("resnet18", "agcn-seed3")
    assert (settings.method_settings["lambda_gph"], settings.limit, settings.amp) == (5, None, "bf16")


def test_a_b_protocol_has_its_own_numbers_unless_they_are_given():
    def numbers(benchmark, *defaults, **given):
        settings = make_settings(benchmark, *defaults, **given)
        return settings.n_classes, settings.n_experiences, settings.image_size

    assert numbers("coco", protocol="paper") == numbers("coco") == (40, 10, 448)
    assert numbers("coco", protocol="B0-C10") == (None, None, protocols.B_IMAGE_SIZE)
    assert numbers("coco", protocol="B0-C4", n_classes=12, image_size=128) == (12, None, 128)
    assert numbers("wide", protocol="B0-C9", n_experiences=3) == (None, 3, protocols.B_IMAGE_SIZE)
    assert numbers("scenes", protocol="B0-C10") == (None, None, 64)
    assert numbers("scenes", SMOKE, protocol="B0-C1") == (4, None, 32)


def test_voc_has_the_protocol_of_its_published_results():
    voc = make_settings("voc")
    assert (voc.protocol, voc.n_classes, voc.n_experiences) == ("B0-C4", None, None)
    assert change_settings(voc, seed=1).protocol == "B0-C4"
    with pytest.raises(ValueError, match=r"^voc has no published split lists: .*\.$"):
        make_settings("voc", split_lists="lists.zip")


@pytest.mark.parametrize("name", ["B0-C10", "B40-C10", "B10", "xB0-C1", "B-C1", "b0-c10", "KRT", "B0-C10 "])
def test_protocols_are_those_of_the_benchmarks_and_others_are_named(name):
    known = protocols.B_PROTOCOL.fullmatch(name) is not None
    assert is_b_protocol(name) == known
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
    assert not {name for method in METHODS.values() for name in method.arguments} & set(KINDS)
    assert get_args(module.Pool) == get_args(backbones.Pool)
    assert get_args(module.Missing) == get_args(word_vectors.Missing)
    assert get_args(module.Crowds) == get_args(protocols.Crowds)
    assert get_args(module.TestImages) == get_args(protocols.TestImages)


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
        ("amp", "bfloat16", "'bf16' or 'fp16' or none"),
        ("graph", "dense", "'paper' or 'official' or 'plain' or 'identity' or none"),
        ("negatives", "pictures", "'memory' or 'statistics'"),
        ("mem_size", 0.5, "a whole number"),
        ("loss", "focal", "'bce' or 'asl'"),
        ("pseudo_labels", "hard", "true or false"),
        ("protocol", 10, "text or none"),
        ("n_classes", "all", "a whole number or none"),
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


@pytest.mark.parametrize(
    ("label", "name"), [("agcn 10×λ₃", "agcn-10"), ("a/b: c_1.5", "a-b-c_1.5"), ("中国", "name-737014929")]
)
def test_names_of_folders_are_ascii(label, name):
    assert make_settings("scenes", label=label, seed=2).name == f"{name}-seed2"


@pytest.mark.parametrize("form", ["toml", "json", "results"])
def test_a_config_repeats_a_run(tmp_path, form):
    path = tmp_path / ("run.toml" if form == "toml" else "run.json")
    chosen = {"lr": 0.001, "method": "ewc", "compile": False}
    if form == "toml":
        path.write_text('lr = 0.001\nmethod = "ewc"\ncompile = false\n')
    else:
        results = {"settings": chosen, "seed": 1, "format": module.FORMAT}
        path.write_text(json.dumps(chosen if form == "json" else results))
    assert read_config(path) == chosen


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
    older = {name: value for name, value in Settings().as_dict().items() if name != "pool"}
    for changes, found in (
        ({}, []),
        ({"pool": "avg"}, ["pool: max, now avg"]),
        ({"cross_blocks": False}, ["cross_blocks: True, now False"]),
    ):
        assert differences(older, make_settings("coco", **changes).as_dict()) == found


@pytest.mark.parametrize("benchmark", ["coco", "scenes"])
def test_preset_of_statistics_brings_what_it_needs_unless_given(benchmark):
    made = make_settings(benchmark, preset="statistics")
    changed = change_settings(make_settings(benchmark), preset="statistics")
    given = make_settings(benchmark, {"preset": "statistics"}, lr_gcn=1.0, lambda_cls=0.9)
    for settings in (made, changed, given):
        assert settings.orthogonal_words
        assert settings.method_settings["lambda_gph"] == 1e3
    assert (made.lr_gcn, changed.lr_gcn, given.lr_gcn) == (3e-4, 3e-4, 1.0)
    weights = [settings.method_settings["lambda_cls"] for settings in (made, changed, given)]
    assert weights == [0.5, 0.5, 0.9]
