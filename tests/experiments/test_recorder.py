"""What runs record of their evaluations for reports, and the time and disk that they expect to need."""

import json
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation.functional import f1_from_counts
from avalanche_agcn.experiments import recorder
from avalanche_agcn.experiments.plots import open_picture
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings

SIZES = [2, 1, 3]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=12), st.integers(1, 5))
def test_pictures_with_labels_of_the_most_experiences_are_chosen(rows, n):
    def merit(k):
        blocks = (rows[k][:2], rows[k][2:3], rows[k][3:])
        return sum(map(any, blocks)), sum(rows[k]), -k

    first = {tuple(rows[k]): k for k in reversed(range(len(rows)))}  # of all pictures with the same labels
    expected = sorted(first.values(), key=merit)[-n:]
    targets = torch.tensor(rows, dtype=torch.float32)
    assert recorder.choose_pictures(targets, SIZES, n) == sorted(expected)


@pytest.fixture(scope="module", params=["finetuning", "agcn", "multitask"])
def run(request, tmp_path_factory):
    """A run that has ended, and its results."""
    # Pictures are in several batches, and not all images are evaluated.
    settings = make_settings("scenes", SMOKE, method=request.param, eval_mb_size=3)
    run = Run(settings, tmp_path_factory.mktemp("run"), log=lambda text: None)
    return run, run.run()


def outputs_of(run):
    """Probabilities and labels of all test images, by the model itself."""
    run.strategy.model.eval()
    images, targets = zip(*[row[:2] for exp in run.benchmark.test_stream for row in exp.dataset], strict=True)
    with torch.no_grad():
        return run.strategy.model(torch.stack(images)).double().sigmoid(), torch.stack(targets).bool()


def test_probabilities_are_those_of_the_network_for_the_classes_seen_by_then(run):
    run, results = run
    scores, labels = outputs_of(run)
    assert 1 < len(results.pictures) <= recorder.N_PICTURES
    for picture, position in zip(results.pictures, run.recorder.positions, strict=True):  # of experience 0
        first, last = picture["probabilities"]
        np.testing.assert_allclose(last, 100 * scores[position], atol=0.006)
        assert picture["labels"] == [run.benchmark.class_names[c] for c in labels[position].nonzero()]
        assert len(first) == (0 if run.settings.method == "multitask" else 2)
        assert first != last[:2]


def test_labels_are_counted_at_each_threshold_and_give_the_f1_of_the_scores(run):
    run, results = run
    scores, labels = outputs_of(run)
    decisions = results.decisions
    assert decisions["true"] == labels.sum(0).tolist()
    for k, p in enumerate(decisions["thresholds"]):
        clear = (scores - p).abs().amin(0) > 1e-6  # of another batch size, so not equal to the last bit
        found = (scores >= p).sum(0)
        assert torch.equal(torch.tensor(decisions["found"][k])[clear], found[clear])
    at = decisions["thresholds"].index(0.5)
    counts = [decisions["right"][at], decisions["found"][at], decisions["true"], [1] * 4]
    f1 = f1_from_counts(np.array(counts))
    for metric in ("CF1", "OF1"):
        assert results.nested[metric][-1][-1] == pytest.approx(100 * getattr(f1, metric))


def test_rows_of_class_ap_have_the_mean_of_the_scores(run):
    _, results = run
    assert len(results.class_ap) == len(results.nested["mAP"])
    for row, nested in zip(results.class_ap, results.nested["mAP"], strict=True):
        assert bool(row) == bool(nested)
        if row:
            known = [value for value in row if value is not None]
            assert np.mean(known) == pytest.approx(nested[-1], abs=0.01)
    assert results.class_ap[-1] == pytest.approx(list(results.per_class_ap.values()), abs=0.01)


def test_the_worst_pictures_of_a_class_are_the_most_wrong_ones(run):
    run, results = run
    scores, labels = outputs_of(run)
    positions = torch.cat(list(run.benchmark.plan.evaluation["test"].positions)).tolist()
    for c, name in enumerate(results.class_names):
        missed = scores[labels[:, c], c].sort().values[: recorder.N_WORST]
        wrong = scores[~labels[:, c], c].sort(descending=True).values[: recorder.N_WORST]
        for error, expected in (("missed", missed), ("wrong", wrong)):
            kept = [one for one in results.worst if (one["class"], one["error"]) == (name, error)]
            assert [one["probability"] for one in kept] == pytest.approx(100 * expected, abs=0.006)
            for one in kept:
                row = positions.index(one["image"])
                assert one["labels"] == [results.class_names[k] for k in labels[row].nonzero()]
                assert 100 * scores[row, c] == pytest.approx(one["probability"], abs=0.006)
                open_picture(results, one)  # raises if it shows something else


