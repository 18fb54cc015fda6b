"""Methods compared on one benchmark: settings chosen with one budget for all, then several seeds of each."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import operator
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_agcn.experiments.ablations import Variant
from avalanche_agcn.experiments.files import write_json
from avalanche_agcn.experiments.memory import keep_freed_memory
from avalanche_agcn.experiments.results import TRIALS_FOLDER, Results, read_results
from avalanche_agcn.experiments.run import RESULTS_FILE, STATE_FILE, OtherSettings, Run
from avalanche_agcn.experiments.settings import Settings, differences
from avalanche_agcn.experiments.tables import mean_and_deviation

CHOSEN_FILE = "chosen.json"


def say_at_once(message: str) -> None:
    """Print, also into a file, when it is said."""
    print(message, flush=True)


@dataclass(frozen=True)
class Between:
    """A setting drawn between two values, evenly in its logarithm."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """A value of two digits."""
        value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{value:.1e}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the comparison.

    Attributes:
        label: Its name.
        settings: What it does, where nothing is chosen.
        space: Settings to choose: a `Between`, or a list of alternatives, each with its settings.
        like: Instead of choosing, take what was chosen for the entry of this label.
        variant: What to change then.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    space: Mapping[str, Between | Sequence[dict[str, Any]]] = field(default_factory=dict)
    like: str | None = None
    variant: Variant = lambda settings: {}

    def draw_trials(self, n: int) -> list[dict[str, Any]]:
        """``n`` settings, drawn at random but always the same for the same label and space.

        If the space has no more than ``n`` settings, each of them once.
        """
        alternatives = [choice for choice in self.space.values() if not isinstance(choice, Between)]
        if len(alternatives) == len(self.space) and math.prod(map(len, alternatives)) <= n:
            return [functools.reduce(operator.or_, chosen, {}) for chosen in product(*alternatives)]
        generator = np.random.default_rng(zlib.crc32(self.label.encode()))
        return [self._draw(generator) for _ in range(n)]

    def _draw(self, generator: np.random.Generator) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for name, choice in self.space.items():
            if isinstance(choice, Between):
                drawn[name] = choice.draw(generator)
            else:
                drawn |= choice[int(generator.integers(len(choice)))]
        return drawn


@dataclass(frozen=True, kw_only=True)
class Study:
    """Entries on one benchmark.

    Attributes:
        base: Settings that all share.
        entries: The rows.
        trials: How many settings are tried for each entry that has a space.
        validation: Share of the train images that they are judged on; the test images have no part in it.
        trial_seed: Seed of the trials.
        trial_settings: Settings of the trials alone, such as ``limit``.
        seeds: Seeds of the runs with the chosen settings.
    """

    base: Settings
    entries: Sequence[Entry]
    trials: int
    validation: float = 0.2
    trial_seed: int = 100
    trial_settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1, 2)

    def go(self, out: Path, *, jobs: int = 1, say: Callable[[str], None] = say_at_once) -> list[Results]:
        """Do what is not yet done below ``out``; the results of all entries and seeds.

        Args:
            out: Folder for results; trials are below ``out/trials``, choices in ``out/chosen.json``.
            jobs: Runs at a time, each with one thread. It does not change what comes out.
            say: Where messages go.
        """
        trials = {entry.label: self._trials(entry) for entry in self.entries if entry.space}
        tried = _run_all([s for own in trials.values() for s in own], out / TRIALS_FOLDER, jobs, say)
        chosen = self._choose(trials, tried)
        write_json(out / CHOSEN_FILE, chosen)
        wanted = [
            replace(self._settled(entry, chosen), seed=seed) for seed in self.seeds for entry in self.entries
        ]
        return list(_run_all(wanted, out, jobs, say).values())

    def _trials(self, entry: Entry) -> list[Settings]:
        shared = {**entry.settings, **self.trial_settings, "validation": self.validation}
        return [
            replace(self.base, **shared | drawn, label=f"{entry.label} {k}", seed=self.trial_seed)
            for k, drawn in enumerate(entry.draw_trials(self.trials))
        ]

    def _settled(self, entry: Entry, chosen: Mapping[str, Mapping[str, Any]]) -> Settings:
        own = chosen.get(entry.like or entry.label, {}).get("settings", {})
        settings = replace(self.base, **entry.settings, **own, label=entry.label)
        return replace(settings, **entry.variant(settings))

    def _choose(
        self, trials: Mapping[str, Sequence[Settings]], tried: Mapping[str, Results]
    ) -> dict[str, dict[str, Any]]:
        chosen = {}
        for entry in self.entries:
            if entry.label not in trials:
                continue
            scores = [tried[settings.name].summary["mAP"]["last"] for settings in trials[entry.label]]
            best = max(range(len(scores)), key=lambda k: scores[k] or 0.0)
            drawn = entry.draw_trials(self.trials)
            chosen[entry.label] = {
                "settings": drawn[best],
                "validation mAP": scores[best],
                "tried": [{**own, "validation mAP": score} for own, score in zip(drawn, scores, strict=True)],
            }
        return chosen


def read_choices(folder: Path) -> dict[str, dict[str, Any]]:
    """What `Study.go` chose.

    Raises:
        FileNotFoundError: If it has not chosen there yet.
    """
    path = folder / CHOSEN_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {path} with chosen settings; run that part of the study first")
    return json.loads(path.read_text(encoding="utf-8"))


def _run_all(
    wanted: Sequence[Settings], out: Path, jobs: int, say: Callable[[str], None]
) -> dict[str, Results]:
    """Results by the name of the run; those that are there already are taken as they are."""
    done = {settings.name: _finished(settings, out) for settings in wanted}
    missing = [settings for settings in wanted if done[settings.name] is None]
    say(f"{out}: {len(wanted)} runs, {len(missing)} of them to do")
    for k, result in enumerate(_new_results(missing, out, jobs, say), start=1):
        settings = replace(wanted[0], **result.settings)
        done[settings.name] = result
        last = mean_and_deviation([result.summary["mAP"]["last"]])
        say(f"{k} of {len(missing)}: {settings.name}: mAP {last} in {result.seconds['total']:.0f} s")
    return {name: result for name, result in done.items() if result is not None}


def _finished(settings: Settings, out: Path) -> Results | None:
    path = out / settings.name / RESULTS_FILE
    if not path.is_file():
        return None
    result = read_results(path)
    return None if differences(result.settings, settings.as_dict()) else result


def _new_results(
    missing: Sequence[Settings], out: Path, jobs: int, say: Callable[[str], None]
) -> Iterator[Results]:
    """Results as they come, up to the first run that fails."""
    if jobs == 1 or len(missing) < 2:
        for settings in missing:
            with _named_if_it_fails(settings, say):
                result = _run(settings, out)
            yield result
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        runs = {pool.submit(_run, settings, out): settings for settings in missing}
        try:
            for run in as_completed(runs):
                with _named_if_it_fails(runs[run], say):
                    result = run.result()
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _named_if_it_fails(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except Exception:
        say(f"{settings.name} failed. Runs that have begun are brought to their end.")
        raise


def _begin_worker() -> None:
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Where a killed study would leave its workers behind, at work on what nobody waits for."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(settings: Settings, out: Path) -> Results:
    """One run with one thread, so that the number of jobs does not change what comes out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints at each run
            results = _started(settings, out).go()
    finally:
        torch.set_num_threads(threads)
    (out / settings.name / STATE_FILE).unlink(missing_ok=True)
    return results


def _started(settings: Settings, out: Path) -> Run:
    try:
        return Run(settings, out, resume=True)
    except OtherSettings:  # left by another version of the study
        return Run(settings, out)
