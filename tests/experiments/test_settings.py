import json

import pytest

from avalanche_agcn.experiments.settings import Settings, differences, make_settings, read_config


def test_the_papers_settings_are_the_defaults():
    settings = make_settings("coco")
    assert (settings.backbone, settings.image_size, settings.batch_size) == ("resnet101", 448, 8)
    assert (settings.lr, settings.lr_gcn, settings.epochs) == (1e-4, 3e-5, 1)
    assert (settings.lambda_cls, settings.lambda_dst, settings.lambda_gph) == (0.07, 0.93, 1e5)
    assert not settings.orthogonal_words
    assert (make_settings("wide").n_classes, make_settings("wide").n_experiences) == (21, 7)


def test_given_settings_come_before_a_benchmarks_own():
    assert make_settings("scenes").backbone == "small"
    assert make_settings("scenes", backbone="resnet18", seed=3).name == "agcn-seed3"


def test_an_unknown_setting_is_named():
    with pytest.raises(ValueError, match=r"unknown settings \['learning_rate'\]; known are .*'lr'"):
        make_settings("scenes", learning_rate=1)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("cross_blocks", "False", "true or false"),
        ("compile", 1, "true or false"),
        ("lr", "fast", "a number"),
        ("lr", True, "a number"),
        ("limit", 2.5, "a whole number or none"),
        ("data", 3, "text or none"),
        ("pool", "mean", "'max' or 'avg'"),
        ("memory_kind", "reservoir", "'er' or 'prs' or 'ocdm'"),
        ("amp", "bfloat16", "'bf16' or 'fp16' or none"),
        ("graph", "dense", "'paper' or 'official' or 'plain' or 'identity' or none"),
    ],
)
def test_a_value_of_another_kind_is_named_with_what_is_wanted(name, value, wanted):
    with pytest.raises(ValueError, match=f"^the setting {name} must be {wanted}, not {value!r}$"):
        make_settings("scenes", **{name: value})


@pytest.mark.parametrize(
    "given", [{"lr": 1}, {"limit": None}, {"amp": "bf16"}, {"graph": None}, {"data": "x"}]
)
def test_a_value_of_the_right_kind_is_taken(given):
    settings = make_settings("scenes", **given)
    assert {name: getattr(settings, name) for name in given} == given


@pytest.mark.parametrize("form", ["toml", "json", "results"])
def test_a_config_repeats_a_run(tmp_path, form):
    path = tmp_path / ("run.toml" if form == "toml" else "run.json")
    chosen = {"lr": 0.001, "method": "ewc", "compile": False}
    if form == "toml":
        path.write_text('lr = 0.001\nmethod = "ewc"\ncompile = false\n')
    else:
        path.write_text(json.dumps(chosen if form == "json" else {"settings": chosen, "seed": 1}))
    assert read_config(path) == chosen


def test_a_config_of_another_form_is_named(tmp_path):
    (tmp_path / "run.toml").write_text("lr: 1")
    with pytest.raises(ValueError, match=r"run\.toml is neither TOML nor JSON"):
        read_config(tmp_path / "run.toml")


def test_differences_are_those_that_change_the_outcome():
    old = make_settings("scenes").as_dict()
    assert differences(old, make_settings("scenes", workers=4, checkpoint_minutes=1).as_dict()) == []
    assert differences(old, make_settings("scenes", lr=0.5).as_dict()) == ["lr: 0.001, now 0.5"]


def test_a_newer_setting_has_its_default_in_older_settings():
    older = {name: value for name, value in Settings().as_dict().items() if name != "pool"}
    assert differences(older, Settings().as_dict()) == []
    assert differences(older, Settings(pool="avg").as_dict()) == ["pool: max, now avg"]
