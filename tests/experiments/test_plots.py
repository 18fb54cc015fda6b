import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from avalanche_agcn.experiments.plots import (
    N_PICTURES,
    PictureScores,
    choose_pictures,
    class_precision,
    correlation,
    curves,
    describe_stream,
    open_picture,
    pictures,
)
from avalanche_agcn.experiments.results import METRICS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings

NAMES = ["person", "bicycle", "car", "motorcycle", "airplane"]
SIZES = [2, 1, 3]


@pytest.fixture
def make(make_result):
    """A function that makes results of five classes in experiences of three and two."""

    def make(method="agcn", seed=0, **changes):
        rows = [[], [70.0, 60.0]] if method == "multitask" else [[80.0 + seed], [60.0, 50.0]]
        precision = dict(zip(NAMES, (40.0 + seed, None, 0.0, 100.0, 5.0), strict=True))
        content = {
            "benchmark": "SplitCOCO",
            "class_names": NAMES,
            "classes_per_experience": [3, 2],
            "nested": dict.fromkeys(METRICS, rows),
            "per_class_ap": precision,
            "acm": np.eye(5).tolist(),
        }
        return make_result(method, seed, **content | changes)

    return make


def test_a_method_looks_the_same_whatever_it_is_compared_with(make):
    alone = curves([make("er")]).axes[0].lines[0]
    among = curves([make("ewc"), make("er"), make("agcn")]).axes[0].lines[1]
    for line in (alone, among):
        assert (line.get_color(), line.get_marker()) == ("#009E73", "^")
        assert line.get_label() == "ER"


def test_multi_task_is_a_dashed_line_across_the_curves_of_others(make):
    curve, level = curves([make("agcn", seed=0), make("agcn", seed=2), make("multitask")]).axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), [81, 50])
    np.testing.assert_allclose(level.get_ydata(), [60, 60])
    assert (level.get_label(), level.get_linestyle()) == ("Multi-Task", "--")


def test_ap_of_a_class_is_the_mean_over_seeds(make):
    figure = class_precision([make(seed=0), make(seed=2), make("ewc")])
    cells = {tuple(text.get_position()): text.get_text() for text in figure.axes[0].texts}
    assert [cells[1, row] for row in range(5)] == ["41", "–", "0", "100", "5"]
    assert cells[0, 0] == "40"


def test_borders_are_those_of_unequal_experiences(make):
    for figure in (correlation(make()), class_precision([make()])):
        assert {float(line.get_ydata()[0]) for line in figure.axes[0].lines if line.get_xdata()[0] == 0} == {
            2.5
        }


def test_titles_say_what_the_plots_are_of(make):
    assert describe_stream(make()) == "SplitCOCO: 5 classes in 2 experiences"
    part = make(settings={"limit": 60, "validation_size": 0.1})
    assert describe_stream(part).endswith("\nat most 60 images per experience, on 10% of the train images")
    scenes = make(benchmark="SplitScenes")
    expected = "SplitScenes (drawn scenes): 5 classes in 2 experiences"
    assert describe_stream(scenes) == expected
    assert curves([scenes]).axes[0].get_title() == expected
    assert class_precision([scenes])._suptitle.get_text().startswith(expected)
    assert correlation(scenes)._suptitle.get_text() == expected


def test_true_cooccurrence_is_shown_for_drawn_scenes_only(make):
    titles = [axes.get_title() for axes in correlation(make(benchmark="SplitScenes")).axes]
    assert titles[:2] == ["ACM of AGCN", "true co-occurrence"]
    assert "true co-occurrence" not in [axes.get_title() for axes in correlation(make()).axes]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=12), st.integers(1, 5))
def test_pictures_with_labels_of_the_most_experiences_are_chosen(rows, n):
    targets = torch.tensor(rows, dtype=torch.float32)
    chosen = choose_pictures(targets, SIZES, n)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(n, len({tuple(row) for row in rows}))  # no two with the same labels
    assert len({tuple(rows[k]) for k in chosen}) == len(chosen)

    def merit(k):
        experiences = sum(any(block) for block in (rows[k][:2], rows[k][2:3], rows[k][3:]))
        return experiences, sum(rows[k])

    taken = {tuple(rows[k]) for k in chosen}
    for k, row in enumerate(rows):
        if tuple(row) in taken:
            assert min(i for i in chosen if rows[i] == row) <= k  # the first of its kind
        else:
            assert merit(k) <= min(merit(i) for i in chosen)


@pytest.fixture(scope="module", params=["finetuning", "agcn", "multitask"])
def run(request, tmp_path_factory):
    """A run that has ended, and its results."""
    # Pictures are in several batches, and not all images are evaluated.
    settings = make_settings("scenes", SMOKE, method=request.param, eval_mb_size=3)
    run = Run(settings, tmp_path_factory.mktemp("run"), log=lambda text: None)
    return run, run.run()


