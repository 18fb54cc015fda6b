import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import STATE_FILE, Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.experiments.state import load_state, save_state

ROOT = Path(__file__).parents[2]


def smoke(**changes):
    return make_settings("scenes", **{**SMOKE, **changes})


def figures(results):
    return results.nested, results.per_class_ap, results.acm, results.pictures


def run_to_end(settings, out, **options):
    return Run(settings, out, say=lambda text: None, **options).go()


class Killed(Exception):
    """Stands for a process that ends at once."""


def stop_at(monkeypatch, moment):
    """Let the ``moment``-th saving of a run be its last deed."""
    from avalanche_agcn.experiments import run

    saved = 0
    save_state = run.save_state

    def save_and_stop(path, state):
        nonlocal saved
        save_state(path, state)
        saved += 1
        if saved == moment:
            raise Killed

    monkeypatch.setattr(run, "save_state", save_and_stop)


def stop_and_resume(settings, out, monkeypatch, moment):
    with monkeypatch.context() as patch:
        stop_at(patch, moment)
        with pytest.raises(Killed):
            run_to_end(settings, out)
    saved = load_state(out / settings.name / STATE_FILE)["position"]
    assert saved["experience"] or saved["trained"] or saved["within"]
    resumed = Run(settings, out, resume=True, say=lambda text: None)
    position = {"experience": resumed.experience, "trained": resumed.trained, "within": resumed._within}
    assert {name: str(value) for name, value in position.items()} == {n: str(v) for n, v in saved.items()}
    return resumed.go()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results of uninterrupted runs, each made once."""
    made = {}

    def results(settings):
        if settings not in made:
            made[settings] = run_to_end(settings, tmp_path_factory.mktemp("whole"))
        return made[settings]

    return results


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_its_seed_fixes_the_figures(tmp_path, method, whole):
    first = whole(smoke(method=method))
    assert [len(row) for row in first.nested["mAP"]] == ([0, 2] if method == "multitask" else [1, 2])
    assert figures(run_to_end(smoke(method=method), tmp_path)) == figures(first)
    assert figures(run_to_end(smoke(method=method, seed=1), tmp_path)) != figures(first)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", [2, 5])  # within the first experience, within the second or in evaluation
def test_a_stopped_run_ends_in_the_same_figures(tmp_path, monkeypatch, method, moment, whole):
    settings = smoke(method=method, checkpoint_minutes=0.0)
    assert figures(stop_and_resume(settings, tmp_path, monkeypatch, moment)) == figures(whole(settings))


@pytest.mark.parametrize("moment", [1, 4, 6, 9])
def test_a_run_stopped_in_any_epoch_ends_in_the_same_figures(tmp_path, monkeypatch, moment, whole):
    settings = smoke(checkpoint_minutes=0.0, epochs=2, memory_kind="prs", negatives_of_newer=True)
    assert figures(stop_and_resume(settings, tmp_path, monkeypatch, moment)) == figures(whole(settings))


def test_other_settings_are_refused_with_the_difference(tmp_path):
    run_to_end(smoke(method="finetuning"), tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(lr: 0.001, now 0.01\).*another --out"):
        Run(smoke(method="finetuning", lr=0.01), tmp_path, resume=True, say=lambda text: None)


@pytest.mark.parametrize("content", [b"", b"something else", None])
def test_a_damaged_state_is_named_and_not_used(tmp_path, content):
    settings = smoke(method="finetuning")
    whole = run_to_end(settings, tmp_path)
    path = tmp_path / settings.name / STATE_FILE
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    said = []
    again = Run(settings, tmp_path, resume=True, say=said.append)
    assert any(str(path) in text and "not used" in text for text in said)
    assert figures(again.go()) == figures(whole)


@pytest.mark.parametrize("change", [{"layout": ["Gone"]}, {"layout": None}])
def test_a_state_of_another_version_is_named_and_not_used(tmp_path, change):
    settings = smoke(method="finetuning")
    whole = run_to_end(settings, tmp_path)
    path = tmp_path / settings.name / STATE_FILE
    save_state(path, load_state(path) | change)
    said = []
    again = Run(settings, tmp_path, resume=True, say=said.append)
    assert any(str(path) in text and "another version" in text for text in said)
    assert figures(again.go()) == figures(whole)


def test_a_run_that_had_ended_is_not_trained_again(tmp_path):
    settings = smoke(method="finetuning")
    whole = run_to_end(settings, tmp_path)
    again = Run(settings, tmp_path, resume=True, say=lambda text: None)
    assert again.experience == 2
    assert again.go() == whole


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the device 'nothing' cannot be used here \(.*--device cpu"):
        Run(smoke(device="nothing"), tmp_path)


def command(out, *options):
    script = [sys.executable, str(ROOT / "runs" / "split_coco.py"), "--smoke", "--out", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {"args": script, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.8, 1.5])
def test_a_killed_process_goes_on_to_the_same_figures(tmp_path, delay):
    options = ["--method", "agcn", "--checkpoint-minutes", "0"]
    subprocess.run(**command(tmp_path / "whole", *options), check=True)
    process = subprocess.Popen(**command(tmp_path / "killed", *options))
    state = tmp_path / "killed" / "agcn-seed0" / STATE_FILE
    while not state.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(**command(tmp_path / "killed", *options, "--resume"), check=True, text=True)
    assert "going on with experience" in done.stdout
    nested = [
        json.loads((tmp_path / name / "agcn-seed0" / "results.json").read_text())["nested"]
        for name in ("whole", "killed")
    ]
    assert nested[0] == nested[1]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored behind nohup
    process = subprocess.Popen(**command(tmp_path, "--method", "all", "--checkpoint-minutes", "0"), text=True)
    signal.signal(signal.SIGINT, before)
    state = tmp_path / "multitask-seed0" / STATE_FILE
    while not state.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command with --resume goes on from there" in output


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("method", METHODS)
def test_heads_of_every_method_train_over_a_frozen_backbone(method, tmp_path, cache):
    result = run_to_end(smoke(method=method, freeze_backbone=True, cache=cache), tmp_path)
    assert 0 <= result.summary["mAP"]["last"] <= 100
    assert "cache" not in result.settings


def test_a_frozen_run_is_the_same_with_features_from_the_cache_and_after_a_stop(tmp_path, cache, monkeypatch):
    settings = smoke(freeze_backbone=True, cache=str(tmp_path / "cold"))
    cold = run_to_end(settings, tmp_path / "a")
    warm = run_to_end(settings, tmp_path / "b")
    stopped = stop_and_resume(settings, tmp_path / "c", monkeypatch, 2)
    assert figures(cold) == figures(warm) == figures(stopped)


def test_word_vectors_are_orthogonal_only_where_the_settings_say_so(tmp_path):
    def products(**changes):
        run = Run(smoke(**changes), tmp_path, say=lambda text: None)
        return run.strategy.model.word_vectors @ run.strategy.model.word_vectors.T

    assert torch.allclose(products(), torch.eye(SMOKE["n_classes"]), atol=1e-5)
    assert products(orthogonal_words=False).min() > 1  # GloVe's share a direction


def test_the_head_has_the_networks_learning_rate_or_its_own(tmp_path):
    def rates(**changes):
        run = Run(smoke(method="finetuning", lr=1e-3, **changes), tmp_path, say=lambda text: None)
        return [group["lr"] for group in run.strategy.optimizer.param_groups]

    assert rates() == [1e-3, 1e-3]
    assert rates(lr_head=1e-2) == [1e-3, 1e-2]
