"""The studies on real photos: their declarations, stored results and pages, without running them."""

import json
import runpy
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import CHOICES, METHODS, SMALL_FILE, small_settings
from avalanche_agcn.experiments.results import find_results, read_table
from avalanche_agcn.experiments.settings import change_settings, make_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "studies"
COCO18 = FOLDER / "coco18"


@pytest.fixture(scope="module")
def coco18(studies):
    """The parts of coco18 by name."""
    return studies.coco18_declaration.STREAM.declare(studies.trials.read_choices(COCO18 / "frozen"))


def test_rows_are_unique_and_every_method_has_as_many_trials_with_known_settings(studies, coco18):
    count_trials = studies.trials.count_trials
    for part in (coco18["frozen"], coco18["whole"]):
        assert len({entry.label for entry in part.entries}) == len(part.entries)
        n_trials = {count_trials(entry.space, part.trials) for entry in part.entries if entry.space}
        assert n_trials == {part.trials}
    labels = {entry.label for entry in coco18["frozen"].entries}
    page = studies.coco18_page
    assert {*page.IN_CURVES, *page.PAIRED, *page.PAIRED_WITH} <= labels
    untuned = {entry.label for entry in coco18["frozen"].entries if not entry.space}
    assert untuned == {"multitask_ridge", "streaming_ridge, not tuned"}
    for part in coco18.values():
        for entry in part.entries:
            proposed = studies.trials.Search(entry, 2).propose() if entry.space else {}
            made = change_settings(part.base, **{**entry.settings, **proposed})
            assert made.method == entry.settings["method"]


@pytest.mark.parametrize("name", ["coco18", "split_coco", "voc2007", "coco80"])
def test_stored_results_are_those_of_the_study_and_of_test_photos(studies, name):
    stream = studies.study.read_stream(name)
    for part, declared in stream.declare(studies.study._frozen_choices(FOLDER / name)).items():
        folder = FOLDER / name / part
        wanted = studies.running._wanted_by_name(declared, folder)
        assert len(wanted) >= len(declared.entries)
        table = folder / "results.jsonl"
        stored = read_table(table) if table.is_file() else []
        names = [result.name for result in stored]
        if set(names) == set(wanted):
            assert names == list(wanted)
        for result in stored:
            changed = studies.declare.changed_settings(result.settings, wanted[result.name])
            assert changed == []  # so that none is run again
            assert not result.settings["validation_size"]
            assert result.settings["limit"] is None or result.label.endswith(" photos")
        if name == "coco18":
            assert set(names) == set(wanted)
            assert table.stat().st_size < 1_200_000


def test_other_parts_use_the_choices_and_ask_for_missing_ones(studies, coco18):
    choices = studies.trials.read_choices(COCO18 / "frozen")
    under_b = {entry.label: entry.settings for entry in coco18["b0c3"].entries}
    assert under_b["lwf"]["alpha"] == choices["lwf"]["settings"]["alpha"]
    assert coco18["b0c3"].base.protocol == "B0-C3"
    changed = {entry.label: entry.settings for entry in coco18["experiences"].entries}
    assert changed["finetuning, 9 experiences"]["lr"] == choices["finetuning"]["settings"]["lr"]
    assert changed["finetuning, 9 experiences"]["n_experiences"] == 9
    declaration = studies.coco18_declaration
    base = declaration.base_settings(dataset_root="ROOT")
    with pytest.raises(ValueError, match=r"no settings were chosen for \['finetuning'.*--part frozen first"):
        declaration.STREAM.parts["conventions"].declare(base, {})


def test_stored_choices_are_the_best_trials_need_no_repetition_and_become_the_small_defaults(
    studies, coco18, tmp_path
):
    for part in ("frozen", "whole"):
        choices = studies.trials.read_choices(COCO18 / part)
        for entry in coco18[part].entries:
            if entry.space:
                assert studies.trials.is_stored(coco18[part], entry, choices), entry.label
                tried = choices[entry.label]["tried"]
                best = max(tried, key=lambda trial: trial["validation mAP"])
                assert choices[entry.label]["settings"].items() <= best.items()
    studies.coco18_page.write_small(studies.trials.read_choices(COCO18 / "frozen"), tmp_path / "small.json")
    assert (tmp_path / "small.json").read_text() == SMALL_FILE.read_text()


def test_split_coco_declares_the_runs_of_the_command_line(studies):
    """Those with ``--defaults small``, and with the paper's settings at 64 pixels."""
    paths = {"dataset_root": "elsewhere/photos", "split_lists": "elsewhere/split_coco"}
    paths |= {"word_vectors": "elsewhere/coco80.300d.txt"}
    parts = studies.study.read_stream("split_coco").declare({})
    wanted = {name: studies.running._wanted_by_name(part, Path("none")) for name, part in parts.items()}
    changed_settings = studies.declare.changed_settings
    for choice in CHOICES.values():
        defaults = {**small_settings("coco", choice), **choice.changes}
        for seed in (0, 1, 2):
            options = {"method": choice.method, "label": choice.label, "seed": seed, "device": "cuda"}
            given = make_settings("coco", defaults, **options, **paths)
            assert changed_settings(given.as_dict(), wanted["frozen"][given.name]) == []
    network = {"backbone": "efficientnet_lite0", "image_size": 64, "freeze_batchnorm": True}
    for method in ("multitask", "finetuning", "ewc", "lwf", "agem", "er", "prs", "scr", "agcn"):
        replay = {"batch_size_mem": 8} if method == "scr" else {}
        given = make_settings("coco", method=method, **replay, **network, **paths)
        assert changed_settings(given.as_dict(), wanted["paper"][given.name]) == []
    official = {"method": "agcn", "preset": "official", "label": "agcn official"}
    given = make_settings("coco", **official, **network, **paths)
    assert changed_settings(given.as_dict(), wanted["paper"][given.name]) == []
    assert changed_settings({**given.as_dict(), "lr": 1.0}, wanted["paper"][given.name]) == [
        "lr: 1.0, now 0.0001"
    ]


