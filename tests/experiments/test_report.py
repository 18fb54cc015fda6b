"""Reports and pages from stored results, and comparisons of methods."""

import math
import re
from pathlib import Path

import pytest
from PIL import Image
from scipy import stats

from avalanche_agcn.__main__ import main
from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments import report as module
from avalanche_agcn.experiments.methods import ABLATIONS, METHODS
from avalanche_agcn.experiments.report import fill_in
from avalanche_agcn.experiments.results import METRICS, mean_and_deviation
from avalanche_agcn.experiments.settings import SMOKE, change_settings, make_settings


@pytest.fixture
def store(tmp_path, make_result):
    """A function that stores a results.json as a run leaves it."""

    def write(label="agcn", benchmark="scenes", class_order=None, **changes):
        given = {"dataset_root": None if benchmark == "scenes" else "absent", "class_order": class_order}
        method = label if label in METHODS else "agcn"
        settings = make_settings(benchmark, SMOKE, method=method, **given)
        changed = ABLATIONS[label].changes(settings.method_settings) if label in ABLATIONS else {}
        settings = change_settings(settings, **changed, label=label)
        name = {"scenes": "SplitScenes", "coco": "SplitCOCO"}[benchmark]
        result = make_result(benchmark=name, settings=settings.as_dict(), **changes)
        result.write(tmp_path / "runs" / result.name / "results.json")

    return write


@pytest.fixture
def report(tmp_path):
    """A function that makes the report of all stored results; returns the names of the files."""

    def run(*options):
        assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), *options]) == 0
        return {path.name for path in (tmp_path / "out").iterdir()}

    return run


def test_ablations_have_tables_and_plots_of_their_own(store, report, tmp_path, capsys):
    for label in ("agcn", *ABLATIONS):
        store(label)
    tables = {f"table{kind}-SplitScenes" for kind in ("", "-2", "-3", "-variants")}
    files = {f"{table}.{form}" for table in tables for form in ("md", "csv", "tex")}
    drawn = {f"SplitScenes-{name}{of}.png" for name in ("mAP", "classes") for of in ("", "-variants")}
    assert report() == files | drawn | {"report.html", "classes-SplitScenes.csv"}
    output = capsys.readouterr().out
    for table in tables:
        assert (tmp_path / "out" / f"{table}.md").read_text() in output
    assert "| √ | × | 1 | 50.0 |" in (tmp_path / "out" / "table-2-SplitScenes.md").read_text()


def test_only_the_named_plots_are_drawn(store, report):
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=64, n_test=32, image_size=32)
    labels = [scenes.class_names[c] for c in scenes.test_stream[0].dataset.targets[0].nonzero().flatten()]
    picture = {"image": int(scenes.plan.evaluation["test"].positions[0][0]), "labels": labels}
    store(pictures=[picture | {"probabilities": [[90.0, 1.0], [80.0, 2.0, 71.0, 3.0]]}])
    store("a/b: λ", acm=[[1.0] * 4] * 4)  # whose file name is that of its folder
    expected = {f"SplitScenes-{name}.png" for name in ("mAP", "pictures-agcn", "acm-a-b-")}
    assert report("--only", "mAP", "pictures-agcn", "acm-a-b-") == expected


def test_the_first_part_of_names_stands_for_all_plots_that_begin_with_it(store, report):
    for label in ("agcn", "agcn-no-cross"):
        store(label, acm=[[1.0] * 4] * 4)
    by_label = {"SplitScenes-acm-agcn.png", "SplitScenes-acm-agcn-no-cross.png"}
    assert report("--only", "acm") == by_label
    assert report("--only", "mAP") == by_label | {"SplitScenes-mAP.png"}  # is a name itself


def test_streams_of_one_benchmark_have_tables_of_their_own(store, report, tmp_path, capsys):
    store("er")
    store("agcn", class_order="shuffled-1")
    report()
    for order, name in {"data": "ER", "shuffled-1": "AGCN"}.items():
        table = (tmp_path / "out" / f"table-SplitScenes-order-{order}.md").read_text()
        assert (table.count("\n"), f"| {name} | 1 |" in table) == (3, True)
    assert "SplitScenes, order shuffled-1. All methods, in percent" in capsys.readouterr().out


def test_own_photos_of_other_data_or_conventions_have_tables_of_their_own(make_result, report, tmp_path):
    counts = {"train": [5, 5], "test": [3, 4]}
    runs = {
        "er": ("a", None),
        "lwf": ("a", None),
        "ewc": ("a", True),  # with repeat_images
        "agem": ("b", None),  # other photos of the same classes
    }
    for method, (digest, repeat) in runs.items():
        settings = make_settings("photos", method=method, dataset_root="absent", labels="absent.csv")
        settings = change_settings(settings, repeat_images=repeat)
        data = {"train": {"images": "", "labels": ""}, "test": {"images": digest, "labels": ""}}
        result = make_result(
            method, benchmark="SplitPhotos", settings=settings.as_dict(), data=data, n_images=counts
        )
        result.write(tmp_path / "runs" / result.name / "results.json")
    tables = sorted(name for name in report() if name.startswith("table") and name.endswith(".md"))
    rows = [(tmp_path / "out" / name).read_text().count("\n") - 2 for name in tables]
    names = [re.sub(r"-[0-9a-f]{8}\.md", "", name) for name in tables]
    assert sorted(zip(names, rows, strict=True)) == [
        ("table-SplitPhotos-repeat_images.md", 1),
        ("table-SplitPhotos-usual-protocol-7-test-photos", 1),
        ("table-SplitPhotos-usual-protocol-7-test-photos", 2),
    ]


