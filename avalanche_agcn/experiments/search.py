"""Studies: settings chosen for each method with one budget for all, then several seeds of each."""

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
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.folder import STATE_FILE, OtherRun
from avalanche_agcn.experiments.methods import VARIANTS, LogUniform, Space
from avalanche_agcn.experiments.results import (
    RESULTS_FILE,
    TABLE_FILE,
    TRIALS_FOLDER,
    Results,
    mean_and_deviation,
    read_results,
    read_table,
    write_table,
)
from avalanche_agcn.experiments.run import Run, keep_freed_memory
from avalanche_agcn.experiments.settings import Settings, change_settings, check_folders, differences

CHOSEN_FILE = "chosen.json"
SCORE, TRIED_WITH = "validation mAP", "settings of the first trial"
log_now = functools.partial(print, flush=True)  # also into a file


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the comparison.

    Attributes:
        label: its key, which is also the seed of its random trials.
        settings: of the run, beside those that are chosen from the ``space``.
        like: instead of choosing, take what was chosen for the entry of this label, with the changes of the
            variant in the registry that has the label of this entry, if any.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    like: str | None = None

    def draw_trials(self, n: int) -> list[dict[str, Any]]:
        """``n`` settings, drawn at random but always the same for a label and space; or all if few."""
        choices = [choice for choice in self.space.values() if not isinstance(choice, LogUniform)]
        if len(choices) == len(self.space) and math.prod(map(len, choices)) <= n:
            return [functools.reduce(operator.or_, map(dict, chosen), {}) for chosen in product(*choices)]
        generator = np.random.default_rng(zlib.crc32(self.label.encode()))
        return [self._draw(generator) for _ in range(n)]

    def _draw(self, generator: np.random.Generator) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for name, choice in self.space.items():
            if isinstance(choice, LogUniform):
                drawn[name] = choice.draw(generator)
            else:
                drawn |= choice[int(generator.integers(len(choice)))]
        return drawn


@dataclass(frozen=True, kw_only=True)
class Study:
    """Entries on one benchmark.

    Attributes:
        base: settings that all share.
        entries: the rows.
        trials: number of settings that are tried for each entry with a space.
        validation_size: share of the train images that trials are scored on; the test images are not used.
        trial_seed: seed of the trials.
        trial_settings: settings of the trials alone, such as ``limit``.
        seeds: seeds of the runs with the chosen settings.
        class_orders: orders of the classes in these runs, each with all seeds; trials have the base's.
    """

    base: Settings
    entries: Sequence[Entry]
    trials: int
    validation_size: float = 0.2
    trial_seed: int = 100
    trial_settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1, 2)
    class_orders: Sequence[str | None] = (None,)

    def run(self, out: Path, *, jobs: int = 1, log: Callable[[str], None] = log_now) -> list[Results]:
        """Run what is missing below ``out``; return the results of all entries and seeds.

        Args:
            out: folder for results; trials are below ``out/trials``, choices in ``out/chosen.json``, and the
                results of all entries and seeds in the table ``out/results.jsonl``.
            jobs: runs at a time, each with one thread. It does not change the results.
            log: receives messages.
        """
        check_folders(self.final_settings({}))
        known = self._known_choices(out)
        trials = {e.label: self._trials(e) for e in self.entries if e.space and e.label not in known}
        tried = _run_all([s for own in trials.values() for s in own], out / TRIALS_FOLDER, jobs, log)
        new = self._choose(trials, tried)
        chosen = {e.label: {**known, **new}[e.label] for e in self.entries if e.space}
        write_json(out / CHOSEN_FILE, chosen)
        results = list(_run_all(self.final_settings(chosen), out, jobs, log).values())
        write_table(out / TABLE_FILE, results)
        return results

    def final_settings(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Settings]:
        """Settings of all runs, with what was chosen for each label; seed by seed, order by order."""
        entries = [self._final_settings(entry, chosen) for entry in self.entries]
        return [
            change_settings(own, seed=seed, class_order=order or own.class_order)
            for order, seed, own in product(self.class_orders, self.seeds, entries)
        ]

    def _known_choices(self, out: Path) -> dict[str, dict[str, Any]]:
        """Choices that were made before from the same trials, which need not be run again."""
        stored = read_choices(out) if (out / CHOSEN_FILE).is_file() else {}
        return {e.label: stored[e.label] for e in self.entries if self._is_known(e, stored.get(e.label))}

    def _is_known(self, entry: Entry, choice: Mapping[str, Any] | None) -> bool:
        if choice is None or not entry.space:
            return False
        tried = [{n: v for n, v in trial.items() if n != SCORE} for trial in choice["tried"]]
        same = TRIED_WITH not in choice or not differences(choice[TRIED_WITH], self._tried_with(entry))
        return same and tried == entry.draw_trials(self.trials)

    def _tried_with(self, entry: Entry) -> dict[str, Any]:
        """Settings of an entry's first trial, on any device."""
        settings = self._trials(entry)[0].as_dict()
        return {name: value for name, value in settings.items() if name != "device"}

    def _trials(self, entry: Entry) -> list[Settings]:
        shared = {**entry.settings, **self.trial_settings, "validation_size": self.validation_size}
        shared["seed"] = self.trial_seed
        return [
            change_settings(self.base, **{**shared, **drawn}, label=f"{entry.label} {k}")
            for k, drawn in enumerate(entry.draw_trials(self.trials))
        ]

    def _final_settings(self, entry: Entry, chosen: Mapping[str, Mapping[str, Any]]) -> Settings:
        own = chosen.get(entry.like or entry.label, {}).get("settings", {})
        settings = change_settings(self.base, **{**entry.settings, **own}, label=entry.label)
        if entry.like is None or entry.label not in VARIANTS:
            return settings
        return change_settings(settings, **VARIANTS[entry.label].changes(settings.method_settings))

    def _choose(
        self, trials: Mapping[str, Sequence[Settings]], tried: Mapping[str, Results]
    ) -> dict[str, dict[str, Any]]:
        chosen = {}
        for entry in (entry for entry in self.entries if entry.label in trials):
            scores = [tried[settings.name].summary["mAP"]["last"] for settings in trials[entry.label]]
            best = max(range(len(scores)), key=lambda k: scores[k] or 0.0)
            drawn = entry.draw_trials(self.trials)
            chosen[entry.label] = {
                "settings": drawn[best],
                SCORE: scores[best],
                TRIED_WITH: self._tried_with(entry),
                "tried": [{**own, SCORE: score} for own, score in zip(drawn, scores, strict=True)],
            }
        return chosen


