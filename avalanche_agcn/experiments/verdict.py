"""Who won, and why, in one sentence that is worked out from results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from avalanche_agcn.experiments.methods import name_of
from avalanche_agcn.experiments.results import Results, group_by_label


class Balance(NamedTuple):
    """AP of the classes, mean over them and over seeds, in percent: new − lost = last."""

    new: float
    """At the end of the experience that brought each class."""
    lost: float
    """Until the end of the stream."""
    last: float
    """At the end of the stream."""


def verdict(results: Sequence[Results]) -> str | None:
    """A sentence about the best method and the next one; None if there are no two to compare.

    Methods that train on all images at once are not compared: they are upper bounds.

    Args:
        results: of one benchmark.
    """
    groups = group_by_label(results)
    found = {label: balance(group) for label, group in groups.items()}
    known = {label: own for label, own in found.items() if own is not None}
    if len(known) < 2:
        return None
    first, second = sorted(known, key=lambda label: -known[label].last)[:2]
    best, next_best = known[first], known[second]
    n_seeds = len(groups[first])
    reason = "learned new classes better" if best.new > next_best.new else "lost less of what was learned"
    if best.new > next_best.new and best.lost < next_best.lost:
        reason = "learned new classes better and lost less of them"
    return (
        f"{name_of(first)} has the best mAP after the last experience, {best.last:.1f} against "
        f"{next_best.last:.1f} of {name_of(second)} ({'one seed' if n_seeds == 1 else f'{n_seeds} seeds'}), "
        f"because it {reason}: "
        f"{best.new:.1f} AP when classes were new and {_lost(best)} later, against {next_best.new:.1f} and "
        f"{_lost(next_best)}."
    )


def balance(group: Sequence[Results]) -> Balance | None:
    """How well the classes were learned and kept; None for a method that is evaluated at the end only."""
    rows = [_balance(result) for result in group]
    known = [row for row in rows if row is not None]
    return Balance(*map(statistics.fmean, zip(*known, strict=True))) if known else None


def _balance(result: Results) -> Balance | None:
    """Over the classes that have an AP both when they are new and at the end."""
    if not result.class_ap or not all(result.class_ap):
        return None
    pairs: list[tuple[float | None, float | None]] = []
    begin = 0
    for row, size in zip(result.class_ap, result.classes_per_experience, strict=True):
        pairs += zip(row[begin : begin + size], result.class_ap[-1][begin : begin + size], strict=True)
        begin += size
    known = [(new, last) for new, last in pairs if new is not None and last is not None]
    new, last = (statistics.fmean(values) for values in zip(*known, strict=True))
    return Balance(new, new - last, last)


def _lost(own: Balance) -> str:
    return f"{own.lost:.1f} lost" if own.lost >= 0 else f"{-own.lost:.1f} gained"
