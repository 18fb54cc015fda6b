"""Runs in one and two processes that are ended at 100 random moments resume to the same scores."""

import contextlib
import functools
import json
import os
import random
import signal
import sys
import threading
import time

import psutil
import pytest
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from tqdm import tqdm

import avalanche_agcn.experiments.run  # noqa: F401 - which cli imports late
from avalanche_agcn.experiments import cli, report
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.results import RESULTS_FILE

N_KILLS = 100
CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


def run(options):
    """The run itself; it does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tqdm.set_lock(threading.RLock())  # forked processes share tqdm's own, which a killed one does not release
    report.write_report = report.refresh_page = lambda *args, **kwargs: None  # tables and plots take longest
    sys.exit(cli.main("coco", None, options))


def start(n_processes, method, out, *options):
    """A run in a session of its own, forked from this process, which has imported everything.

    With several processes its first one is what torchrun starts, and the others are forked from that.
    """
    process = os.fork()
    if process:
        return process
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    given = ["--smoke", "--checkpoint-minutes", "0", "--method", method, "--out", str(out), *options]
    try:
        if n_processes == 1:
            run(given)
        how = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "start_method": "fork"}
        config = LaunchConfig(1, 1, n_processes, **how, max_restarts=0)
        elastic_launch(config, run)(given)
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code)
    except BaseException:  # another process has ended
        os._exit(1)


def wait(process, n_processes, method, out):
    """The exit code of a run's first process, once the others of its session have ended.

    torchrun is killed if it has not ended 30 s after the run, that is after its other processes or its
    results. A signal in the middle of one of its log messages leaves the lock of `logging` taken, and a
    process killed after its work leaves an event of `multiprocessing` taken; it waits for either for ever.
    """
    last, results = time.monotonic(), out / f"{method}-seed0" / RESULTS_FILE
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if n_processes == 1 or (running_in(process) != [process] and not results.is_file()):
            last = time.monotonic()
        elif time.monotonic() - last > 30:
            for pid in running_in(process):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    end = time.monotonic() + 60
    while left := running_in(process):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(ended[1])


def running_in(session):
    """Ids of the processes of a session that have not ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def kill(process, number, draw):
    """Send a signal to one process of a run, or to all of them; return those that it was sent to."""
    children = psutil.Process(process).children()
    choices = [[process], *([one.pid] for one in children), [process, *(one.pid for one in children)]]
    chosen = draw.choice(choices)
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):  # a child that had ended
            os.kill(pid, number)
    return chosen


def scores(method, out):
    content = json.loads((out / f"{method}-seed0" / RESULTS_FILE).read_text())
    return {name: content.get(name) for name in ("nested", "per_class_ap", "acm", "pictures")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns scores and seconds of the whole run of a method, made once."""

    @functools.cache
    def run(n_processes, method):
        out, started = tmp_path_factory.mktemp("whole"), time.monotonic()
        assert wait(start(n_processes, method, out), n_processes, method, out) == 0
        return scores(method, out), time.monotonic() - started

    return run


@pytest.mark.slow
@pytest.mark.parametrize("k", range(N_KILLS))
def test_a_run_ended_at_a_random_moment_resumes_to_the_same_scores(k, tmp_path, whole):
    draw = random.Random(k)
    n_processes, method = draw.choice((1, 2)), list(METHODS)[k % len(METHODS)]
    number, options = draw.choice(list(CODES)), ["--workers", str(draw.randint(0, 1))]
    expected, seconds = whole(n_processes, method)
    process = start(n_processes, method, tmp_path, *options)
    time.sleep(draw.uniform(0, seconds))
    killed = kill(process, number, draw)
    ended = wait(process, n_processes, method, tmp_path)
    if n_processes == 1:  # torchrun has codes of its own
        # 0: it had finished; −number: it did not handle signals yet, for which a shell reports the same;
        # 1: a loader worker was killed, which the run reports as an error.
        assert ended in (0, CODES[number], -number, *([1] if killed != [process] else []))
    resumed = start(n_processes, method, tmp_path, "--resume", *options)
    assert wait(resumed, n_processes, method, tmp_path) == 0
    assert scores(method, tmp_path) == expected
