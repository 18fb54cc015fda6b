"""Timing, rows with bounds, tables and the command line of the scripts in this folder.

A script has a function that returns its tables, and ends with one line::

    def measure(arguments):  # .repeats: turns of each side; .quick: small sizes
        rows = [ratio("ours / theirs", ours, theirs, bound=1.1, repeats=arguments.repeats)]
        return [Topic("Title", "What is compared.", rows)]

    raise SystemExit(run_script(__doc__, measure, repeats=5))

`ratio` times two functions in turns; a `Row` holds any other number with its bound. `steps.py` times the
training steps of strategies. `run_all.py` lists all scripts in `SCRIPTS`.
"""

import argparse
import gc
import json
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

QUICK_REPEATS = 2
HEADER = "| what | measured | bound | | |\n| --- | ---: | ---: | --- | --- |"
Side = TypeVar("Side", bound=Hashable)


@dataclass(frozen=True)
class Row:
    """One measured number: a ratio, or in a unit.

    The bound is the largest value allowed, or the smallest with ``at_least``; the note gives its reason.
    """

    what: str
    measured: float
    bound: float | None = None
    at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether the bound does not hold."""
        if self.bound is None:
            return False
        return self.measured < self.bound if self.at_least else self.measured > self.bound

    def __str__(self) -> str:
        bound = verdict = ""
        if self.bound is not None:
            bound = f"{'≥' if self.at_least else '≤'} {number(self.bound)}{self.unit}"
            verdict = "**missed**" if self.missed else "ok"
        return f"| {self.what} | {number(self.measured)}{self.unit} | {bound} | {verdict} | {self.note} |"


@dataclass(frozen=True)
class Topic:
    """A table: its title, what is compared in it, and its rows."""

    title: str
    about: str
    rows: Sequence[Row]

    def __str__(self) -> str:
        return "\n".join([HEADER, *map(str, self.rows)])


def number(value: float) -> str:
    """Format with three significant digits and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def now() -> float:
    """CPU time with one thread, which other processes do not affect; wall-clock time with several."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_times(
    sides: Mapping[Side, Callable[[], object]], repeats: int, *, clock: Callable[[], float] = now
) -> dict[Side, float]:
    """Shortest time of each side in seconds; the sides take turns, so that all see the same load."""
    times: dict[Side, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            gc.collect()
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: min(taken) for name, taken in times.items()}


def ratio(
    what: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    bound: float,
    repeats: int,
    note: str = "",
) -> Row:
    """A row with the time of one function over that of another."""
    seconds = best_times({"ours": ours, "theirs": theirs}, repeats)
    return Row(what, seconds["ours"] / seconds["theirs"], bound, note=note)


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a process of its own, to measure effects on a whole process.

    On Linux the process is forked, with all modules loaded. Call this before torch computes anything: its
    threads do not survive a fork.
    """
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def peak_megabytes() -> float:
    """Largest memory that this process has had so far."""
    in_bytes = sys.platform == "darwin"  # elsewhere in kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if in_bytes else 1024)


def run_script(
    description: str | None,
    measure: Callable[[argparse.Namespace], list[Topic]],
    *,
    repeats: int,
    threads: int | None = None,
) -> int:
    """Parse the command line, measure and print the tables; return 1 if a bound is missed, else 0.

    ``repeats`` is the default number of turns, ``threads`` that of torch's threads (torch's own if None).
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, help=f"turns; the best counts (default: {repeats})")
    parser.add_argument("--quick", action="store_true", help="rough numbers: few turns, no slow measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args()
    if arguments.repeats is None:
        arguments.repeats = min(repeats, QUICK_REPEATS) if arguments.quick else repeats
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        topics = measure(arguments)
    for topic in topics:
        print(f"\n{topic.title}\n\n{topic}")
    if arguments.json:
        content = json.dumps([asdict(topic) for topic in topics], ensure_ascii=False)
        arguments.json.write_text(content, encoding="utf-8")
    return int(any(row.missed for topic in topics for row in topic.rows))
