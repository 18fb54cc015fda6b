"""Several processes equal one: the same images per step, sums, weights, scores and one set of files."""

import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.training import distributed
from avalanche_agcn.training.distributed import (
    ProcessLost,
    process_group,
    process_rank,
    sum_over_processes,
)

SCRIPT = Path(__file__).with_name("distributed_runs.py")
specification = importlib.util.spec_from_file_location("distributed_runs", SCRIPT)
runs = importlib.util.module_from_spec(specification)
specification.loader.exec_module(runs)

FEW = {
    "finetuning": {"method": "finetuning"},
    "agcn": {"method": "agcn", "mem_size": 7},
    "agem": {"method": "agem"},
}
UNFROZEN = {"batch normalisation": {"method": "er", "freeze_batchnorm": False}}
MANY = {
    **{method: {"method": method} for method in METHODS},
    "agcn memory": {"method": "agcn", "mem_size": 7, "negatives": ["memory"]},
    "agcn official": {"method": "agcn", "preset": "official"},
    "agcn statistics": {"method": "agcn", "preset": "statistics"},
    "agcn statistics drift of steps": {"method": "agcn", "preset": "statistics", "held_images": 0},
    "er negatives": {"method": "er", "negatives": ["memory", "statistics"]},
    "scr negatives": {"method": "scr", "negatives": ["memory"]},
    "finetuning statistics": {"method": "finetuning", "negatives": ["statistics"]},
    "finetuning pseudo-labels asl": {"method": "finetuning", "pseudo_labels": True, "loss": "asl"},
    "er pseudo-labels": {"method": "er", "pseudo_labels": True},
    "lwf epochs": {"method": "lwf", "train_epochs": 2},
    "ocdm epochs": {"method": "ocdm", "train_epochs": 2},
    "ridge frozen": {"method": "streaming_ridge", "freeze_backbone": True},
    "finetuning frozen": {"method": "finetuning", "freeze_backbone": True},
}
OWN = {"own pipeline": {"own pipeline": False}, "own pipeline, wrapped": {"own pipeline": True}}
BETWEEN = ("finetuning", "ewc", "agcn memory")  # two experiences, after 9 saves
WITHIN = ("agem", "agcn statistics", "streaming_ridge", "l3a", "scr negatives")  # the second one
RESUMED = {name: {**MANY[name], "stop_after": 9 if name in BETWEEN else 10} for name in (*BETWEEN, *WITHIN)}
TOLERANCES = {"acm": 1e-12, "statistics": 1e-12, "weights": 1e-5, "memory": 0, "nested": 1e-6, "losses": 1e-6}


@pytest.fixture(scope="module")
def run_cases(fork):
    """A function that runs cases in this process, or in several as torchrun does; returns what they print."""

    def run(n_processes, out, cases, **options):
        if n_processes == 1:
            return runs.main(out, cases, **options)
        printed, exit_code = fork(launch, n_processes, lambda: runs.main(out, cases, **options)).wait()
        assert exit_code == 0, printed
        return printed

    return run


def launch(n_processes, function):
    """What torchrun does, but with forked processes."""
    settings = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "max_restarts": 0}
    elastic_launch(LaunchConfig(1, 1, n_processes, start_method="fork", **settings), function)()


def difference(a, b):
    """Largest difference of two values, relative for numbers over 1; infinite if their types differ."""
    if isinstance(a, torch.Tensor) and a.shape == b.shape:
        a, b = a.double().nan_to_num(), b.double().nan_to_num()
        return float(((a - b) / a.abs().clamp(min=1)).abs().max()) if a.numel() else 0.0
    if isinstance(a, dict) and a.keys() == b.keys():
        return max((difference(a[name], b[name]) for name in a), default=0.0)
    if isinstance(a, (list, tuple)) and len(a) == len(b):
        return max(map(difference, a, b), default=0.0)
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    return 0.0 if not isinstance(a, torch.Tensor) and a == b else float("inf")


def read_traces(folder):
    return [torch.load(path) for path in sorted(folder.glob("trace-*.pt"))]


def check_equal(one, many, name):
    """Compare a run in one process with one in several: images of each step, `TOLERANCES`, and files."""
    (expected,), traces = read_traces(one / name), read_traces(many / name)
    parts = zip(*(trace["steps"] for trace in traces), strict=True)
    steps = [sorted(itertools.chain(*step)) for step in parts]
    assert steps == [sorted(step) for step in expected["steps"][-len(steps) :]]  # a resumed run has the last
    found = {kind: max(difference(expected[kind], trace[kind]) for trace in traces) for kind in TOLERANCES}
    assert all(found[kind] <= TOLERANCES[kind] for kind in found), found
    assert outputs(many / name / "out") == outputs(one / name / "out")