def test_images_of_each_experience_are_counted(run):
    run, results = run
    for name, stream in (("train", run.benchmark.train_stream), ("test", run.benchmark.test_stream)):
        assert results.n_images[name] == [len(experience.dataset) for experience in stream]


@pytest.mark.parametrize("validation_size", [0.0, 0.3])
def test_a_scene_drawn_again_is_the_one_that_was_evaluated(tmp_path, validation_size):
    changes = {"limit": None, "validation_size": validation_size}
    settings = make_settings("scenes", SMOKE, method="finetuning", **changes)
    run = Run(settings, tmp_path, log=lambda text: None)
    results = run.run()
    stream = run.benchmark.valid_stream if validation_size else run.benchmark.test_stream
    dataset = stream[0].dataset.remove_current_transform_group()
    stored = json.loads((run.folder / "results.json").read_text())["pictures"]
    for picture, position in zip(stored, run.recorder.positions, strict=True):
        drawn = open_picture(results, picture)
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(dataset[position][0]))


def test_scenes_that_are_drawn_differently_now_are_named(run):
    _, results = run
    picture = results.pictures[0] | {"labels": ["cat"]}
    with pytest.raises(ValueError, match=r"showed \['cat'\] in the run.*run it again"):
        open_picture(results, picture)


def test_what_was_kept_survives_being_saved(run):
    run, _ = run
    again = recorder.EvaluationRecorder(run.benchmark)
    again.load_state_dict(run.recorder.state_dict())
    assert again.as_results() == run.recorder.as_results()
    assert recorder.EvaluationRecorder(run.benchmark).as_results()["pictures"][0]["probabilities"] == []


def test_a_first_experience_without_test_images_has_no_pictures():
    assert recorder.choose_pictures(torch.zeros(0, 6), SIZES, 6) == []


def estimates(tmp_path, monkeypatch, seconds_per_batch):
    """What is logged before 1000 batches of 8 images and 2400 evaluated ones, if batches take so long."""
    readings = iter([100.0, 100.0 + recorder.MEASURED * seconds_per_batch])
    logged = []
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    plugin = recorder.EstimatePlugin(1000, 2400, tmp_path, logged.append)
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(model.parameters())
    strategy = SimpleNamespace(model=model, optimizer=optimizer, plugins=[], train_mb_size=8)
    for _ in range(recorder.WARM_UP + recorder.MEASURED + 5):
        plugin.after_training_iteration(strategy)
    return logged


def test_a_long_run_is_announced_once_with_its_time_and_disk(tmp_path, monkeypatch):
    assert estimates(tmp_path, monkeypatch, seconds_per_batch=0.01) == []
    # (1000 − 13 batches + 2400 / 8 / 3 batches' worth of evaluation) · 6 s = 109 min; 2 · 4.004 MB of weights
    line = f"about 109 minutes for 1000 batches and the evaluations, and 8 MB of disk in {tmp_path}"
    assert estimates(tmp_path, monkeypatch, seconds_per_batch=6.0) == [line]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3e6))
    assert estimates(tmp_path, monkeypatch, seconds_per_batch=6.0) == [f"{line}, of which only 3 MB are free"]


@pytest.mark.parametrize("method", ["finetuning", "multitask"])
def test_a_run_counts_its_batches_and_evaluations(tmp_path, method, monkeypatch):
    settings = make_settings("scenes", SMOKE, method=method, train_epochs=2)
    run = Run(settings, tmp_path, log=lambda text: None)
    sizes = [len(experience.dataset) for experience in run.benchmark.test_stream]
    n_batches, n_evaluated = run._count_remaining()
    assert n_evaluated == (sum(sizes) if method == "multitask" else 2 * sizes[0] + sizes[1])
    steps = []
    monkeypatch.setattr(recorder.EstimatePlugin, "after_training_iteration", lambda *_, **__: steps.append(1))
    run.run()
    assert len(steps) == n_batches