def test_probabilities_are_those_of_the_network(run):
    run, results = run
    kept = results.pictures
    assert 1 < len(kept) <= N_PICTURES
    dataset = run.benchmark.test_stream[0].dataset
    run.strategy.model.eval()
    for picture, position in zip(kept, run.pictures.positions, strict=True):
        image, target, *_ = dataset[position]
        with torch.no_grad():
            expected = 100 * run.strategy.model(image[None])[0].sigmoid()
        np.testing.assert_allclose(picture["probabilities"][-1], expected, atol=0.006)
        shown = [run.benchmark.class_names[c] for c in target.nonzero()]
        assert picture["labels"] == shown


def test_a_row_has_the_classes_seen_by_then(run):
    run, results = run
    widths = {tuple(len(row) for row in picture["probabilities"]) for picture in results.pictures}
    assert widths == {(0, 4) if run.settings.method == "multitask" else (2, 4)}
    if run.settings.method != "multitask":
        assert results.pictures[0]["probabilities"][0] != results.pictures[0]["probabilities"][1][:2]


def test_a_scene_drawn_again_is_the_one_that_was_evaluated(run):
    run, results = run
    dataset = run.benchmark.test_stream[0].dataset.remove_current_transform_group()
    stored = json.loads((run.folder / "results.json").read_text())["pictures"]
    for picture, position in zip(stored, run.pictures.positions, strict=True):
        drawn = open_picture(results, picture)
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(dataset[position][0]))


@pytest.mark.parametrize("validation_size", [0.0, 0.3])
def test_scenes_held_out_of_training_are_drawn_again_too(tmp_path, validation_size):
    changes = {"limit": None, "validation_size": validation_size}
    settings = make_settings("scenes", SMOKE, method="finetuning", **changes)
    run = Run(settings, tmp_path, log=lambda text: None)
    results = run.run()
    stream = run.benchmark.valid_stream if validation_size else run.benchmark.test_stream
    dataset = stream[0].dataset.remove_current_transform_group()
    for picture, position in zip(results.pictures, run.pictures.positions, strict=True):
        drawn = open_picture(results, picture)
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(dataset[position][0]))


def test_scenes_that_are_drawn_differently_now_are_named(run):
    _, results = run
    picture = results.pictures[0] | {"labels": ["cat"]}
    with pytest.raises(ValueError, match=r"showed \['cat'\] in the run.*run it again"):
        open_picture(results, picture)


def test_what_was_kept_survives_being_saved(run):
    run, _ = run
    again = PictureScores(run.benchmark)
    again.load_state_dict(run.pictures.state_dict())
    assert again.as_results() == run.pictures.as_results()
    assert PictureScores(run.benchmark).as_results()[0]["probabilities"] == []


def test_a_first_experience_without_test_images_has_no_pictures(run):
    run, _ = run
    benchmark = run.benchmark
    nothing = benchmark.test_stream[0].dataset.subset([])
    assert choose_pictures(nothing.targets[:], benchmark.classes_per_experience, 6) == []


def make_coco(root):
    """COCO's folders with eight photos of a cat, a dog or both for training, and as many for testing."""
    names = ["cat", "dog"]
    shown = [["cat"], ["dog"], ["cat", "dog"], ["dog"]] * 2
    (root / "annotations").mkdir(parents=True)
    for k, subset in enumerate(("train2014", "val2014")):
        (root / subset).mkdir()
        files = [f"COCO_{subset}_{i:012}.jpg" for i in range(len(shown))]
        for i, file in enumerate(files):
            Image.new("RGB", (20, 16), (20 * i, 100 * k, 0)).save(root / subset / file, "png")
        content = {
            "images": [{"id": i, "file_name": file} for i, file in enumerate(files)],
            "categories": [{"id": c, "name": name} for c, name in enumerate(names)],
            "annotations": [
                {"id": 2 * i + c, "image_id": i, "category_id": c, "iscrowd": 0, "bbox": [0, 0, 1, 1]}
                for i, labels in enumerate(shown)
                for c, name in enumerate(names)
                if name in labels
            ],
        }
        (root / "annotations" / f"instances_{subset}.json").write_text(json.dumps(content))
    return root


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_photos_are_opened_where_the_data_is(tmp_path):
    root = make_coco(tmp_path / "coco")
    few = {"n_classes": 2, "n_experiences": 2, "image_size": 32, "train_mb_size": 2}
    settings = make_settings("coco", dataset_root=str(root), method="finetuning", backbone="small", **few)
    results = Run(settings, tmp_path / "out", log=lambda text: None).run()
    assert [picture["image"] for picture in results.pictures] == [
        f"val2014/COCO_val2014_{i:012}.jpg"
        for i in (0, 2)  # one of a cat, one of both
    ]
    assert open_picture(results, results.pictures[1]).getpixel((0, 0)) == (40, 100, 0)
    assert len(pictures(results).axes) == 2 * 3