def test_missing_results_folders_and_plots_are_named(store, tmp_path, capsys):
    def error_of(*arguments):
        assert main(["report", *map(str, arguments)]) == 1
        return capsys.readouterr().err

    runs, missing = tmp_path / "runs", tmp_path / "misspelt"
    assert f"no results.json below {tmp_path}" in error_of(tmp_path)
    store()
    assert f"there is no folder {missing}" in error_of(runs, missing)
    assert "there is no plot 'map'; choose from classes, mAP." in error_of(runs, "--only", "map")


def test_a_report_is_made_without_photos_that_are_gone(store, report, capsys):
    shown = {"image": "1.jpg", "labels": ["car"], "probabilities": [[90.0, 1.0], [9.0, 2.0, 7.0, 3.0]]}
    store(benchmark="coco", pictures=[shown])
    drawn = {name for name in report() if name.endswith(".png")}
    skipped = "SplitCOCO-pictures-agcn.png is skipped: There is no image absent/1.jpg"
    assert skipped in capsys.readouterr().out
    assert drawn == {"SplitCOCO-mAP.png", "SplitCOCO-classes.png"}


def test_photos_are_found_from_another_directory(make_result, tmp_path, monkeypatch, capsys):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "1.jpg")
    shown = {"image": "1.jpg", "labels": ["car"], "probabilities": [[90.0, 1.0], [9.0, 2.0, 7.0, 3.0]]}
    # As a run leaves it that was started in tmp_path, with --data photos.
    result = make_result(benchmark="SplitCOCO", settings={"dataset_root": "photos"}, pictures=[shown])
    result.write(tmp_path / "results" / result.name / "results.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["report", "../results", "--out", "out", "--only", "pictures"]) == 0
    assert [path.name for path in Path("out").iterdir()] == ["SplitCOCO-pictures-agcn.png"]
    assert "skipped" not in capsys.readouterr().out


def test_the_tables_are_followed_by_a_sentence_on_the_best_method(store, report, capsys):
    for label in ("er", "agcn"):
        store(label)
    report()
    assert "| 50.0 |" in (output := capsys.readouterr().out)
    assert "ER and AGCN have the best mAP last" in output


def test_a_text_is_filled_with_scores_and_names_those_that_are_not_there(make_result):
    at_once = {"nested": {metric: [[], [60.0, 50.0]] for metric in METRICS}}
    own = {"multitask": at_once, "er + negatives": {}, "agcn": {"acm": [[1.0] * 4] * 4}}
    results = [
        make_result(label.split(" ")[0], seed, 50.0 + seed, settings={"label": label}, **changes)
        for label, changes in own.items()
        for seed in (0, 1)
    ]
    text = '# Results\n\n{{ a["agcn"].mAP.last }}, {{ a["er + negatives"].CF1.forgetting_absolute }}\n'
    score = mean_and_deviation([50.0, 51.0])
    assert fill_in(text, {"a": results}) == f"# Results\n\n{score}, 20.0 ± 0.0"
    for name, reason in {
        'whole["agcn"].mAP.last': "whole",
        'a["gone"].mAP.last': "gone",
        'a["agcn"].mAP.lost': "lost",
        'a["multitask"].mAP.forgetting_absolute': "forgetting_absolute",
    }.items():
        with pytest.raises(ValueError, match=f"a score that is not there: .*{reason}"):
            fill_in(f"{{{{ {name} }}}}", {"a": results})


ORDERS = ("data", "shuffled-1")


@pytest.fixture
def make_row(make_result):
    """A function that makes the results of a row: its last mAP by class order and seed."""

    def make(label, scores, seconds=100.0, stored=None):
        cost = {"seconds": {"train": seconds, "eval": 1.0, "total": seconds + 1}, "stored": stored}
        return [
            make_result(label.split()[0], seed, last, settings={"label": label, "class_order": order}, **cost)
            for order, own in zip(ORDERS, scores, strict=True)
            for seed, last in enumerate(own)
        ]

    return make


def test_the_best_row_is_first_and_time_is_a_ratio(make_row):
    slow = make_row("er + negatives", [[50, 52], [54, 56]], 150.0, {"images": 200, "bytes": 2_500_000})
    table = module.comparison_table([*make_row("finetuning", [[40, 41], [42, 43]]), *slow])
    assert [row[0] for row in table.rows] == ["ER + negatives", "Fine-Tuning"]
    assert table.rows[0][1:3] == ["4", "53.0 ± 2.6"]
    assert [row[-3:] for row in table.rows] == [["200", "2.5", "1.5"], ["–", "–", "1.0"]]
    with pytest.raises(ValueError, match="no result of 'finetuning'"):
        module.comparison_table(slow)


def test_differences_are_of_pairs_with_the_interval_of_a_paired_t_test(make_row):
    first, second = make_row("er", [[50, 52], [54, 56]]), make_row("ewc", [[40, 41], [42, 43]])
    assert module.paired_differences(first, second[::-1]) == {"data": [10, 11], "shuffled-1": [12, 13]}
    table = module.paired_table([*first, *second], ["er"], ["ewc"])
    assert table.rows[0][:3] == ["ER − EWC", "4", "+11.5"]
    assert table.rows[0][4:] == ["10.5 ± 0.7", "12.5 ± 0.7"]
    assert table.header[4:] == ["order data", "order shuffled-1"]
    with pytest.raises(ValueError, match="different seeds or class orders"):
        module.paired_differences(first, second[1:])
    a, b = [50.0, 52.0, 54.0, 56.0], [40.0, 43.0, 41.0, 44.0]
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    differences = [x - y for x, y in zip(a, b, strict=True)]
    assert module.confidence_interval(differences) == pytest.approx((expected.low, expected.high))
    assert module.confidence_interval([1.0]) == (-math.inf, math.inf)
    assert module.confidence_interval([1.0] * 3) == (1.0, 1.0)
