import json

import pytest

from avalanche_agcn.experiments.results import Results, find_results, read_results, summarise


def make(method="agcn", seed=0, last=50.0, **changes):
    nested = {metric: [[80.0], [60.0, last]] for metric in ("mAP", "CF1", "OF1")}
    content = {
        "benchmark": "SplitScenes",
        "method": method,
        "seed": seed,
        "settings": {},
        "class_names": ["cat", "dog"],
        "nested": nested,
        "per_class_ap": {"cat": 40.0, "dog": None},
        "seconds": {"train": 1.0, "eval": 2.0, "total": 3.0},
        "environment": {},
    }
    return Results(**content | changes)


def test_a_file_has_the_agreed_keys_and_comes_back(tmp_path):
    results = make()
    results.write(tmp_path / "results.json")
    content = json.loads((tmp_path / "results.json").read_text())
    keys = {"benchmark", "method", "seed", "settings", "class_names", "nested", "summary", "per_class_ap"}
    assert set(content) == keys | {"seconds", "environment"}
    assert read_results(tmp_path / "results.json") == results


def test_summary_is_worked_out_by_hand():
    assert summarise({"mAP": [[80.0], [60.0, 50.0]]})["mAP"] == {
        "last": 50.0,
        "nested": 55.0,
        "average": 65.0,
        "forgetting_absolute": 20.0,
        "forgetting_relative": 25.0,
    }


def test_a_method_evaluated_once_has_no_forgetting():
    summary = summarise({"mAP": [[], [60.0, 50.0]]})["mAP"]
    assert summary["last"] == 50.0
    assert summary["forgetting_absolute"] is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"method": "agcn"}', '{"unknown": 1}'])
def test_a_damaged_or_foreign_file_is_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=r"results\.json is not a results\.json of this package"):
        read_results(tmp_path / "results.json")


def test_results_are_found_below_folders(tmp_path):
    for seed in (1, 0):
        make(seed=seed).write(tmp_path / f"agcn-seed{seed}" / "results.json")
    assert [result.seed for result in find_results([tmp_path, tmp_path])] == [0, 1]


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no results.json below {tmp_path}"):
        find_results([tmp_path])