def outputs(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def few(tmp_path_factory, run_cases):
    """Folder with runs in one and in two processes; and what the command line printed in two."""
    out = tmp_path_factory.mktemp("few")
    run_cases(1, out / "1", FEW)
    printed = run_cases(2, out / "2", FEW | UNFROZEN, command_line=True)
    return out, printed


@pytest.mark.parametrize("name", FEW)
def test_two_processes_equal_one(few, name):
    out, _ = few
    check_equal(out / "1", out / "2", name)


def test_two_processes_have_the_same_running_statistics_and_print_and_write_once(few):
    out, printed = few
    first, second = read_traces(out / "2" / "batch normalisation")
    assert any("running_mean" in name for name in first["weights"])
    assert difference(first["weights"], second["weights"]) == 0
    assert printed.count("No --data") == printed.count("results are in") == 1
    names = outputs(out / "2" / "command line")
    assert "finetuning-seed0/results.json" in names
    assert not [name for name in names if "lock.json" in name or name.endswith(".part")]


def die_as_second(environment):
    os.environ |= environment
    with process_group():
        sum_over_processes(torch.ones(1))
        if process_rank()[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sum_over_processes(torch.ones(1))
        time.sleep(10_000)


WAITING = """
import os, signal, socket, threading, time
from avalanche_agcn.training.distributed import process_group
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt_when_listening():
    listening = False
    while not listening:
        with socket.socket() as probe:
            listening = probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))) == 0
    time.sleep(1)  # until the main thread waits as well
    {interrupt}

threading.Thread(target=interrupt_when_listening, daemon=True).start()
with process_group():
    pass
"""


@pytest.fixture
def group():
    """Environment of a process group of two that is started without torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_process_that_is_killed_ends_the_others_with_a_message(group, fork):
    first, second = (fork(die_as_second, {**group, "RANK": rank}) for rank in "01")
    assert second.wait()[1] == -signal.SIGKILL
    message, exit_code = first.wait()
    assert "process 0 of 2 stopped, because another process ended" in message
    assert exit_code == 1  # it did not sleep until it was ended


@pytest.mark.parametrize(
    ("name", "environment"),
    [("JOIN_TIMEOUT", {}), ("CONNECT_TIMEOUT", {"TORCHELASTIC_USE_AGENT_STORE": "True"})],
    ids=["the other process is not started", "torchrun has ended"],
)
def test_process_that_finds_no_other_ends_with_a_message(group, monkeypatch, name, environment):
    monkeypatch.setattr(distributed, name, timedelta(seconds=1))
    for variable, value in {**group, "RANK": "0", **environment}.items():
        monkeypatch.setenv(variable, value)
    message = "process 0 of 2 did not find the others: start all with the same WORLD_SIZE"
    with pytest.raises(ProcessLost, match=message), process_group():
        pass


@pytest.mark.parametrize(
    "interrupt",
    ["os.kill(os.getpid(), signal.SIGINT)", "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"],
    ids=["sent to the process", "received by another thread"],
)
def test_ctrl_c_ends_a_process_that_waits_for_the_others(group, interrupt):
    environment = {**os.environ, **group, "RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WAITING.format(interrupt=interrupt)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == -signal.SIGINT, result.stderr


@pytest.mark.slow
def test_every_method_in_two_and_three_processes(tmp_path, run_cases):
    for n in (1, 2, 3):
        run_cases(n, tmp_path / str(n), MANY | OWN)
    for name in MANY | OWN:
        for n in (2, 3):
            check_equal(tmp_path / "1", tmp_path / str(n), name)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 3)])
def test_run_is_resumed_with_another_number_of_processes(tmp_path, run_cases, before, after):
    run_cases(1, tmp_path / "whole", {name: MANY[name] for name in RESUMED})
    run_cases(before, tmp_path / "parts", RESUMED)
    for trace in (tmp_path / "parts").glob("*/trace-*.pt"):
        assert torch.load(trace) == {}  # it was stopped
        trace.unlink()
    run_cases(after, tmp_path / "parts", RESUMED, resume=True)
    for name in RESUMED:
        check_equal(tmp_path / "whole", tmp_path / "parts", name)
