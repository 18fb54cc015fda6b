import json
from dataclasses import replace

import pytest
import torch

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments import results as module
from avalanche_agcn.experiments.results import find_results, group_by_label, read_table, write_table
from avalanche_agcn.experiments.settings import make_settings

AGREED = {"benchmark", "method", "seed", "settings", "class_names", "classes_per_experience", "nested"}
AGREED |= {"summary", "per_class_ap", "seconds", "environment", "format"}


@pytest.mark.parametrize("more", [{}, {"acm": torch.eye(4).tolist()}])
def test_a_file_has_the_agreed_keys_and_is_read_back(tmp_path, make_result, more):
    results = make_result(**more)
    results.write(tmp_path / "results.json")
    assert set(json.loads((tmp_path / "results.json").read_text())) == AGREED | more.keys()
    assert module.read_results(tmp_path / "results.json") == results


def test_summary_is_as_worked_out_by_hand():
    expected = {"last": 50.0, "nested": 55.0, "average": 65.0}
    expected |= {"forgetting_absolute": 20.0, "forgetting_relative": 25.0}
    assert module.summarise({"mAP": [[80.0], [60.0, 50.0]]})["mAP"] == expected
    once = module.summarise({"mAP": [[], [60.0, 50.0]]})["mAP"]
    assert (once["last"], once["forgetting_absolute"]) == (50.0, None)
    for values, text in (([None, 2.0], "2.0"), ([None], "–"), ([-0.01, -0.02], "0.0 ± 0.0")):
        assert module.mean_and_deviation(values) == text


@pytest.fixture
def many(make_result):
    """Results of two methods with two seeds, as different as results can be."""

    def make(method, seed):
        settings = make_settings("scenes", method=method, seed=seed, lr=0.1 * (seed + 1)).as_dict()
        own = {"environment": {"commit": method}, "settings": settings}
        if method == "agcn":
            own |= {"acm": torch.full((4, 4), (seed + 1) / 7).tolist(), "cooccurrence": torch.eye(4).tolist()}
        return make_result(method, seed, last=50.1 + seed, **own)

    return [make(method, seed) for method in ("ewc", "agcn") for seed in (0, 1)]


def test_a_table_has_a_line_for_each_run_and_is_read_back(tmp_path, many):
    pictures = [{"image": 1, "labels": ["car"], "probabilities": [[1.0]]}]
    path = tmp_path / "results.jsonl"
    write_table(path, [replace(result, pictures=pictures) for result in many])
    assert len(path.read_text().splitlines()) == 1 + len(many)
    for before, after in zip(many, read_table(path), strict=True):
        assert replace(after, acm=before.acm) == before
        assert (after.acm is None) == (before.acm is None)
        rounded = torch.tensor(after.acm or []), torch.tensor(before.acm or [])
        torch.testing.assert_close(*rounded, atol=5e-5, rtol=0)
    for text in ("", "{", "{}\n{}\n", "[]\n[]\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"results\.jsonl is not a table of results"):
            read_table(path)


def test_results_are_found_below_folders_and_count_once_beside_their_table(tmp_path, make_result, many):
    for seed in (1, 0):
        make_result(seed=seed).write(tmp_path / f"agcn-seed{seed}" / "results.json")
    make_result(seed=7).write(tmp_path / "trials" / "agcn-seed7" / "results.json")
    assert [result.seed for result in find_results([tmp_path, tmp_path])] == [0, 1]
    assert [result.seed for result in find_results([tmp_path / "trials"])] == [7]
    write_table(tmp_path / "results.jsonl", many)
    newer = make_result("agcn", 1, last=99.0)
    newer.write(tmp_path / newer.name / "results.json")
    found = {(result.method, result.seed): result for result in find_results([tmp_path])}
    assert len(find_results([tmp_path])) == len(found) == len(many)
    assert found["agcn", 1] == newer


def test_results_have_a_common_mean_only_with_the_same_settings(make_result):
    slow, fast = make_result(settings={"lr": 1e-4}), make_result(seed=1, settings={"lr": 1e-3})
    message = r"'agcn' have different settings \(lr: 0.0001, now 0.001\).*--label"
    with pytest.raises(ValueError, match=message):
        group_by_label([slow, fast])
    with pytest.raises(ValueError, match=r"'agcn' has several results of one seed \(seeds \[0, 0\]\)"):
        group_by_label([slow, slow])
    here = make_result(settings={"dataset_root": "here", "device": "cpu"})
    there = make_result(seed=1, settings={"dataset_root": "there", "device": "cuda"})
    assert group_by_label([here, there]) == {"agcn": [here, there]}


def test_rows_are_in_the_papers_order_with_variants_after_their_method(make_result):
    labels = ["mine", "agcn-no-cross", "er + negatives", "agcn", "agcn-lambda3-0", "er", "multitask"]
    results = [make_result(label.split("-")[0].split(" ")[0], settings={"label": label}) for label in labels]
    expected = ["multitask", "er", "er + negatives", "agcn", "agcn-no-cross", "agcn-lambda3-0", "mine"]
    assert list(group_by_label(results)) == expected


def test_cooccurrence_is_counted_over_the_train_images_once_each():
    small = {"n_classes": 6, "n_experiences": 2, "n_train": 80, "n_test": 20, "image_size": 16}
    benchmark = SplitScenes(**small, repeat_images=True)
    targets = benchmark.complete_train_dataset.targets[:]
    expected = torch.stack([(targets[targets[:, j] == 1] == 1).double().mean(0) for j in range(6)], dim=1)
    torch.testing.assert_close(module.train_cooccurrence(benchmark.plan), expected)
    assert module.train_cooccurrence(replace(benchmark.plan, labels_complete=False)) is None
