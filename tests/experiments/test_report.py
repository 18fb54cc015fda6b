"""Reports from stored results, without a run."""

import json

import pytest

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments.ablations import VARIANTS
from avalanche_agcn.experiments.report import main
from avalanche_agcn.experiments.settings import SMOKE, make_settings

NAMES = ["person", "bicycle", "car", "motorcycle"]


@pytest.fixture
def store(tmp_path):
    """A function that stores a results.json as a run leaves it."""

    def write(label="agcn", benchmark="scenes", **changes):
        settings = make_settings(benchmark, **SMOKE, data=None if benchmark == "scenes" else "absent")
        content = {
            "benchmark": {"scenes": "SplitScenes", "coco": "SplitCOCO"}[benchmark],
            "method": "agcn",
            "seed": 0,
            "settings": settings.as_dict() | {"label": label},
            "class_names": NAMES,
            "nested": {metric: [[80.0], [60.0, 50.0]] for metric in ("mAP", "CF1", "OF1")},
            "per_class_ap": dict.fromkeys(NAMES, 50.0),
            "seconds": {"train": 1.0, "eval": 2.0, "total": 3.0},
            "environment": {},
        }
        path = tmp_path / "runs" / f"{benchmark}-{label}".replace("/", "-") / "results.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content | changes))
        return tmp_path / "runs"

    return write


def a_scene():
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=64, n_test=32, image_size=32)
    labels = scenes.test_stream[0].dataset.targets[0].nonzero().flatten()
    return int(scenes.plan.evaluation["test"].positions[0][0]), [NAMES[c] for c in labels]


def written(folder):
    return {path.name for path in folder.iterdir()}


def test_ablations_leave_the_papers_tables_and_figures_apart(store, tmp_path, capsys):
    for label in VARIANTS:
        runs = store(label)
    assert main([str(runs), "--out", str(tmp_path / "out")]) == 0
    tables = {f"table{kind}-SplitScenes" for kind in ("", "-2", "-3", "-variants")}
    files = {f"{table}.{form}" for table in tables for form in ("md", "csv", "tex")}
    figures = {f"SplitScenes-{name}{of}.png" for name in ("mAP", "classes") for of in ("", "-variants")}
    assert written(tmp_path / "out") == files | figures
    output = capsys.readouterr().out
    for table in tables:
        assert (tmp_path / "out" / f"{table}.md").read_text() in output
    assert "| √ | × | 1 | 50.0 |" in (tmp_path / "out" / "table-2-SplitScenes.md").read_text()


def test_only_the_named_figures_are_drawn(store, tmp_path):
    image, labels = a_scene()
    picture = {"image": image, "labels": labels, "probabilities": [[90.0, 1.0], [80.0, 2.0, 71.0, 3.0]]}
    runs = store(pictures=[picture])
    assert main([str(runs), "--out", str(tmp_path / "out"), "--only", "mAP", "pictures-agcn"]) == 0
    assert written(tmp_path / "out") == {"SplitScenes-mAP.png", "SplitScenes-pictures-agcn.png"}


def test_a_figure_that_is_not_known_is_named(store, tmp_path, capsys):
    runs = store()
    with pytest.raises(SystemExit):
        main([str(runs), "--only", "map"])
    assert "no figure ['map']; there are ['classes', 'mAP']" in capsys.readouterr().err


def test_photos_that_are_gone_leave_the_rest_of_the_report(store, tmp_path, capsys):
    picture = {
        "image": "val2014/1.jpg",
        "labels": ["car"],
        "probabilities": [[90.0, 1.0], [9.0, 2.0, 7.0, 3.0]],
    }
    runs = store(benchmark="coco", pictures=[picture])
    assert main([str(runs), "--out", str(tmp_path / "out")]) == 0
    assert (
        "SplitCOCO-pictures-agcn.png is left out: There is no image absent/val2014/1.jpg"
        in capsys.readouterr().out
    )
    assert "SplitCOCO-mAP.png" in written(tmp_path / "out")
    assert "SplitCOCO-pictures-agcn.png" not in written(tmp_path / "out")


def test_names_of_files_are_those_of_folders(store, tmp_path):
    runs = store("a/b: c", acm=[[1.0] * 4] * 4)
    assert main([str(runs), "--out", str(tmp_path / "out"), "--only", "acm-a-b-c"]) == 0
    assert written(tmp_path / "out") == {"SplitScenes-acm-a-b-c.png"}