@pytest.mark.parametrize("name", ["coco18", "split_coco"])
def test_rows_of_equal_bytes_have_sums_or_photos(studies, name):
    stream = studies.study.read_stream(name)
    part = stream.declare(studies.study._frozen_choices(FOLDER / name))["bytes"]
    kept = {}
    for settings in part.final_settings({}):
        of_method = settings.method_settings
        kept[settings.label] = of_method.get("mem_size") or of_method["statistics"]
    n_compact, n_exact = sorted({value for value in kept.values() if isinstance(value, int)})
    assert n_compact < n_exact / 4
    assert len(kept) == 16
    for kind in ("exact", "compact"):
        assert kept[f"streaming_ridge, {kind}"] == kept[f"agcn statistics, {kind}"] == kind
    for method in ("er", "prs", "ocdm"):
        for n_photos in (n_exact, n_compact):
            assert kept[f"{method} + negatives, {n_photos} photos"] == n_photos


@pytest.mark.parametrize("name", ["split_coco", "voc2007", "coco80"])
def test_every_method_has_a_row_on_every_stream(studies, name):
    parts = studies.study.read_stream(name).declare({})
    for part in [parts["frozen"]] if name == "split_coco" else parts.values():
        labels = [entry.label for entry in part.entries]
        assert set(METHODS) | {"agcn statistics", "finetuning + statistics", "er + negatives"} <= set(labels)
        assert len(labels) == len(set(labels))
        seeds = {0} if name == "coco80" else {0, 1, 2}
        assert {settings.seed for settings in part.final_settings({})} == seeds
        assert all(settings.freeze_backbone for settings in part.final_settings({}))
        assert all(settings.image_size == 224 for settings in part.final_settings({}))


def test_errors_are_one_sentence(studies, tmp_path, capsys):
    main = studies.study.main
    out = ["--out", str(tmp_path / "out"), "--jobs", "1", "--pages", str(tmp_path)]
    assert main(["coco18", *out, "--data", str(tmp_path / "absent"), "--part", "frozen"]) == 1
    assert f"Stopped: There is no folder {tmp_path / 'absent'}" in capsys.readouterr().out
    assert main(["coco18", *out]) == 1
    assert f"Stopped: no results of coco18 in {tmp_path / 'out'}" in capsys.readouterr().out
    assert main(["coco18", *out, "--part", "thawed"]) == 1
    assert "coco18 has no part ['thawed']; it has frozen, conventions" in capsys.readouterr().out
    assert main(["split_coco", *out, "--data", str(tmp_path)]) == 1
    assert "split_coco needs split_coco: give its path by --split-lists." in capsys.readouterr().out


def test_the_pages_and_the_table_in_the_readme_are_what_the_results_give(studies, tmp_path):
    start, end = studies.split_coco_page.README_MARKS
    (tmp_path / "README.md").write_text(f"{start}{end}\n")
    assert studies.study.main(["coco18", "--pages", str(tmp_path)]) == 0
    for page in ("RESULTS.md", "RESULTS-tables.md"):
        assert (tmp_path / page).read_text() == (ROOT / page).read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert len(drawn) >= 8
    assert drawn <= {path.name for path in (ROOT / "figures").iterdir()}
    filled = (tmp_path / "README.md").read_text()
    assert filled.count("StreamingRidge") == 1
    assert filled.count(", the paper's own row") == len(studies.split_coco_page.PAPERS_ROWS)
    assert filled.rstrip("\n") in (ROOT / "README.md").read_text()
    reproduction = runpy.run_path(str(ROOT / "runs" / "reproduction.py"))
    assert reproduction["make_page"]() == (ROOT / "REPRODUCTION.md").read_text()


def test_relations_were_measured_on_the_row_that_is_not_tuned():
    """With its own β the strategy is that row, so that both must have the same score in every class order."""
    results = find_results([COCO18 / "frozen"])
    untuned = [result for result in results if result.label == "streaming_ridge, not tuned"]
    stored = {result.class_order: result.summary["mAP"]["last"] for result in untuned}
    rows = json.loads((COCO18 / "relations.json").read_text())
    measured = [row for row in rows if (row["relations"], row["beta"]) == ("estimated", 0.2)]
    found = {row["class_order"]: row["mAP"] for row in measured}
    assert found == pytest.approx(stored, abs=1e-3)


def test_tables_of_compact_sums_are_those_of_the_stored_rows(studies):
    script = studies.compact_sums
    page = (ROOT / "docs" / "statistics.md").read_text()
    made = script.tables(script.read_results())
    for name, table in made.items():
        assert f"<!-- {name} -->\n{table}<!-- end of {name} -->" in page
    assert made["compact sums"].count("\n") == 2 + len(script.BASES) * len(script.RESTS)
    for stream, kinds in script.read_results().items():
        exact, *approximate = kinds["sums"]
        compact = next(row for row in approximate if row["rest"] == script.REST)
        assert compact["share of bytes"] < 0.1, stream
        assert compact["mAP"] > exact["mAP"] - 0.3, stream
