"""The study on real photos: its entries, without running them."""

import runpy
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.experiments.study import read_choices

BASE = make_settings("coco", data="somewhere")


@pytest.fixture(scope="module")
def coco18():
    return runpy.run_path(str(Path(__file__).parents[2] / "runs" / "coco18.py"))


def test_every_method_is_there_once_and_has_as_many_trials(coco18):
    study = coco18["frozen"](BASE)
    labels = [entry.label for entry in study.entries]
    assert len(set(labels)) == len(labels)
    assert set(METHODS) <= set(labels)
    for entry in study.entries:
        assert (len(entry.draw_trials(study.trials)) == study.trials) if entry.space else entry.like
    assert study.base.freeze_backbone


def test_all_settings_of_all_entries_are_known(coco18):
    study = coco18["frozen"](BASE)
    for entry in study.entries:
        for drawn in entry.draw_trials(2) if entry.space else [{}]:
            settings = make_settings("coco", **{**entry.settings, **drawn})
            assert settings.method in METHODS
            make_settings("coco", **entry.variant(settings))


def test_the_whole_network_takes_over_what_was_chosen_for_heads(coco18):
    choices = read_choices(coco18["HEADS"])
    study = coco18["whole"](BASE, choices)
    assert set(METHODS) <= {entry.label for entry in study.entries}
    ewc = next(entry for entry in study.entries if entry.label == "ewc")
    assert ewc.settings["ewc_lambda"] == choices["ewc"]["settings"]["ewc_lambda"]
    assert ewc.settings["lr_head"] == choices["ewc"]["settings"]["lr"]
    agcn = next(entry for entry in study.entries if entry.label == "agcn")
    assert agcn.settings == {"method": "agcn", **choices["agcn"]["settings"]}
    for entry in study.entries:
        assert "lr" not in entry.settings
        assert len(entry.draw_trials(study.trials)) == study.trials == 2
    assert study.base.fold_batchnorm
    assert not study.base.freeze_backbone


def test_heads_have_the_best_of_as_many_trials_each(coco18):
    drawn = {entry.label: entry.draw_trials(12) for entry in coco18["frozen"](BASE).entries}
    for label, choice in read_choices(coco18["HEADS"]).items():
        scores = [trial.pop("validation mAP") for trial in choice["tried"]]
        assert choice["tried"] == drawn[label]
        assert choice["settings"] == drawn[label][scores.index(max(scores))]


def test_what_is_missing_is_said_without_a_traceback(coco18, tmp_path, capsys):
    out = ["--data", str(tmp_path / "absent"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert coco18["main"]([*out, "--part", "whole"]) == 1
    assert f"Stopped: There is no folder {tmp_path / 'absent'}" in capsys.readouterr().out
