"""Studies: settings chosen for each method with the same number of trials, then runs with several seeds."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from avalanche_agcn.experiments.methods import LogUniform, Space
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
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import Settings, change_settings, check_folders, differences

CHOSEN_FILE = "chosen.json"
SCORE, TRIED_WITH = "validation mAP", "settings of the first trial"
log_now = functools.partial(print, flush=True)  # also into a file


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the comparison.

    Attributes:
        label: its key, which is also the seed of its random trials.
        settings: settings that are not chosen from the ``space``.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)

    def draw_trials(self, n: int) -> list[dict[str, Any]]:
        """``n`` random settings, always the same for a label and space; or all if there are at most ``n``."""
        choices = [choice for choice in self.space.values() if not isinstance(choice, LogUniform)]
        if len(choices) == len(self.space) and math.prod(map(len, choices)) <= n:
            return [functools.reduce(operator.or_, map(dict, chosen), {}) for chosen in product(*choices)]
        # A trial draws its settings one after the other, so that fewer trials are the first of more.
        generator = np.random.default_rng(zlib.crc32(self.label.encode()))
        trials: list[dict[str, Any]] = [{} for _ in range(n)]
        for trial, (name, choice) in product(trials, self.space.items()):
            if isinstance(choice, LogUniform):
                trial[name] = choice.draw(generator)
            else:
                trial |= choice[int(generator.integers(len(choice)))]
        return trials


@dataclass(frozen=True, kw_only=True)
class Study:
    """Entries on one benchmark.

    Attributes:
        base: settings that all entries share.
        trials: number of settings to try for each entry with a space.
        validation_size: share of the train images that trials are scored on; test images are not used.
        trial_settings: settings of the trials alone, such as ``limit``.
        seeds: seeds of the runs with the chosen settings.
        class_orders: class orders of these runs, each with all seeds; trials use the base's.
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
        """Run what is missing below ``out``; return the results of all entries, seeds and class orders.

        Trials are written to ``out/trials``, choices to ``out/chosen.json``, and all results to the table
        ``out/results.jsonl``. ``jobs`` runs at a time have one thread each; results do not depend on it.
        """
        check_folders(self.final_settings({}))
        stored = read_choices(out) if (out / CHOSEN_FILE).is_file() else {}
        known = {e.label: stored[e.label] for e in self.entries if self._has_same_trials(e, stored)}
        new = [entry for entry in self.entries if entry.space and entry.label not in known]
        trials = [settings for entry in new for settings in self._trials(entry)]
        tried = _run_all(trials, out / TRIALS_FOLDER, jobs, log)
        made = known | {entry.label: self._choose(entry, tried) for entry in new}
        chosen = {entry.label: made[entry.label] for entry in self.entries if entry.space}
        write_json(out / CHOSEN_FILE, chosen)
        results = list(_run_all(self.final_settings(chosen), out, jobs, log).values())
        write_table(out / TABLE_FILE, results)
        return results

    def final_settings(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Settings]:
        """Settings of all runs, with those chosen for each label; by class order, then by seed."""
        entries = []
        for entry in self.entries:
            own = chosen.get(entry.label, {}).get("settings", {})
            entries.append(change_settings(self.base, **{**entry.settings, **own}, label=entry.label))
        return [
            change_settings(own, seed=seed, class_order=order or own.class_order)
            for order, seed, own in product(self.class_orders, self.seeds, entries)
        ]

    def _has_same_trials(self, entry: Entry, stored: Mapping[str, Any]) -> bool:
        """Whether the stored choice for an entry is from the same trials, which need not be run again."""
        choice = stored.get(entry.label)
        if not entry.space or choice is None:
            return False
        tried = [{n: v for n, v in trial.items() if n != SCORE} for trial in choice["tried"]]
        if tried != entry.draw_trials(self.trials):
            return False
        return TRIED_WITH not in choice or not differences(choice[TRIED_WITH], self._tried_with(entry))

    def _tried_with(self, entry: Entry) -> dict[str, Any]:
        """Settings of an entry's first trial, on any device."""
        settings = self._trials(entry)[0].as_dict()
        return {name: value for name, value in settings.items() if name != "device"}

    def _trials(self, entry: Entry) -> list[Settings]:
        fixed = {"validation_size": self.validation_size, "seed": self.trial_seed}
        shared = {**entry.settings, **self.trial_settings, **fixed}
        return [
            change_settings(self.base, **{**shared, **drawn}, label=f"{entry.label} {k}")
            for k, drawn in enumerate(entry.draw_trials(self.trials))
        ]

    def _choose(self, entry: Entry, tried: Mapping[str, Results]) -> dict[str, Any]:
        scores = [tried[settings.name].summary["mAP"]["last"] for settings in self._trials(entry)]
        best = max(range(len(scores)), key=lambda k: scores[k] or 0.0)
        drawn = entry.draw_trials(self.trials)
        return {
            "settings": drawn[best],
            SCORE: scores[best],
            TRIED_WITH: self._tried_with(entry),
            "tried": [{**own, SCORE: score} for own, score in zip(drawn, scores, strict=True)],
        }


