"""Shared by the scripts of this folder: timing, rows with their bounds, tables, the command line."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number.

    Attributes:
        what: what was measured, and against what.
        measured: the number; a ratio where nothing else is said.
        bound: what it must not pass, if anything.
        at_least: whether it must not fall below the bound, instead of rise above.
        unit: of both numbers.
        note: why the bound is what it is, or what to make of the number.
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
        sign = "≥" if self.at_least else "≤"
        bound = "" if self.bound is None else f"{sign} {number(self.bound)}{self.unit}"
        verdict = "" if self.bound is None else "**missed**" if self.missed else "ok"
        return f"| {self.what} | {number(self.measured)}{self.unit} | {bound} | {verdict} | {self.note} |"


@dataclass(frozen=True)
class Topic:
    """Rows that belong together.

    Attributes:
        title: of their table.
        about: what is compared, and how.
        rows: the rows.
    """

    title: str
    about: str
    rows: Sequence[Row]

    def __str__(self) -> str:
        return "\n".join([HEADER, *map(str, self.rows)])


Side = TypeVar("Side", bound=Hashable)
Measure = Callable[[argparse.Namespace], list[Topic]]


def run_script(
    description: str,
    measure: Measure,
    *,
    repeats: int,
    threads: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Read the command line, measure, print the tables and report whether all bounds hold.

    Args:
        description: the script's docstring.
        measure: from arguments (``repeats``, ``quick`` and the script's own) to topics.
        repeats: how often each side has its turn, if not given.
        threads: threads of torch, if not given; as torch has it if None.
        options: further options, with what ``add_argument`` takes.
        argv: the command line, if not the process's own.

    Returns:
        1 if a bound is missed, else 0.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, help=f"turns of each side; the best counts ({repeats})")
    parser.add_argument("--threads", type=int, default=threads, help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="a rough look: few turns, no slow measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    for name, settings in (options or {}).items():
        parser.add_argument(name, **settings)
    arguments = parser.parse_args(argv)
    if arguments.repeats is None:
        arguments.repeats = min(repeats, QUICK_REPEATS) if arguments.quick else repeats
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        topics = measure(arguments)
    for topic in topics:
        print(f"\n{topic.title}\n\n{topic}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(topic) for topic in topics], ensure_ascii=False))
    return int(any(row.missed for topic in topics for row in topic.rows))


def read_topics(topics: Sequence[Mapping[str, Any]]) -> list[Topic]:
    """Topics from the plain values that ``--json`` wrote."""
    return [Topic(t["title"], t["about"], [Row(**row) for row in t["rows"]]) for t in topics]


def now() -> float:
    """A clock: the processor's time on one thread, which other work on the machine does not show in."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_times(
    sides: Mapping[Side, Callable[[], object]], repeats: int, *, clock: Callable[[], float] = now
) -> dict[Side, float]:
    """The shortest time of each side in seconds; they take turns, so that all meet the same load."""
    times: dict[Side, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            gc.collect()
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: min(taken) for name, taken in times.items()}


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own, for effects on the whole process.

    Where processes can be forked the child has all modules already; so nothing may have computed before, as
    threads of torch do not survive it.
    """
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def number(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