def read_choices(folder: Path) -> dict[str, dict[str, Any]]:
    """What `Study.run` chose; a FileNotFoundError if it has not chosen there yet."""
    path = folder / CHOSEN_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {path} with chosen settings; run that part of the study first.")
    return json.loads(path.read_text(encoding="utf-8"))


def _run_all(
    wanted: Sequence[Settings], out: Path, jobs: int, log: Callable[[str], None]
) -> dict[str, Results]:
    """Results by the name of the run; finished runs with the same settings are not repeated."""
    table = out / TABLE_FILE
    finished = {result.name: result for result in (read_table(table) if table.is_file() else ())}
    done = {settings.name: _finished(settings, out, finished) for settings in wanted}
    missing = [settings for settings in wanted if done[settings.name] is None]
    log(f"{out}: {len(wanted)} runs, {len(missing)} of them missing")
    for k, result in enumerate(_new_results(missing, out, jobs, log), start=1):
        done[result.name] = result
        last = mean_and_deviation([result.summary["mAP"]["last"]])
        log(f"{k} of {len(missing)}: {result.name}: mAP {last} in {result.seconds['total']:.0f} s")
    return {name: result for name, result in done.items() if result is not None}


def _finished(settings: Settings, out: Path, table: Mapping[str, Results]) -> Results | None:
    path = out / settings.name / RESULTS_FILE
    result = read_results(path) if path.is_file() else table.get(settings.name)
    return result if result and not differences(result.settings, settings.as_dict()) else None


def _new_results(
    missing: Sequence[Settings], out: Path, jobs: int, log: Callable[[str], None]
) -> Iterator[Results]:
    """Results as runs end, up to the first run that fails."""
    if jobs == 1 or len(missing) < 2:
        for settings in missing:
            with _name_failed_run(settings, log):
                result = _run(settings, out)
            yield result
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        runs = {pool.submit(_run, settings, out): settings for settings in missing}
        try:
            for run in as_completed(runs):
                with _name_failed_run(runs[run], log):
                    result = run.result()
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _name_failed_run(settings: Settings, log: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except Exception:
        log(f"{settings.name} failed. Runs that have started are finished first.")
        raise


def _begin_worker() -> None:
    keep_freed_memory()
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent dies."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(settings: Settings, out: Path) -> Results:
    """One run with one thread, so that the number of jobs does not change the results."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints at each run
            try:
                run = Run(settings, out, resume=True)
            except OtherRun:  # left by another version of the study
                run = Run(settings, out, overwrite=True)
            results = run.run()
    finally:
        torch.set_num_threads(threads)
    (out / settings.name / STATE_FILE).unlink(missing_ok=True)
    return results
