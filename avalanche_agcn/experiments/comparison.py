"""Which method is best, by how much and why: one table, paired differences, and a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from avalanche_agcn.experiments.methods import name_of
from avalanche_agcn.experiments.results import Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.tables import Table, summary_text

CONFIDENCE = 0.95
SCORES = (
    ("mAP", "last"),
    ("mAP", "average"),
    ("CF1", "last"),
    ("OF1", "last"),
    ("mAP", "forgetting_absolute"),
)


def comparison_table(results: Sequence[Results], *, reference: str = "finetuning") -> Table:
    """All rows of one stream: scores, what is stored, and time, with the best last mAP first.

    Args:
        results: of one stream, in any number of seeds and class orders.
        reference: label whose training time per image is 1.

    Raises:
        ValueError: if there is no result of the reference.
    """
    groups = group_by_label(results)
    if reference not in groups:
        raise ValueError(f"there is no result of {reference!r} to compare times with.")
    unit = statistics.fmean(result.seconds["train"] for result in groups[reference])
    header = ["Method", "runs", "mAP last", "mAP average", "CF1", "OF1", "forgetting"]
    header += ["stored photos", "stored MB", "time"]
    rows = [
        [
            name_of(label),
            str(len(group)),
            *(summary_text(group, *score) for score in SCORES),
            *_stored(group),
            f"{statistics.fmean(result.seconds['train'] for result in group) / unit:.1f}",
        ]
        for label, group in sorted(groups.items(), key=lambda item: -_last(item[1]))
    ]
    return Table(header, rows)


def _last(group: Sequence[Results]) -> float:
    return statistics.fmean(result.summary["mAP"]["last"] or 0.0 for result in group)


def _stored(group: Sequence[Results]) -> list[str]:
    """Number of stored photos, and megabytes of all else."""
    known = [result.stored for result in group if result.stored is not None]
    if not known:
        return ["–", "–"]
    photos, size = (max(own[kind] for own in known) for kind in ("images", "bytes"))
    return [str(photos), f"{size / 1e6:.1f}"]


def paired_differences(first: Sequence[Results], second: Sequence[Results]) -> dict[str, list[float]]:
    """Differences of the last mAP between two rows, pairs with the same seed and class order, by class order.

    Raises:
        ValueError: if a result has no partner.
    """
    pairs = [{(_order(result), result.seed): result for result in group} for group in (first, second)]
    if pairs[0].keys() != pairs[1].keys():
        raise ValueError(
            f"{first[0].label!r} and {second[0].label!r} were run with different seeds or class orders: "
            f"{sorted(pairs[0].keys() ^ pairs[1].keys())}."
        )
    differences: dict[str, list[float]] = {}
    for key in sorted(pairs[0]):
        a, b = (own[key].summary["mAP"]["last"] for own in pairs)
        differences.setdefault(key[0], []).append(math.nan if a is None or b is None else a - b)
    return differences


def _order(result: Results) -> str:
    return result.settings.get("class_order") or "data"


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the mean at 95 %, by Student's t; of one value it is infinite.

    Example:
        >>> low, high = confidence_interval([1.0, 2.0, 3.0])
        >>> round(low, 2), round(high, 2)
        (-0.48, 4.48)
    """
    from scipy import stats  # of the test extra: only studies need it

    if len(values) < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stats.sem(values))
    return mean - half, mean + half


def paired_table(results: Sequence[Results], labels: Sequence[str], against: Sequence[str]) -> Table:
    """How much the last mAP of some rows lies above that of others: mean, interval, and mean per class order.

    Args:
        results: with the same seeds and class orders for every row.
        labels: rows to compare.
        against: rows to compare them with.
    """
    groups = group_by_label(results)
    orders = sorted({_order(result) for result in results})
    rows = []
    for label in labels:
        for other in against:
            by_order = paired_differences(groups[label], groups[other])
            values = [value for own in by_order.values() for value in own]
            low, high = confidence_interval(values)
            cells = [f"{statistics.fmean(values):+.1f}", f"{low:+.1f} to {high:+.1f}"]
            cells += [mean_and_deviation(by_order[order]) for order in orders]
            rows.append([f"{name_of(label)} − {name_of(other)}", str(len(values)), *cells])
    return Table(["Difference of mAP last", "pairs", "mean", "95 %", *(f"order {o}" for o in orders)], rows)


class Balance(NamedTuple):
    """AP of the classes, mean over them and over seeds, in percent: new − lost = last."""

    new: float
    """At the end of the experience that brought each class."""
    lost: float
    """Until the end of the stream."""
    last: float
    """At the end of the stream."""


def verdict(results: Sequence[Results]) -> str | None:
    """A sentence about the best method of one benchmark and the next; None if there are no two to compare.

    Methods that train on all images at once are not compared: they are upper bounds.
    """
    groups = group_by_label(results)
    known = {label: own for label, group in groups.items() if (own := balance(group)) is not None}
    if len(known) < 2:
        return None
    first, second = sorted(known, key=lambda label: -known[label].last)[:2]
    best, next_best = known[first], known[second]
    n_seeds = len(groups[first])
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    if f"{best.last:.1f}" == f"{next_best.last:.1f}":
        return (
            f"{name_of(first)} and {name_of(second)} have the best mAP after the last experience, "
            f"{best.last:.1f} ({seeds})."
        )
    reason = "learned new classes better" if best.new > next_best.new else "lost less of what was learned"
    if best.new > next_best.new and best.lost < next_best.lost:
        reason = "learned new classes better and lost less of them"
    return (
        f"{name_of(first)} has the best mAP after the last experience, {best.last:.1f} against "
        f"{next_best.last:.1f} of {name_of(second)} ({seeds}), "
        f"because it {reason}: the mean AP of its classes was {best.new:.1f} when they were new and "
        f"{_change(best)} at the end, against {next_best.new:.1f} and {_change(next_best)}."
    )


def balance(group: Sequence[Results]) -> Balance | None:
    """How well the classes were learned and kept; None for a method that is evaluated at the end only."""
    known = [row for result in group if (row := _balance(result)) is not None]
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


def _change(own: Balance) -> str:
    return f"{abs(own.lost):.1f} {'lower' if own.lost >= 0 else 'higher'}"
