"""Run what is missing of a part, and keep its results in a table, ``results.jsonl``.

A finished run becomes a line of the table at once. Runs that were made elsewhere can be added by `collect`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from pathlib import Path

import torch
from declare import Choices, Part, changed_settings, portable
from filelock import FileLock
from trials import CHOSEN_FILE, choose, read_choices

from avalanche_agcn.experiments.folder import STATE_FILE, OtherRun
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
from avalanche_agcn.experiments.settings import Settings, check_folders

Log = Callable[[str], None]
log_now = functools.partial(print, flush=True)  # so that a log file is up to date
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
"""Environment in which glibc keeps the memory of freed tensors: 7 % less time per step of Lite0 at 128 px."""


def run_part(
    part: Part, out: Path, *, rows: Collection[str] | None = None, jobs: int = 1, log: Log = log_now
) -> list[Results]:
    """Run what is missing below ``out``; return the results of its table.

    Trials are written to ``out/trials``, choices to ``out/chosen.json``, and all results to the table
    ``out/results.jsonl``. ``rows`` are labels of entries; others are not run, None runs all. ``jobs`` runs at
    a time have one thread each; results do not depend on it.
    """
    check_folders(part.final_settings({}))
    try_all = functools.partial(_run_all, stored={}, out=out / TRIALS_FOLDER, jobs=jobs, log=log)
    chosen = choose(part, out, try_all)
    declared = part.final_settings(chosen)
    wanted = [settings for settings in declared if rows is None or settings.label in rows]
    by_name = {settings.name: settings for settings in wanted}
    table = Table(out / TABLE_FILE)
    results = _run_all(wanted, table.read(), out=out, jobs=jobs, log=log, finished=table.append)
    in_table = table.read()
    for name, result in results.items():
        if name not in in_table or changed_settings(in_table[name].settings, by_name[name]):
            table.append(result)  # it was in its folder: the program had ended before it could be added
    table.sort([settings.name for settings in declared])
    return list(table.read().values())


def collect(parts: Mapping[str, Part], out: Path, folder: Path, *, log: Log = log_now) -> int:
    """Add finished runs below a folder to the tables of the parts with their settings; return how many.

    Runs that are in a table are not added again. Runs that belong to no part are logged with the reason.
    """
    wanted = {name: _wanted_by_name(part, out / name) for name, part in parts.items()}
    known = {name: Table(out / name / TABLE_FILE).read() for name in parts}
    n_added = 0
    for path in sorted(folder.rglob(RESULTS_FILE)):
        result = read_results(path)
        reasons = {}
        for name in parts:
            settings = wanted[name].get(result.name)
            reasons[name] = changed_settings(result.settings, settings) if settings else ["no such row"]
            if not reasons[name] and result.name not in known[name]:
                Table(out / name / TABLE_FILE).append(result)
                known[name][result.name] = result
                n_added += 1
        if all(reasons.values()):
            nearest = min(reasons, key=lambda name: (reasons[name] == ["no such row"], len(reasons[name])))
            log(f"{path} is left out; it differs from the part {nearest} in {'; '.join(reasons[nearest])}.")
    for name in parts:
        if known[name]:
            Table(out / name / TABLE_FILE).sort(list(wanted[name]))
    return n_added


def _wanted_by_name(part: Part, out: Path) -> dict[str, Settings]:
    """Settings of all runs of a part, with the choices that are stored, by the name of the run."""
    chosen: Choices = read_choices(out) if (out / CHOSEN_FILE).is_file() else {}
    return {settings.name: settings for settings in part.final_settings(chosen)}


class Table:
    """The table of a part. Several processes may append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Results]:
        """Results by the name of the run; empty if there is no table yet."""
        if not self.path.is_file():
            return {}
        return {result.name: result for result in read_table(self.path)}

    def append(self, result: Results) -> None:
        """Add a run at the end, or replace an older run of the same name."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            results = self.read()
            results[result.name] = _portable(result)
            write_table(self.path, list(results.values()))

    def sort(self, names: Sequence[str]) -> None:
        """Keep the runs with these names, in this order, whichever ended first."""
        with self._lock():
            results = self.read()
            kept = [name for name in names if name in results]
            if list(results) != kept:
                write_table(self.path, [results[name] for name in kept])

    def _lock(self) -> FileLock:
        return FileLock(self.path.with_name(".lock"))


def _portable(result: Results) -> Results:
    """The result with its label, and without paths of this machine."""
    settings = {**portable(result.settings), "label": result.label}
    return type(result)(**{**vars(result), "settings": settings})


def _run_all(
    wanted: Sequence[Settings],
    stored: Mapping[str, Results],
    *,
    out: Path,
    jobs: int,
    log: Log,
    finished: Callable[[Results], None] = lambda result: None,
) -> dict[str, Results]:
    """Results by the name of the run; those that are stored or in their folder are not repeated."""
    done: dict[str, Results] = {}
    missing = []
    for settings in wanted:
        result = _find_result(settings, stored, out)
        if result is None:
            missing.append(settings)
        else:
            done[settings.name] = result
    log(f"{out}: {len(wanted)} runs, {len(missing)} of them missing")
    for k, result in enumerate(_new_results(missing, out, jobs, log), start=1):
        finished(result)
        done[result.name] = result
        last = mean_and_deviation([result.summary["mAP"]["last"]])
        log(f"{k} of {len(missing)}: {result.name}: mAP {last} in {result.seconds['total']:.0f} s")
    return done


def _find_result(settings: Settings, stored: Mapping[str, Results], out: Path) -> Results | None:
    """The finished run with these settings, from its folder or from the table."""
    path = out / settings.name / RESULTS_FILE
    candidates = [read_results(path)] if path.is_file() else []
    if settings.name in stored:
        candidates.append(stored[settings.name])
    for result in candidates:
        if not changed_settings(result.settings, settings):
            return result
    return None


def _new_results(missing: Sequence[Settings], out: Path, jobs: int, log: Log) -> Iterator[Results]:
    """Results as runs end, up to the first run that fails."""
    if jobs == 1 or len(missing) < 2:
        for settings in missing:
            with _named_failure(settings.name, log):
                result = _run(settings, out)
            yield result
        return
    os.environ.update(KEEP_FREED_MEMORY)  # of the new processes
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
    try:
        submitted = {pool.submit(_run, settings, out): settings.name for settings in missing}
        for future in as_completed(submitted):
            with _named_failure(submitted[future], log):
                result = future.result()
            yield result
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _named_failure(name: str, log: Log) -> Iterator[None]:
    try:
        yield
    except Exception:
        log(f"{name} failed. Runs that have started are finished first.")
        raise


def _begin_worker() -> None:
    """Let a process of the pool end when the program is killed."""
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
