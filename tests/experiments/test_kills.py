"""Runs that are ended by a signal at 100 random moments, over all methods, resume to the same scores."""

import functools
import json
import os
import random
import signal
import time

import pytest

from avalanche_agcn.experiments import cli, report
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.results import RESULTS_FILE

N_KILLS = 100
CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


def start(method, out, *options):
    """A run in a process of its own, forked from this one, which has imported everything."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report.write_report = report.refresh_page = lambda *args, **kwargs: None  # tables and plots take longest
    given = ["--smoke", "--checkpoint-minutes", "0", "--method", method, "--out", str(out), *options]
    os._exit(cli.main("coco", None, given))


def wait(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def scores(method, out):
    content = json.loads((out / f"{method}-seed0" / RESULTS_FILE).read_text())
    return {name: content.get(name) for name in ("nested", "per_class_ap", "acm", "pictures")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns scores and seconds of the whole run of a method, made once."""

    @functools.cache
    def run(method):
        out, started = tmp_path_factory.mktemp("whole"), time.monotonic()
        assert wait(start(method, out)) == 0
        return scores(method, out), time.monotonic() - started

    return run


@pytest.mark.slow
@pytest.mark.parametrize("k", range(N_KILLS))
def test_a_run_ended_at_a_random_moment_resumes_to_the_same_scores(k, tmp_path, whole):
    draw = random.Random(k)
    method, number = list(METHODS)[k % len(METHODS)], draw.choice(list(CODES))
    expected, seconds = whole(method)
    options = ["--workers", str(draw.randint(0, 1))]
    process = start(method, tmp_path, *options)
    time.sleep(draw.uniform(0, seconds))
    os.kill(process, number)
    ended = wait(process)
    # 0: it had finished; −number: it had not begun to handle signals, which a shell reports as the same code.
    assert ended in (0, CODES[number], -number)
    assert wait(start(method, tmp_path, "--resume", *options)) == 0
    assert scores(method, tmp_path) == expected
