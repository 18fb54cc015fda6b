"""SIGTERM and Ctrl-C: the state after the batch is saved, workers are gone, and the exit code tells why."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from avalanche.core import SupervisedPlugin
from torch.utils.data import DataLoader, Dataset

from avalanche_agcn.experiments import build
from avalanche_agcn.experiments.checkpoint import Diverged, load_state, write_atomically
from avalanche_agcn.experiments.cli import main
from avalanche_agcn.experiments.exit_codes import one_sentence, requested_signal, returns_exit_code
from avalanche_agcn.experiments.folder import STATE_FILE
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings

ROOT = Path(__file__).parents[2]
OPTIONS = ["--smoke", "--method", "finetuning", "--limit", "24"]
NAME = "finetuning-seed0"
WATCHDOG = 4  # seconds, before torch's own watchdog ends workers without a parent


class LongBatch(SupervisedPlugin):
    """Prints a line in the first batch, which lasts until a signal has arrived, or for ever."""

    def __init__(self, *, for_ever):
        super().__init__()
        self.for_ever = for_ever

    def before_forward(self, strategy, **kwargs):
        print("batch")
        while self.for_ever or not requested_signal():
            time.sleep(0.01)


@pytest.fixture
def start(fork):
    """A function that starts a run with a long first batch and waits until it has begun."""

    def run(plugin, *options):
        make = build.make_strategy

        def make_with_plugin(*args, plugins, **kwargs):
            return make(*args, plugins=[*plugins, plugin], **kwargs)

        build.make_strategy = make_with_plugin
        return main("coco", None, [*OPTIONS, *options])

    def start(*options, for_ever=False):
        process = fork(run, LongBatch(for_ever=for_ever), *options)
        process.wait_for("batch")
        return process

    return start


def nested(out):
    return json.loads((out / NAME / "results.json").read_text())["nested"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert main("coco", None, [*OPTIONS, "--out", str(out)]) == 0
    return nested(out)


@pytest.mark.parametrize(
    ("number", "code", "to_group"),
    [(signal.SIGTERM, 143, False), (signal.SIGINT, 130, True), (signal.SIGTERM, 143, True)],
)
def test_a_signal_saves_at_the_next_batch_ends_workers_and_resumes(
    tmp_path, number, code, to_group, start, whole
):
    process = start("--workers", "2", "--out", str(tmp_path))
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    (os.killpg if to_group else os.kill)(process.pid, number)
    process.join()
    assert psutil.wait_procs(workers, timeout=WATCHDOG)[1] == []
    output, exit_code = process.wait()
    assert exit_code == code, output
    state = tmp_path / NAME / STATE_FILE
    assert f"is saved in {state}; the same command with --resume" in output
    assert load_state(state)["position"]["within"]["batch"] == 1
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path), "--resume"]) == 0
    assert nested(tmp_path) == whole


def test_a_second_signal_ends_at_once_and_nothing_was_saved(tmp_path, start):
    process = start("--workers", "1", "--out", str(tmp_path), for_ever=True)
    workers = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGTERM)
    process.wait_for("Stopping after this batch; a second signal stops at once.")
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert psutil.wait_procs(workers, timeout=WATCHDOG)[1] == []
    assert process.wait()[1] == 143
    assert not (tmp_path / NAME / STATE_FILE).exists()


def test_a_signal_before_the_first_batch_does_not_claim_a_saved_state(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "make_backbone", lambda settings: os.kill(os.getpid(), signal.SIGTERM))
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path)]) == 143
    message = capsys.readouterr().err
    assert "state" not in message
    assert "--resume" not in message
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(tmp_path):
    settings = make_settings("scenes", SMOKE, method="finetuning", checkpoint_minutes=0.0)
    run = Run(settings, tmp_path, log=lambda text: None)
    criterion, losses = run.strategy._criterion, []

    def diverging(logits, targets):
        losses.extend([1] if run.strategy.is_training else [])
        return criterion(logits, targets) * (float("nan") if len(losses) == 5 else 1)

    run.strategy._criterion = diverging
    with pytest.raises(Diverged, match=r"the loss is nan at step 2 of epoch 1 of experience 2: the learning"):
        run.run()
    state = load_state(tmp_path / NAME / STATE_FILE)
    assert (state["position"]["experience"], state["position"]["within"]["batch"]) == (1, 1)
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


class EndsItsWorker(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_loader_worker_and_a_too_high_learning_rate_end_in_one_sentence(tmp_path, capsys):
    assert main("coco", None, [*OPTIONS, "--lr", "1e30", "--out", str(tmp_path)]) == 1
    assert "the learning rate is probably too high" in capsys.readouterr().err
    load_all = returns_exit_code(lambda: list(DataLoader(EndsItsWorker(), num_workers=1)))
    assert load_all() == 1
    message = r"Stopped: DataLoader worker .*, perhaps for lack of memory: use fewer --workers\.\n"
    assert re.fullmatch(message, capsys.readouterr().err)
    assert one_sentence(MemoryError()) == "MemoryError."  # though it has no message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    def write(file):
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(OSError, match=r"No space left on device: '.*results.json'"):
        write_atomically(tmp_path / "results.json", write)


def run_python(code, **environment):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)


def test_a_refused_state_and_a_finished_run_are_not_said_to_be_resumable(tmp_path, capsys, monkeypatch):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(b"no state")
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "is not a saved state of this package" in message
    assert "--resume continues it" not in message
    (folder / "results.json").write_text("{")
    monkeypatch.setattr(build, "make_backbone", lambda settings: os.kill(os.getpid(), signal.SIGTERM))
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path), "--overwrite"]) == 143
    assert "state of the run" not in capsys.readouterr().err


def test_a_run_needs_no_standard_output(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as Python sets it for `>&-`
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path)]) == 0
    assert nested(tmp_path)["mAP"]


def test_a_rank_without_a_number_of_processes_is_that_of_the_only_process(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert main("coco", None, ["--bogus"]) == 2
    assert "unrecognized arguments: --bogus" in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "size", "named"), [("0", "abc", "WORLD_SIZE"), ("x", "2", "RANK")])
def test_variables_of_processes_that_are_no_numbers_are_named(
    rank, size, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert main("coco", None, [*OPTIONS, "--out", str(tmp_path)]) == 1
    assert f"the variable {named} must be a whole number, not '" in capsys.readouterr().err


def test_a_terminal_without_unicode_shows_other_characters_as_escapes():
    code = (
        "from avalanche_agcn.experiments.exit_codes import returns_exit_code\n"
        "print_it = returns_exit_code(lambda: print('41.3 \u00b1 0.7') or 0)\n"
        "raise SystemExit(print_it())"
    )
    done = run_python(code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "41.3 \\xb1 0.7\n", "")


@pytest.mark.parametrize(
    ("home", "named"), [("/dev/null", "/dev/null/.avalanche"), ("/proc/no/home", "/proc/no")]
)
def test_a_home_directory_that_cannot_be_written_is_named_with_the_remedy(home, named):
    done = run_python(
        "from avalanche_agcn.__main__ import main; raise SystemExit(main(['predict', 'a', 'b']))",
        HOME=home,
    )
    assert done.returncode == 1
    assert f"Stopped: Avalanche writes to {named} when it is imported" in done.stderr
    assert "set HOME to a folder that can be written.\n" in done.stderr
    assert "Traceback" not in done.stderr