def read_choices(folder: Path) -> dict[str, dict[str, Any]]:
    """Settings that `Study.run` chose; a FileNotFoundError if there are none yet."""
    path = folder / CHOSEN_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {path} with chosen settings; run that part of the study first.")
    return json.loads(path.read_text(encoding="utf-8"))


def _run_all(
    wanted: Sequence[Settings], out: Path, jobs: int, log: Callable[[str], None]
) -> dict[str, Results]:
    """Results by the name of the run; finished runs with the same settings are not repeated."""
    table = out / TABLE_FILE
    stored = {result.name: result for result in (read_table(table) if table.is_file() else ())}
    done, missing = {}, []
    for settings in wanted:
        path = out / settings.name / RESULTS_FILE
        result = read_results(path) if path.is_file() else stored.get(settings.name)
        if result and not differences(result.settings, settings.as_dict()):
            done[settings.name] = result
        else:
            missing.append(settings)
    log(f"{out}: {len(wanted)} runs, {len(missing)} of them missing")
    for k, result in enumerate(_new_results(missing, out, jobs, log), start=1):
        done[result.name] = result
        last = mean_and_deviation([result.summary["mAP"]["last"]])
        log(f"{k} of {len(missing)}: {result.name}: mAP {last} in {result.seconds['total']:.0f} s")
    return {settings.name: done[settings.name] for settings in wanted}


def _new_results(
    missing: Sequence[Settings], out: Path, jobs: int, log: Callable[[str], None]
) -> Iterator[Results]:
    """Results as runs end, up to the first run that fails."""
    with contextlib.ExitStack() as stack:
        runs: Iterable[tuple[str, Callable[[], Results]]]
        runs = [(settings.name, functools.partial(_run, settings, out)) for settings in missing]
        if jobs > 1 and len(missing) > 1:
            pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
            stack.callback(pool.shutdown, cancel_futures=True)
            submitted = {pool.submit(run): name for name, run in runs}
            runs = ((submitted[future], future.result) for future in as_completed(submitted))
        for name, get_result in runs:
            try:
                result = get_result()
            except Exception:
                log(f"{name} failed. Runs that have started are finished first.")
                raise
            yield result


def _begin_worker() -> None:
    parent = parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _run(settings: Settings, out: Path) -> Results:
    """Run in one thread, so that the number of jobs does not change the results."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints at each run
            try:
                run = Run(settings, out, resume=True)
            except OtherRun:  # from another version of the study
                run = Run(settings, out, overwrite=True)
            results = run.run()
    finally:
        torch.set_num_threads(threads)
    (out / settings.name / STATE_FILE).unlink(missing_ok=True)
    return results
