"""Rows that several streams share: every method with the settings that were chosen on coco18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from declare import Entry

from avalanche_agcn.experiments.methods import FULL, METHODS, SMALL, VARIANTS, Choice, small_settings

REPLAYING = ("er", "prs", "ocdm")

NEGATIVES = {"negatives": ("memory",)}
STATISTICS = {"negatives": ("statistics",)}
WITH_NEGATIVES: dict[str, dict[str, Any]] = {
    "agcn statistics": {"method": FULL, "preset": "statistics"},
    "finetuning + statistics": {"method": "finetuning", **STATISTICS},
    "er + negatives": {"method": "er", **NEGATIVES},
    "prs + negatives": {"method": "prs", **NEGATIVES},
    "ocdm + negatives": {"method": "ocdm", **NEGATIVES},
    "scr + negatives": {"method": "scr", **NEGATIVES},
    "ewc + statistics": {"method": "ewc", **STATISTICS},
    "lwf + statistics": {"method": "lwf", **STATISTICS},
    "er + statistics": {"method": "er", **STATISTICS},
    "csc + statistics": {"method": "csc", **STATISTICS},
    "agcn statistics + er + negatives": {"method": FULL, "preset": "statistics", **NEGATIVES},
}
"""Variants with negatives from a memory or from statistics, by label."""


def frozen_entry(label: str) -> Entry:
    """A row with the settings of ``--defaults small``: a frozen Lite0 at 224 pixels."""
    changes = WITH_NEGATIVES.get(label, {"method": label})
    choice = Choice(changes["method"], label if label in SMALL["methods"] else None)
    return Entry(label=label, settings={**small_settings("coco", choice), **changes})


def frozen_entries() -> list[Entry]:
    """A row for every method of the registry and every variant with negatives."""
    return [frozen_entry(label) for label in [*METHODS, *WITH_NEGATIVES]]


OF_EQUAL_BYTES = ("streaming_ridge", "agcn statistics", *REPLAYING, *(f"{m} + negatives" for m in REPLAYING))
"""Rows of the comparison at equal bytes."""


def equal_bytes(entries: Mapping[str, Entry], photos: Mapping[str, int]) -> list[Entry]:
    """Rows with sums of each kind, and with a memory of as many photos as take the same bytes.

    ``entries`` has those of `OF_EQUAL_BYTES` by label, ``photos`` the number of photos for each kind of sums.
    """
    made = []
    for kind, n_photos in photos.items():
        for label in OF_EQUAL_BYTES:
            entry = entries[label]
            has_memory = entry.settings["method"] in REPLAYING
            case = f"{n_photos} photos" if has_memory else kind
            change = {"mem_size": n_photos} if has_memory else {"statistics": kind}
            made.append(replace(entry, label=f"{label}, {case}", settings={**entry.settings, **change}))
    return made


def without_a_part(full: Entry, weights: Mapping[str, Any], labels: Sequence[str]) -> list[Entry]:
    """The row of AGCN, whose loss weights are given, without one of its parts each, by label."""
    entries = []
    for label in labels:
        changes = VARIANTS[label].changes(weights)
        entries.append(Entry(label=label, settings={**full.settings, **changes}))
    return entries
