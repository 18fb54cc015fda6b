"""The committed page of results, against the committed results."""

from pathlib import Path

from avalanche_agcn.experiments.results import find_results
from avalanche_agcn.experiments.results_page import write_page

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_the_results_give(tmp_path):
    write_page(ROOT / "runs" / "coco18", tmp_path / "RESULTS.md", tmp_path / "figures")
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn <= {path.name for path in (ROOT / "figures").iterdir()}


def test_no_result_is_of_a_part_of_the_photos_or_of_validation():
    for result in find_results([ROOT / "runs" / "coco18"]):
        if not result.settings["validation"]:
            assert result.settings["limit"] is None
            assert result.seed in (0, 1, 2)
