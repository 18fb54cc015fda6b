"""The time and the disk that a run will need, against a clock that is set by hand."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from avalanche_agcn.experiments import recorder
from avalanche_agcn.experiments.recorder import MEASURED, WARM_UP, EstimatePlugin
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings


def messages(tmp_path, seconds_per_batch, n_batches=1000, n_evaluated=2400):
    """What is logged if batches of 8 images take so long."""
    readings = iter([100.0, 100.0 + MEASURED * seconds_per_batch])
    logged = []
    plugin = EstimatePlugin(n_batches, n_evaluated, tmp_path, logged.append, clock=lambda: next(readings))
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(model.parameters())
    strategy = SimpleNamespace(model=model, optimizer=optimizer, plugins=[], train_mb_size=8)
    for _ in range(WARM_UP + MEASURED + 5):
        plugin.after_training_iteration(strategy)
    return logged


def test_a_long_run_is_announced_once_with_its_time_and_disk(tmp_path):
    (line,) = messages(tmp_path, seconds_per_batch=6.0)
    # (1000 − 13 batches + 2400 / 8 / 3 batches' worth of evaluation) · 6 s = 109 min; 2 · 4.004 MB of weights
    assert line == f"about 109 minutes for 1000 batches and the evaluations, and 8 MB of disk in {tmp_path}"


def test_a_short_run_is_not_announced(tmp_path):
    assert messages(tmp_path, seconds_per_batch=0.01) == []


def test_a_disk_that_is_too_full_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3e6))
    (line,) = messages(tmp_path, seconds_per_batch=6.0)
    assert line.endswith("of which only 3 MB are free")


@pytest.mark.parametrize("method", ["finetuning", "multitask"])
def test_a_run_counts_its_batches_and_evaluations(tmp_path, method, monkeypatch):
    settings = make_settings("scenes", SMOKE, method=method, train_epochs=2)
    run = Run(settings, tmp_path, log=lambda text: None)
    sizes = [len(experience.dataset) for experience in run.benchmark.test_stream]
    expected = sum(sizes) if method == "multitask" else 2 * sizes[0] + sizes[1]
    n_batches, n_evaluated = run._count_what_is_left()
    assert n_evaluated == expected
    steps = []
    monkeypatch.setattr(
        recorder.EstimatePlugin, "after_training_iteration", lambda *args, **kwargs: steps.append(1)
    )
    run.run()
    assert len(steps) == n_batches
