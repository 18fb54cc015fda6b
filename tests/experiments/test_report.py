"""Reports and pages from stored results."""

from functools import partial

import pytest

from avalanche_agcn.__main__ import main as command
from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.methods import ABLATIONS
from avalanche_agcn.experiments.report import Part, fill_in, write_page
from avalanche_agcn.experiments.results import METRICS, mean_and_deviation
from avalanche_agcn.experiments.settings import SMOKE, change_settings, make_settings
from avalanche_agcn.experiments.tables import table_1


def main(options):
    return command(["report", *options])


@pytest.fixture
def store(tmp_path, make_result):
    """A function that stores a results.json as a run leaves it."""

    def write(label="agcn", benchmark="scenes", class_order=None, **changes):
        given = {"dataset_root": None if benchmark == "scenes" else "absent", "label": label}
        given |= {"class_order": class_order}
        settings = make_settings(benchmark, SMOKE, **given)
        if label in ABLATIONS:
            settings = change_settings(settings, **ABLATIONS[label].changes(settings.method_settings))
        name = {"scenes": "SplitScenes", "coco": "SplitCOCO"}[benchmark]
        result = make_result(benchmark=name, settings=settings.as_dict(), **changes)
        result.write(tmp_path / "runs" / result.name / "results.json")
        return tmp_path / "runs"

    return write


def a_scene():
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=64, n_test=32, image_size=32)
    labels = scenes.test_stream[0].dataset.targets[0].nonzero().flatten()
    return int(scenes.plan.evaluation["test"].positions[0][0]), [scenes.class_names[c] for c in labels]


def written(folder):
    return {path.name for path in folder.iterdir()}


def test_ablations_leave_the_papers_tables_and_plots_apart(store, tmp_path, capsys):
    for label in ("agcn", *ABLATIONS):
        runs = store(label)
    assert main([str(runs), "--out", str(tmp_path / "out")]) == 0
    tables = {f"table{kind}-SplitScenes" for kind in ("", "-2", "-3", "-variants")}
    files = {f"{table}.{form}" for table in tables for form in ("md", "csv", "tex")}
    drawn = {f"SplitScenes-{name}{of}.png" for name in ("mAP", "classes") for of in ("", "-variants")}
    assert written(tmp_path / "out") == files | drawn | {"report.html", "classes-SplitScenes.csv"}
    output = capsys.readouterr().out
    for table in tables:
        assert (tmp_path / "out" / f"{table}.md").read_text() in output
    assert "| √ | × | 1 | 50.0 |" in (tmp_path / "out" / "table-2-SplitScenes.md").read_text()


def test_only_the_named_plots_are_drawn(store, tmp_path):
    image, labels = a_scene()
    picture = {"image": image, "labels": labels, "probabilities": [[90.0, 1.0], [80.0, 2.0, 71.0, 3.0]]}
    runs = store(pictures=[picture])
    assert main([str(runs), "--out", str(tmp_path / "out"), "--only", "mAP", "pictures-agcn"]) == 0
    assert written(tmp_path / "out") == {"SplitScenes-mAP.png", "SplitScenes-pictures-agcn.png"}


def test_streams_of_one_benchmark_have_tables_of_their_own(store, tmp_path, capsys):
    store("er")
    runs = store("agcn", class_order="shuffled-1")
    assert main([str(runs), "--out", str(tmp_path / "out")]) == 0
    for order, name in {"data": "ER", "shuffled-1": "AGCN"}.items():
        table = (tmp_path / "out" / f"table-SplitScenes-order-{order}.md").read_text()
        assert (table.count("\n"), f"| {name} | 1 |" in table) == (3, True)
    assert "SplitScenes, order shuffled-1, Table 1" in capsys.readouterr().out


def test_what_is_not_there_is_named(store, tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert f"no results.json below {tmp_path}" in capsys.readouterr().err
    assert main([str(store()), str(tmp_path / "misspelt")]) == 1
    assert f"there is no folder {tmp_path / 'misspelt'}" in capsys.readouterr().err
    assert main([str(store()), "--only", "map"]) == 1
    assert "no plot ['map']; there are ['classes', 'mAP']" in capsys.readouterr().err


def test_photos_that_are_gone_leave_the_rest_of_the_report(store, tmp_path, capsys):
    shown = {"image": "1.jpg", "labels": ["car"], "probabilities": [[90.0, 1.0], [9.0, 2.0, 7.0, 3.0]]}
    assert main([str(store(benchmark="coco", pictures=[shown])), "--out", str(tmp_path / "out")]) == 0
    left_out = "SplitCOCO-pictures-agcn.png is left out: There is no image absent/1.jpg"
    assert left_out in capsys.readouterr().out
    assert "SplitCOCO-mAP.png" in written(tmp_path / "out")
    assert "SplitCOCO-pictures-agcn.png" not in written(tmp_path / "out")


def test_names_of_files_are_those_of_folders(store, tmp_path):
    runs = store("a/b: λ", acm=[[1.0] * 4] * 4)
    assert main([str(runs), "--out", str(tmp_path / "out"), "--only", "acm-a-b-"]) == 0
    assert written(tmp_path / "out") == {"SplitScenes-acm-a-b-.png"}


@pytest.fixture
def results(make_result):
    """Two seeds of three rows, one of which is evaluated at the end only."""
    at_once = {"nested": {metric: [[], [60.0, 50.0]] for metric in METRICS}}
    own = {"multitask": at_once, "er + negatives": {}, "agcn": {"acm": [[1.0] * 4] * 4}}
    return [
        make_result(label.split(" ")[0], seed, 50.0 + seed, settings={"label": label}, **changes)
        for label, changes in own.items()
        for seed in (0, 1)
    ]


def test_a_page_has_words_tables_and_plots(results, tmp_path):
    text = '# Results\n\nIt is {{ frozen["agcn"].mAP.last }}.\n'
    page = tmp_path / "docs" / "RESULTS.md"
    drawn = {"mAP: after each experience": partial(plots.curves, results)}
    part = Part("Network frozen", results, {"All methods": table_1(results)}, drawn)
    for name in ("RESULTS.md", "again.md"):
        write_page(page.with_name(name), text, {"frozen": part}, figures=tmp_path / "plots", name="small")
    content = page.read_text()
    assert content == page.with_name("again.md").read_text()
    score = mean_and_deviation([50.0, 51.0])
    assert content.startswith(f"# Results\n\nIt is {score}.\n\n## Network frozen\n\n### All methods\n")
    assert "| ER + negatives | 2 | 50.5 ±" in content
    assert written(tmp_path / "plots") == {"small-frozen-mAP.png"}
    assert "![mAP: after each experience](../plots/small-frozen-mAP.png)" in content


def test_scores_in_the_text_are_those_of_the_results(results):
    text = fill_in('It has {{ a["er + negatives"].CF1.forgetting_absolute }} there.', {"a": results})
    assert text == "It has 20.0 ± 0.0 there."


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ('whole["agcn"].mAP.last', "whole"),
        ('frozen["gone"].mAP.last', "gone"),
        ('frozen["agcn"].mAP.lost', "lost"),
        ('frozen["multitask"].mAP.forgetting_absolute', "forgetting_absolute"),
    ],
)
def test_a_score_that_is_not_there_is_named(results, name, reason):
    with pytest.raises(ValueError, match=f"a score that is not there: .*{reason}"):
        fill_in(f"{{{{ {name} }}}}", {"frozen": results})
