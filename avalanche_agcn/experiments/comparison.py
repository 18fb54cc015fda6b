"""Comparison of methods over seeds and class orders: one table, and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats

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
    mean = statistics.fmean(values)
    if len(values) < 2:
        return -math.inf, math.inf
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
