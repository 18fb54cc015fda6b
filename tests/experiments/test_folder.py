"""What a run's folder has is kept, and one process at a time writes to it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_agcn.experiments import folder as module
from avalanche_agcn.experiments import run as run_module
from avalanche_agcn.experiments.checkpoint import load_state
from avalanche_agcn.experiments.cli import main
from avalanche_agcn.experiments.folder import LOCK_FILE, STATE_FILE, FolderInUse, RunLock
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, differences, make_settings

ROOT = Path(__file__).parents[2]
NAME = "finetuning-seed0"


def smoke(*options, out):
    return main("coco", None, ["--smoke", "--method", "finetuning", "--out", str(out), *options])


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    assert smoke(out=out) == 0
    assert not (out / NAME / LOCK_FILE).exists()
    return out


@pytest.fixture
def begun(tmp_path):
    """A run that has saved its state before the first batch."""
    run = Run(make_settings("scenes", SMOKE, method="finetuning"), tmp_path, log=lambda text: None)
    run._save({"epoch": 0, "batch": 0})
    run._lock.release()
    return tmp_path


def test_a_finished_run_with_other_settings_is_kept_and_the_differences_are_listed(finished, capsys):
    before = content(finished / NAME)
    assert smoke("--lr", "0.5", "--epochs", "2", out=finished) == 1
    message = capsys.readouterr().err
    assert "other settings (lr: 0.001, now 0.5; train_epochs: 1, now 2)" in message
    assert "--overwrite" in message
    assert content(finished / NAME) == before


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_finished_run_with_the_same_settings_is_kept_and_reported(finished, capsys, options):
    before = content(finished / NAME)
    assert smoke(*options, out=finished) == 0
    output = capsys.readouterr().out
    assert "finished before" in output
    assert "| Fine-Tuning |" in output
    assert content(finished / NAME) == before


def test_data_may_be_reached_by_another_path(tmp_path):
    settings = {"method": "finetuning", "labels": "labels.csv", "dataset_root": "photos"}
    old = make_settings("photos", **settings).as_dict()
    settings |= {"labels": "elsewhere/labels.csv", "dataset_root": "elsewhere/photos"}
    moved = make_settings("photos", **settings)
    module._check_settings(tmp_path, old, moved)
    assert differences(old, moved.as_dict())  # as studies compare them, which do not look at the data


def test_overwrite_replaces_a_run(finished, tmp_path):
    shutil.copytree(finished / NAME, tmp_path / NAME)
    for kind in ("json", "safetensors"):
        (tmp_path / NAME / f"model-after9.{kind}").write_text("of the run before")
    assert smoke("--lr", "0.5", "--overwrite", out=tmp_path) == 0
    assert json.loads((tmp_path / NAME / "results.json").read_text())["settings"]["lr"] == 0.5
    assert not list((tmp_path / NAME).glob("model-after9.*"))


def test_a_begun_run_asks_for_resume_or_overwrite(begun, capsys):
    before = content(begun / NAME)
    assert smoke(out=begun) == 1
    assert "give --resume to continue it, or --overwrite" in capsys.readouterr().err
    assert smoke("--lr", "0.5", "--resume", out=begun) == 1
    assert "lr: 0.001, now 0.5" in capsys.readouterr().err
    assert content(begun / NAME) == before
    assert smoke("--resume", out=begun) == 0


def test_the_results_of_an_overwritten_run_do_not_outlive_its_first_batches(finished, tmp_path):
    """Else the folder would have results of other settings than the state."""
    shutil.copytree(finished / NAME, tmp_path / NAME)
    settings = make_settings("scenes", SMOKE, method="finetuning", lr=0.5, checkpoint_minutes=0.0)
    run = Run(settings, tmp_path, overwrite=True, log=lambda text: None)
    run.checkpoints._save = lambda position: (_ for _ in ()).throw(RuntimeError)
    with pytest.raises(RuntimeError):
        run.run()
    assert not (tmp_path / NAME / "results.json").exists()


def test_smoke_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main("coco", None, ["--smoke", "--method", "finetuning"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["results-smoke"]


@pytest.fixture
def other_process():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def lock_as(folder, monkeypatch, process=None, **changes):
    """Lock a folder in the name of another process."""
    import psutil

    owner = psutil.Process(process.pid if process else os.getpid())
    own = module._myself() | {"pid": owner.pid, "started": owner.create_time()} | changes
    with monkeypatch.context() as patch:
        patch.setattr(module, "_myself", lambda: own)
        RunLock(folder)
    return own


def test_a_second_process_is_rejected_with_the_firsts_id_and_host(
    tmp_path, monkeypatch, other_process, capsys
):
    owner = lock_as(tmp_path / NAME, monkeypatch, other_process)
    before = content(tmp_path / NAME)
    assert smoke(out=tmp_path) == 1
    assert f"in use by process {owner['pid']} on {owner['host']}" in capsys.readouterr().err
    assert content(tmp_path / NAME) == before


@pytest.mark.parametrize("changes", [{}, {"started": 1.0}])
def test_the_lock_of_a_process_that_has_ended_is_taken_over(tmp_path, monkeypatch, other_process, changes):
    """One that was killed, or an earlier one of the same id."""
    lock_as(tmp_path, monkeypatch, other_process, **changes)
    if not changes:
        other_process.kill()
        other_process.wait()
    RunLock(tmp_path).release()
    assert not (tmp_path / LOCK_FILE).exists()


def test_the_lock_of_another_host_is_kept(tmp_path, monkeypatch):
    lock_as(tmp_path, monkeypatch, host="elsewhere")
    with pytest.raises(FolderInUse, match=r"on elsewhere.* remove .*lock.json if that process has ended"):
        RunLock(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}', "[" * 100_000])
def test_a_lock_that_names_nobody_is_taken_over(tmp_path, text):
    (tmp_path / LOCK_FILE).write_text(text)
    RunLock(tmp_path)
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("launcher", [[], pytest.param(TORCHRUN, marks=pytest.mark.slow)])
def test_two_runs_started_at_once_do_not_mix(tmp_path, launcher):
    command = [sys.executable, "-W", "ignore", *launcher, str(ROOT / "runs" / "split_coco.py"), "--smoke"]
    command += ["--method", "finetuning", "--epochs", "20", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    processes = [subprocess.Popen([*command, "--lr", lr], **how) for lr in ("0.001", "0.002")]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1], outputs
    assert "in use by process" in outputs[codes.index(1)] or "other settings" in outputs[codes.index(1)]
    lr = [0.001, 0.002][codes.index(0)]
    assert json.loads((tmp_path / NAME / "results.json").read_text())["settings"]["lr"] == lr
    assert load_state(tmp_path / NAME / STATE_FILE)["settings"]["lr"] == lr
    assert not (tmp_path / NAME / LOCK_FILE).exists()


def test_no_process_reads_the_folder_before_the_first_one_has_locked_it(tmp_path, monkeypatch):
    """Else one could read a state that another run replaces as it ends, and the processes would differ."""
    calls = []

    def record(name):
        own = getattr(run_module, name)
        monkeypatch.setattr(run_module, name, lambda *args: calls.append(name) or own(*args))

    for name in ("RunLock", "from_first_process", "read_folder"):
        record(name)
    Run(make_settings("scenes", SMOKE, method="finetuning"), tmp_path, log=lambda text: None)._release()
    assert calls[:3] == ["RunLock", "from_first_process", "read_folder"]


def test_a_folder_that_cannot_be_written_to_is_named_before_training(tmp_path, capsys):
    (tmp_path / "out").write_text("text")
    assert smoke(out=tmp_path / "out") == 1
    assert str(tmp_path / "out") in capsys.readouterr().err


def test_a_damaged_state_is_not_overwritten_without_a_word(tmp_path, capsys):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / STATE_FILE).write_bytes(b"something else")
    assert smoke(out=tmp_path) == 1
    assert "not a saved state" in capsys.readouterr().err
    assert (tmp_path / NAME / STATE_FILE).read_bytes() == b"something else"
