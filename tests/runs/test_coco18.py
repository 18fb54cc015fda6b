"""The study on real photos: its entries and stored results, without running it."""

import runpy
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import SMALL_FILE
from avalanche_agcn.experiments.results import read_table
from avalanche_agcn.experiments.search import read_choices
from avalanche_agcn.experiments.settings import change_settings, differences

FOLDER = Path(__file__).parents[2] / "runs" / "coco18"


@pytest.fixture(scope="module")
def coco18():
    return runpy.run_path(str(FOLDER / "study.py"))


@pytest.fixture(scope="module")
def studies(coco18):
    base = coco18["base_settings"](dataset_root="../shared/data/coco18")
    return {
        "statistics": coco18["statistics"](base),
        "frozen": coco18["frozen"](base),
        "whole": coco18["whole"](base, read_choices(coco18["HEADS"])),
    }


def test_every_tuned_method_is_there_once_and_has_as_many_trials(coco18, studies):
    for part in ("frozen", "whole"):
        labels = [entry.label for entry in studies[part].entries]
        assert len(set(labels)) == len(labels)
        assert {*coco18["TUNED"], "agcn"} <= set(labels)
        for entry in studies[part].entries:
            n_trials = studies[part].trials
            assert (len(entry.draw_trials(n_trials)) == n_trials) if entry.space else entry.like
    assert set(coco18["README_ROWS"]) <= {entry.label for entry in studies["statistics"].entries}


def test_all_settings_of_all_trials_are_known(studies):
    for study in studies.values():
        for entry in study.entries:
            for drawn in entry.draw_trials(2) if entry.space else [{}]:
                made = change_settings(study.base, **{**entry.settings, **drawn})
                assert made.method == entry.settings["method"]


@pytest.mark.parametrize("part", ["statistics", "frozen", "whole"])
def test_stored_results_are_those_of_the_study_so_that_none_is_run_again(studies, part):
    wanted = studies[part].final_settings(read_choices(FOLDER / part))
    stored = read_table(FOLDER / part / "results.jsonl")
    assert [result.name for result in stored] == [settings.name for settings in wanted]
    for result, settings in zip(stored, wanted, strict=True):
        assert differences(result.settings, settings.as_dict()) == []
    assert (FOLDER / part / "results.jsonl").stat().st_size < 600_000


def test_the_whole_network_takes_over_what_was_chosen_for_heads(coco18, studies):
    choices, study = read_choices(coco18["HEADS"]), studies["whole"]
    by_label = {entry.label: entry for entry in study.entries}
    assert by_label["ewc"].settings["ewc_lambda"] == choices["ewc"]["settings"]["ewc_lambda"]
    assert by_label["ewc"].settings["lr_head"] == choices["ewc"]["settings"]["lr"]
    assert by_label["agcn"].settings == {"method": "agcn", **choices["agcn"]["settings"]}
    assert not any("lr" in entry.settings for entry in study.entries)
    assert study.base.fold_batchnorm
    assert not study.base.freeze_backbone
    assert studies["frozen"].base.freeze_backbone


def test_heads_have_the_best_of_as_many_trials_each(coco18, studies):
    drawn = {entry.label: entry.draw_trials(12) for entry in studies["frozen"].entries}
    for folder in (coco18["HEADS"], FOLDER / "frozen"):
        for label, choice in read_choices(folder).items():
            scores = [trial.pop("validation mAP") for trial in choice["tried"]]
            assert choice["tried"] == drawn[label]
            assert choice["settings"] == drawn[label][scores.index(max(scores))]


def test_errors_are_one_sentence(coco18, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out"), "--jobs", "1"]
    assert coco18["main"]([*out, "--data", str(tmp_path / "absent"), "--part", "whole"]) == 1
    assert f"Stopped: There is no folder {tmp_path / 'absent'}" in capsys.readouterr().out
    assert coco18["main"](out) == 1
    assert f"Stopped: no results in {tmp_path / 'out'}" in capsys.readouterr().out


def test_small_defaults_are_what_the_study_writes(coco18, tmp_path):
    coco18["write_small"](read_choices(FOLDER / "frozen"), tmp_path / "small.json")
    assert (tmp_path / "small.json").read_text() == SMALL_FILE.read_text()
