"""The study on real photos: its entries, stored results and pages, without running it."""

import json
import runpy
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import SMALL_FILE
from avalanche_agcn.experiments.results import find_results, read_table
from avalanche_agcn.experiments.search import read_choices
from avalanche_agcn.experiments.settings import change_settings, differences

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "coco18"


@pytest.fixture(scope="module")
def studies(coco18):
    base = coco18["base_settings"](dataset_root="../shared/data/coco18")
    chosen = read_choices(FOLDER / "frozen")
    return {part: make(base, chosen) for part, (_, make) in coco18["PARTS"].items()}


def test_rows_are_unique_and_every_method_has_as_many_trials_with_known_settings(coco18, studies):
    for study in (studies["frozen"], studies["whole"]):
        assert len({entry.label for entry in study.entries}) == len(study.entries)
        n_trials = {len(entry.draw_trials(study.trials)) for entry in study.entries if entry.space}
        assert n_trials == {study.trials}
    labels = {entry.label for entry in studies["frozen"].entries}
    assert {*coco18["README_ROWS"], *coco18["IN_CURVES"]} <= labels
    assert {label for group in coco18["PAIRS"] for label in group} <= labels
    untuned = {entry.label for entry in studies["frozen"].entries if not entry.space}
    assert untuned == {"multitask_ridge", "streaming_ridge, not tuned"}
    for base, entry in ((study.base, entry) for study in studies.values() for entry in study.entries):
        for drawn in entry.draw_trials(2) if entry.space else [{}]:
            made = change_settings(base, **{**entry.settings, **drawn})
            assert made.method == entry.settings["method"]


def test_stored_results_are_those_of_the_study_and_of_test_photos(studies):
    for part, study in studies.items():
        wanted = study.final_settings(read_choices(FOLDER / part))
        stored = read_table(FOLDER / part / "results.jsonl")
        assert [result.name for result in stored] == [settings.name for settings in wanted]
        for result, settings in zip(stored, wanted, strict=True):
            assert differences(result.settings, settings.as_dict()) == []  # so that none is run again
            assert not result.settings["validation_size"]
            assert result.settings["limit"] is None or result.label.endswith(" photos")
        assert (FOLDER / part / "results.jsonl").stat().st_size < 1_200_000


def test_other_parts_use_the_choices_and_ask_for_missing_ones(coco18, studies):
    choices = read_choices(FOLDER / "frozen")
    under_b = {entry.label: entry.settings for entry in studies["b0c3"].entries}
    assert under_b["lwf"]["alpha"] == choices["lwf"]["settings"]["alpha"]
    assert studies["b0c3"].base.protocol == "B0-C3"
    changed = {entry.label: entry.settings for entry in studies["experiences"].entries}
    assert changed["finetuning, 9 experiences"]["lr"] == choices["finetuning"]["settings"]["lr"]
    assert changed["finetuning, 9 experiences"]["n_experiences"] == 9
    with pytest.raises(ValueError, match=r"no settings were chosen for \['finetuning'.*--part frozen first"):
        coco18["PARTS"]["conventions"][1](coco18["base_settings"](dataset_root="../shared/data/coco18"), {})


def test_choices_are_the_best_of_as_many_trials_each_and_become_the_small_defaults(coco18, studies, tmp_path):
    drawn = {entry.label: entry.draw_trials(12) for entry in studies["frozen"].entries if entry.space}
    for label, choice in read_choices(FOLDER / "frozen").items():
        scores = [trial.pop("validation mAP") for trial in choice["tried"]]
        assert choice["tried"] == drawn[label]
        assert choice["settings"] == drawn[label][scores.index(max(scores))]
    coco18["write_small"](read_choices(FOLDER / "frozen"), tmp_path / "small.json")
    assert (tmp_path / "small.json").read_text() == SMALL_FILE.read_text()


def test_errors_are_one_sentence(coco18, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out"), "--jobs", "1"]
    assert coco18["main"]([*out, "--data", str(tmp_path / "absent"), "--part", "frozen"]) == 1
    assert f"Stopped: There is no folder {tmp_path / 'absent'}" in capsys.readouterr().out
    assert coco18["main"](out) == 1
    assert f"Stopped: no results in {tmp_path / 'out'}" in capsys.readouterr().out


def test_the_pages_and_the_table_in_the_readme_are_what_the_results_give(coco18, tmp_path):
    start, end = coco18["README_MARKS"]
    (tmp_path / "README.md").write_text(f"{start}{end}\n")
    written = ["--page", str(tmp_path / "RESULTS.md"), "--figures", str(tmp_path / "figures")]
    assert coco18["main"](written) == 0
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert len(drawn) == 7
    assert drawn <= {path.name for path in (ROOT / "figures").iterdir()}
    filled = (tmp_path / "README.md").read_text()
    assert filled.count("\n") == len(coco18["README_ROWS"]) + 4
    assert filled.rstrip("\n") in (ROOT / "README.md").read_text()
    reproduction = runpy.run_path(str(ROOT / "runs" / "reproduction.py"))
    assert reproduction["make_page"]() == (ROOT / "REPRODUCTION.md").read_text()


def test_relations_were_measured_on_the_row_that_is_not_tuned():
    """With its own β the strategy is that row, so that both must have the same score in every class order."""
    results = find_results([FOLDER / "frozen"])
    untuned = [result for result in results if result.label == "streaming_ridge, not tuned"]
    stored = {result.class_order: result.summary["mAP"]["last"] for result in untuned}
    rows = json.loads((FOLDER / "relations.json").read_text())
    measured = [row for row in rows if (row["relations"], row["beta"]) == ("estimated", 0.2)]
    found = {row["class_order"]: row["mAP"] for row in measured}
    assert found == pytest.approx(stored, abs=1e-3)
