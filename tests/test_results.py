"""The committed pages of results, compared with the committed tables of results."""

import json
import runpy
from pathlib import Path

import pytest

from avalanche_agcn.experiments.results import find_results

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_the_results_give(coco18, tmp_path):
    written = ["--page", str(tmp_path / "RESULTS.md"), "--figures", str(tmp_path / "figures")]
    assert coco18["main"](written) == 0
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert len(drawn) == 7
    assert drawn <= {path.name for path in (ROOT / "figures").iterdir()}


def test_no_result_is_of_a_part_of_the_photos_or_of_validation():
    results = find_results([ROOT / "runs" / "coco18"])
    assert len(results) == 633
    for result in results:
        assert not result.settings["validation_size"]
        assert result.settings["limit"] is None or result.label.endswith(" photos")
        assert result.seed in (0, 1, 2)


def test_readmes_table_and_the_page_on_reproduction_are_what_the_results_give(coco18, tmp_path):
    start, end = coco18["README_MARKS"]
    (tmp_path / "README.md").write_text(f"{start}{end}\n")
    coco18["fill_readme"](tmp_path / "README.md", find_results([ROOT / "runs" / "coco18" / "frozen"]))
    filled = (tmp_path / "README.md").read_text()
    assert filled.count("\n") == len(coco18["README_ROWS"]) + 4
    assert filled.rstrip("\n") in (ROOT / "README.md").read_text()
    reproduction = runpy.run_path(str(ROOT / "runs" / "reproduction.py"))
    assert reproduction["make_page"]() == (ROOT / "REPRODUCTION.md").read_text()


def test_relations_were_measured_on_the_row_that_is_not_tuned():
    """With its own β the strategy is that row, so that both must have the same score in every class order."""
    results = find_results([ROOT / "runs" / "coco18" / "frozen"])
    untuned = [result for result in results if result.label == "streaming_ridge, not tuned"]
    stored = {result.class_order: result.summary["mAP"]["last"] for result in untuned}
    rows = json.loads((ROOT / "runs" / "coco18" / "relations.json").read_text())
    measured = [row for row in rows if (row["relations"], row["beta"]) == ("estimated", 0.2)]
    found = {row["class_order"]: row["mAP"] for row in measured}
    assert found == pytest.approx(stored, abs=1e-3)
