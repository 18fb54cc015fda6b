"""A run's folder: nothing is overwritten by mistake, one process writes at a time, data must not change."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, paper_transforms
from avalanche_agcn.experiments import folder as run_folder
from avalanche_agcn.experiments import run as run_module
from avalanche_agcn.experiments.checkpoint import load_state
from avalanche_agcn.experiments.cli import main
from avalanche_agcn.experiments.results import RESULTS_FILE
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, differences, make_settings

ROOT = Path(__file__).parents[2]
NAME = "finetuning-seed0"


def smoke(*options, out):
    return main("coco", None, ["--smoke", "--method", "finetuning", "--out", str(out), *options])


def make_run(out, *, settings=(), **options):
    settings = make_settings("scenes", SMOKE, method="finetuning", checkpoint_minutes=0.0, **dict(settings))
    return Run(settings, out, log=lambda text: None, **options)


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in the folder that smoke runs have of their own."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main("coco", None, ["--smoke", "--method", "finetuning"]) == 0
    (out,) = folder.iterdir()
    assert out.name == "results-smoke"
    assert not (out / NAME / run_folder.OWNER_FILE).exists()
    return out


def test_a_finished_run_is_kept_and_reported_or_its_differences_are_listed(finished, capsys):
    before = content(finished / NAME)
    for options in ([], ["--resume"]):
        assert smoke(*options, out=finished) == 0
        output = capsys.readouterr().out
        assert "finished before" in output
        assert "| Fine-Tuning |" in output
    assert smoke("--lr", "0.5", "--epochs", "2", out=finished) == 1
    message = capsys.readouterr().err
    assert "other settings (lr: 0.001, now 0.5; train_epochs: 1, now 2)" in message
    assert "--overwrite" in message
    assert content(finished / NAME) == before


def test_data_may_be_reached_by_another_path(tmp_path):
    old = make_settings("photos", labels="labels.csv", dataset_root="photos").as_dict()
    moved = make_settings("photos", labels="elsewhere/labels.csv", dataset_root="elsewhere/photos")
    run_folder._check_settings(tmp_path, old, moved)
    assert differences(old, moved.as_dict())  # as studies compare them, which do not compare the data


def test_overwrite_removes_an_old_run_before_the_first_batches_of_the_new_one(finished, tmp_path):
    """Else the folder could have results of other settings than the state."""
    shutil.copytree(finished / NAME, tmp_path / NAME)
    results = tmp_path / NAME / RESULTS_FILE
    old = [results, *(tmp_path / NAME / f"model-after9.{suffix}" for suffix in ("json", "safetensors"))]
    for path in old[1:]:
        path.write_text("of the run before")
    run = make_run(tmp_path, overwrite=True, settings={"lr": 0.5})
    run.checkpoints._save = lambda position: (_ for _ in ()).throw(RuntimeError)
    with pytest.raises(RuntimeError):
        run.run()
    assert not any(path.exists() for path in old)
    assert smoke("--lr", "0.5", "--overwrite", out=tmp_path) == 0
    assert json.loads(results.read_text())["settings"]["lr"] == 0.5


def test_an_unfinished_run_asks_for_resume_or_overwrite(tmp_path, capsys):
    run = make_run(tmp_path)
    run._save({"epoch": 0, "batch": 0})
    run._lock.close()
    before = content(run.folder)
    assert smoke(out=tmp_path) == 1
    assert "give --resume to continue it, or --overwrite" in capsys.readouterr().err
    assert smoke("--lr", "0.5", "--resume", out=tmp_path) == 1
    assert "lr: 0.001, now 0.5" in capsys.readouterr().err
    assert content(run.folder) == before
    assert smoke("--resume", out=tmp_path) == 0


def keep_locked(folder):
    with run_folder.lock_folder(folder):
        print("locked")
        time.sleep(10_000)


@pytest.fixture
def locked(tmp_path, fork):
    """The folder of a run, locked by another process."""
    folder = tmp_path / NAME
    process = fork(keep_locked, folder)
    process.wait_for("locked")
    yield folder, process
    process.kill()


def test_a_second_process_names_the_one_that_has_the_folder(locked, capsys):
    folder, process = locked
    before = content(folder)
    assert smoke(out=folder.parent) == 1
    assert f"in use by process {process.pid} on {socket.gethostname()}: wait" in capsys.readouterr().err
    assert content(folder) == before
    (folder / run_folder.OWNER_FILE).write_bytes(b"\xff")
    assert smoke(out=folder.parent) == 1
    assert "in use by another process: wait" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_process_that_was_killed_is_free(locked, number):
    folder, process = locked
    os.kill(process.pid, number)
    assert process.wait() == ("", -number)
    with run_folder.lock_folder(folder):
        assert (folder / run_folder.OWNER_FILE).read_text().startswith(f"process {os.getpid()} on ")
    assert not (folder / run_folder.OWNER_FILE).exists()


def test_a_process_may_lock_its_own_folder_again(tmp_path):
    owner = tmp_path / run_folder.OWNER_FILE
    with run_folder.lock_folder(tmp_path):
        with run_folder.lock_folder(tmp_path):
            assert owner.exists()
        assert owner.exists()  # the lock is still held
    assert not owner.exists()


def check_one_of_two_runs_has_finished(out, outputs, codes):
    """Two runs with learning rates of 0.001 and 0.002 were started at once in the same folder."""
    assert sorted(codes) == [0, 1], outputs
    assert "in use by process" in outputs[codes.index(1)] or "other settings" in outputs[codes.index(1)]
    lr = [0.001, 0.002][codes.index(0)]
    assert json.loads((out / NAME / "results.json").read_text())["settings"]["lr"] == lr
    assert load_state(out / NAME / run_folder.STATE_FILE)["settings"]["lr"] == lr
    assert not (out / NAME / run_folder.OWNER_FILE).exists()


def test_two_runs_started_at_once_do_not_mix(tmp_path, fork):
    def run(lr):
        return smoke("--epochs", "20", "--lr", lr, out=tmp_path)

    processes = [fork(run, lr) for lr in ("0.001", "0.002")]
    outputs, codes = zip(*(process.wait() for process in processes))
    check_one_of_two_runs_has_finished(tmp_path, outputs, codes)


@pytest.mark.slow
def test_two_runs_of_torchrun_started_at_once_do_not_mix(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(ROOT / "runs" / "split_coco.py"), "--smoke"]
    command += ["--method", "finetuning", "--epochs", "20", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([*command, "--lr", lr], env=environment, **pipes) for lr in ("0.001", "0.002")
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    check_one_of_two_runs_has_finished(tmp_path, outputs, [process.returncode for process in processes])


def test_no_process_reads_the_folder_before_the_first_one_has_locked_it(tmp_path, monkeypatch):
    """Else one could read a state that another run replaces as it ends, and the processes would differ."""
    calls, names = [], ["lock_folder", "from_first_process", "read_folder"]

    def record(name, function, *args):
        calls.append(name)
        return function(*args)

    for name, place in zip(names, (run_folder, run_module, run_folder)):
        monkeypatch.setattr(place, name, partial(record, name, getattr(place, name)))
    make_run(tmp_path)._lock.close()
    assert calls[:3] == names


def test_a_file_instead_of_a_folder_or_state_is_named_and_kept(tmp_path, capsys):
    (tmp_path / "out").write_text("something else")
    assert smoke(out=tmp_path / "out") == 1
    assert str(tmp_path / "out") in capsys.readouterr().err
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / run_folder.STATE_FILE).write_bytes(b"something else")
    assert smoke(out=tmp_path) == 1
    assert "not a saved state" in capsys.readouterr().err
    assert (tmp_path / NAME / run_folder.STATE_FILE).read_bytes() == (tmp_path / "out").read_bytes()


N = 24


@pytest.fixture
def folder(tmp_path):
    """Bitmaps in a folder."""
    generator = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for k in range(N):
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k:02}.bmp")
    return tmp_path / "images"


def labels():
    drawn = torch.randint(0, 2, (N, 4), generator=torch.Generator().manual_seed(0))
    drawn[0] = 1
    return drawn


def photos(folder, targets=None, order=range(N), class_names=("person", "dog", "cat", "car"), **options):
    files = np.array(sorted(os.listdir(folder)))
    targets = labels() if targets is None else targets
    source = ImageFiles(folder, files[list(order)].tolist(), targets[list(order)])
    return multilabel_benchmark(source, source, n_experiences=2, class_names=class_names, **options)


def changed(folder, before, **changes):
    return run_folder.changed_data(before, run_folder.data_fingerprint(photos(folder, **changes).plan))


def flip_a_byte(folder):
    content = bytearray((folder / "07.bmp").read_bytes())
    content[-20] ^= 255
    (folder / "07.bmp").write_bytes(content)


@pytest.mark.parametrize("content_bytes", [2**30, 0])
def test_each_change_of_the_data_is_named(folder, monkeypatch, content_bytes):
    monkeypatch.setattr(run_folder, "CONTENT_BYTES", content_bytes)
    before = run_folder.data_fingerprint(photos(folder).plan)
    os.utime(folder / "07.bmp", ns=(1, 1))
    folder = folder.rename(folder.with_name("elsewhere"))
    assert changed(folder, before) == []
    swapped = labels()
    swapped[[3, 4]] = 1 - swapped[[3, 4]]
    assert "the labels of the train stream" in changed(folder, before, targets=swapped)

    def in_both(part):
        return [f"the {part} of the {stream} stream" for stream in ("train", "test")]

    assert changed(folder, before, order=range(N)[::-1]) == in_both("order")
    assert changed(folder, before, class_names=("person", "cat", "dog", "car")) == in_both("labels")
    flip_a_byte(folder)
    assert changed(folder, before) == in_both("contents")
    (folder / "07.bmp").write_bytes((folder / "07.bmp").read_bytes() + b"\0")
    assert "the sizes of the train stream" in changed(folder, before)
    (folder / "07.bmp").rename(folder / "7.bmp")
    assert changed(folder, before) == in_both("images")
    benchmark = photos(folder)
    (folder / "7.bmp").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no image .*7.bmp, .*download the images"):
        run_folder.data_fingerprint(benchmark.plan)


def test_resume_says_nothing_about_a_run_that_has_not_begun_but_names_a_damaged_state(tmp_path):
    settings = make_settings("scenes", SMOKE, method="finetuning")
    lines = []
    assert run_folder.read_folder(tmp_path, settings, True, lines.append) == (None, None)
    assert lines == []
    (tmp_path / run_folder.STATE_FILE).write_bytes(b"damaged")
    assert run_folder.read_folder(tmp_path, settings, True, lines.append) == (None, None)
    (line,) = lines
    assert "it is not used: starting from the beginning" in line


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_not_resumed_on_other_data(folder, tmp_path, finished):
    settings = make_settings("own", method="er", backbone="small", mem_size=8)

    def make(**changes):
        benchmark = photos(folder, **changes, **paper_transforms(32))
        return Run(settings, tmp_path / "out", resume=True, benchmark=benchmark, log=lambda text: None)

    def assert_changed(part, **changes):
        message = f"saved with other data; changed: .*the {part} of the train stream"
        with pytest.raises(run_folder.OtherRun, match=message):
            make(**changes)

    expected = make().run()
    if not finished:
        (tmp_path / "out" / settings.name / RESULTS_FILE).unlink()
    assert_changed("labels", targets=labels().roll(1, 0))
    assert_changed("order", order=range(N)[::-1])
    flip_a_byte(folder)
    assert_changed("contents")
    flip_a_byte(folder)
    assert make().run().nested == expected.nested


def test_what_a_killed_process_was_writing_is_removed_by_the_next_run(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    unfinished = [folder / ".state.bin.0123abcd.part", folder / ".model.safetensors.89abcdef.part"]
    for path in [*unfinished, folder / ".notes.part"]:
        path.write_bytes(b"x")
    with run_folder.lock_folder(folder):
        assert not any(path.exists() for path in unfinished)
        assert (folder / ".notes.part").exists()  # not of this package
        unfinished[0].write_bytes(b"x")  # of this process, which is writing now
        with run_folder.lock_folder(folder):
            assert unfinished[0].exists()
