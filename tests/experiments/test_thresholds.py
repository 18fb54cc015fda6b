"""Thresholds and calibrated probabilities of runs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_agcn.experiments.results import read_results
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.experiments.thresholds import calibrate_run, counted_shares
from avalanche_agcn.models import load_model

PHOTOS = Path(__file__).parents[3] / "shared/data/coco18"
SCENES = {**SMOKE, "n_train": 120, "n_test": 60, "limit": None}


def make_run(out, method="finetuning", **settings):
    options = {"method": method, "cache": str(out / "cache"), "freeze_backbone": True, **settings}
    return Run(make_settings("scenes", SCENES, **options), out, log=lambda text: None)


@pytest.mark.parametrize("method", ["finetuning", "streaming_ridge", "multitask", "l3a"])
def test_results_page_and_model_have_the_same_thresholds_and_no_random_number_is_drawn(tmp_path, method):
    run = make_run(tmp_path, method)
    results = run.run()
    model = load_model(run.folder)
    assert model.thresholds == results.thresholds == run.recorder.thresholds()
    assert read_results(run.folder / "results.json").reliability == results.reliability
    before = torch.get_rng_state()
    again = calibrate_run(run.strategy, run.benchmark, 2).logits
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(again.thresholds, run.recorder.calibration.thresholds)


def test_images_held_out_for_thresholds_are_neither_trained_nor_tested_on(tmp_path):
    run = make_run(tmp_path, calibration_size=0.25)
    whole = make_run(tmp_path / "b")
    held_out = run.benchmark.plan.evaluation["valid"].positions
    n_held_out = sum(map(len, held_out))
    trained = torch.cat(list(run.benchmark.plan.train.positions))
    assert n_held_out > 0
    assert not set(trained.tolist()) & set(torch.cat(list(held_out)).tolist())
    n_whole = sum(map(len, whole.benchmark.plan.train.positions))
    assert len(trained) + n_held_out == n_whole
    results = run.run()
    assert list(results.n_images) == ["train", "test"]
    with pytest.raises(ValueError, match=r"calibration_size=0.2 does not fit to validation_size=0.1.*leave"):
        make_settings("scenes", calibration_size=0.2, validation_size=0.1)


def test_shares_are_counted_over_the_train_images_of_the_experiences_so_far(tmp_path):
    plan = make_run(tmp_path).benchmark.plan
    first = plan.train.labels[plan.train.positions[0]].double().mean(0)
    torch.testing.assert_close(counted_shares(plan, 1), first)


def test_mean_probabilities_are_near_the_shares_on_drawn_scenes(tmp_path):
    settings = make_settings(
        "scenes", {**SCENES, "n_train": 600, "n_test": 400}, method="streaming_ridge", freeze_backbone=True,
        cache=str(tmp_path / "cache"),
    )  # fmt: skip
    results = Run(settings, tmp_path, log=lambda text: None).run()
    predicted = np.array(results.reliability["class_probability"])
    shares = np.array(results.reliability["class_share"])
    assert np.abs(predicted - shares).mean() < 8  # points; the test images of a stream are not those of all
    found = 100 * np.array(results.decisions["chosen_found"]) / sum(results.n_images["test"])
    assert (found < 99).all()


COCO = PHOTOS.parent / "coco2014"
SOURCES = {"coco18": (PHOTOS, "train2014"), "coco2014": (COCO, "val2014")}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_of_unseen_photos_are_as_frequent_as_they_should_be(tmp_path, studies, source, seed):
    root, split = SOURCES[source]
    if not root.is_dir():
        pytest.skip(f"needs the photos of {source}")
    rows = studies.thresholds.measure(tmp_path, root, split, seed)
    assert [row["method"] for row in rows] == ["streaming_ridge", "agcn-statistics"]
    for row in rows:
        assert row["share_difference"] <= 5
        assert row["f1"] >= row["f1_one_threshold"]
        assert row["strange_without_labels"] >= 2
