"""REPRODUCTION.md: rows of the papers beside those that were run."""

import runpy
from pathlib import Path

import pytest
from scipy import stats

from avalanche_agcn.experiments.results import METRICS, Results, write_table

ROOT = Path(__file__).parents[2]
LAST = {"multitask": 60.0, "finetuning": 12.0, "lwf": 30.0, "agcn": 24.0}
"""Scores of the nested test sets after the last experience."""


@pytest.fixture
def reproduction(tmp_path):
    """The names of the script, which reads tables below a folder of this test."""
    names = runpy.run_path(str(ROOT / "runs" / "reproduction.py"))
    names["make_page"].__globals__["STUDIES"] = tmp_path
    return names


def write_results(folder):
    results = []
    for label, score in LAST.items():
        for seed in (0, 1) if label == "lwf" else (0,):
            nested = [[] if label == "multitask" else [score], [score + seed, score + seed]]
            result = Results(
                benchmark="SplitCOCO",
                method=label,
                seed=seed,
                settings={"method": label, "backbone": "efficientnet_lite0", "image_size": 64},
                class_names=["a", "b"],
                classes_per_experience=[1, 1],
                nested=dict.fromkeys(METRICS, nested),
                per_class_ap={"a": 50.0, "b": 50.0},
                seconds={"train": 1.0, "eval": 1.0, "total": 2.0},
                environment={},
                n_images={"train": [65_000, 72], "test": [23_800, 43]},
            )
            results.append(result)
    folder.mkdir(parents=True)
    write_table(folder / "results.jsonl", results)


def test_rows_that_were_run_stand_beside_the_papers_and_others_say_so(reproduction, tmp_path):
    page = reproduction["make_page"]()
    assert "| AGCN | 34.11 | 41.12 | not run | not run | not run | not run |" in page
    assert "Kendall" not in page
    write_results(tmp_path / "split_coco" / "paper")
    page = reproduction["make_page"]()
    assert "| AGCN | 34.11 | 41.12 | not run | 24.0 | not run | not run |" in page
    assert "| PRS | 28.81 | 37.93 | not run | not run | not run | not run |" in page
    about = "efficientnet_lite0 at 64 pixels, 65,072 train photos and 23,843 of 27,172 test photos (87.7%)."
    assert about in page
    scores = "30.5 ± 0.7 | 19.95 | 30.5 ± 0.7 | 21.69 | 30.5 ± 0.7 | 40.68"
    assert f"| LwF | 2 | {scores} | 51 % | 30 % |" in page
    # Of three pairs only that of LwF and AGCN has another order than in the paper.
    assert "order of the 3 methods" in page
    assert "mAP +0.33, CF1 +0.33, OF1 +0.33." in page


def test_kendalls_tau_is_that_of_scipy(reproduction):
    first, second = [9.8, 12.2, 20.0, 23.3, 25.0], [10.9, 9.0, 30.0, 12.0, 28.0]
    expected = stats.kendalltau(first, second).statistic
    assert reproduction["kendall_tau"](first, second) == pytest.approx(expected)
    assert reproduction["kendall_tau"](first, first[::-1]) == -1
