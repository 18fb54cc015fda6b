"""Ranks of the positives: what average precision and F1 of any number of nested sets are made of.

Only the ranks of the positives matter, and positives are few. So the scores of a class are sorted
alone, with no label carried along (NumPy has vector instructions for that), and each positive is looked
up among them. The decision threshold is looked up in the same way: its rank is what is predicted.

With nested sets the images that each set adds are sorted once, by themselves; the number of images
above a positive in set i is the sum over the increments 0..i.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

# Classes are copied and sorted in blocks, of at most so many classes × sets: no copy of the whole matrix is
# ever made, and what a block works on stays in the cache.
BLOCK_SIZE = 160
MOST_CLASSES = 32
# Rows become columns so many at a time: what is read and written then lies in few pages of memory.
TILE = 512
# Below this many cells, starting threads takes longer than the work.
CELLS_WORTH_THREADS = 200_000


class SetCounts(NamedTuple):
    """What was counted in each set: arrays of [sets, classes]."""

    average_precision: NDArray[np.float64]
    """NaN where the class has no positive in the set."""
    correct: Counts
    """Positives at or above the threshold."""
    predicted: Counts
    """Annotated images at or above the threshold."""
    true: Counts
    """Positives."""
    annotated: Counts
    """Images with a label for the class, 0 or 1."""


class Increment(NamedTuple):
    """The images that a set adds to the one before it, as arrays of [images, classes]."""

    scores: Scores
    positive: Mask
    annotated: Mask | None = None
    """Which cells have a label; None if all do."""


def count_sets(increments: Sequence[Increment], *, threshold: float = 0.0, threads: int = 1) -> SetCounts:
    """Rank the positives of every class in every nested set.

    Args:
        increments: Set i is made of the increments 0..i; all have the same classes.
        threshold: A score at or above it is predicted.
        threads: How many blocks of classes are worked on at a time.

    Returns:
        Counts of every class in every set; the caller picks the classes that belong to a set.

    Raises:
        ValueError: If a score is NaN.
    """
    n_classes = increments[0].scores.shape[1]
    if sum(increment.scores.size for increment in increments) < CELLS_WORTH_THREADS:
        threads = 1
    work = partial(_count_block, increments, threshold)
    blocks = _blocks(n_classes, len(increments), threads)
    own = -(-len(blocks) // threads)  # this thread works as well: starting one more takes longer
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        others = pool.map(work, blocks[own:])
        counted = [*map(work, blocks[:own]), *others]
    return SetCounts(*(np.concatenate(parts, axis=1) for parts in zip(*counted, strict=True)))


def _blocks(n_classes: int, n_sets: int, threads: int) -> list[slice]:
    """Blocks of equal size, as many for each thread."""
    most = max(1, min(MOST_CLASSES, BLOCK_SIZE // n_sets))
    n_blocks = threads * -(-n_classes // (most * threads))
    size = -(-n_classes // n_blocks)
    return [slice(start, min(start + size, n_classes)) for start in range(0, n_classes, size)]


def _count_block(increments: Sequence[Increment], threshold: float, block: slice) -> SetCounts:
    columns = _by_class([increment.scores[:, block] for increment in increments])  # [classes, images]
    positive = _by_class([increment.positive[:, block] for increment in increments])
    (n_classes, n_images), n_sets = columns.shape, len(increments)
    ends = np.cumsum([len(increment.scores) for increment in increments])
    cell = np.flatnonzero(positive)  # of the positives, class by class
    bounds = np.searchsorted(cell, np.arange(n_classes + 1) * n_images)
    ranked = columns.reshape(-1).take(cell)  # becomes ascending within each class
    enters = np.zeros(len(cell), dtype=np.int64)  # the first set of each positive
    if n_sets > 1:
        enters = np.searchsorted(ends, cell % n_images, side="right")
    above = np.empty((n_sets, len(cell)), dtype=np.int64)  # images at or above each positive
    predicted, annotated = np.zeros((2, n_sets, n_classes), dtype=np.int64)
    limit = columns.dtype.type(threshold)

    for c, column in enumerate(columns):
        own = slice(bounds[c], bounds[c + 1])
        _sort_together(ranked[own], enters[own], n_sets)
        for i, increment in enumerate(increments):
            values = column[ends[i] - len(increment.scores) : ends[i]]
            if increment.annotated is not None:
                values = values[increment.annotated[:, block.start + c]]
            values.sort()
            if len(values) and values[-1] != values[-1]:  # NaN stands last
                raise ValueError(f"scores of class {block.start + c} contain NaN; has training diverged?")
            np.subtract(len(values), values.searchsorted(ranked[own]), out=above[i, own])
            predicted[i, c] = len(values) - values.searchsorted(limit)
            annotated[i, c] = len(values)
    for before, after in pairwise(above):  # as cumsum(axis=0), which is slow at few long rows
        after += before

    ap, correct, true = _summarise(ranked, enters, above, bounds, limit)
    return SetCounts(ap, correct, predicted.cumsum(axis=0), true, annotated.cumsum(axis=0))


def _by_class(parts: Sequence[NDArray]) -> NDArray:
    """Copy parts of [images, classes] into one array of [classes, all images]."""
    joined = np.empty((parts[0].shape[1], sum(map(len, parts))), dtype=np.result_type(*parts))
    end = 0
    for part in parts:
        for start in range(0, len(part), TILE):
            tile = part[start : start + TILE]
            end += len(tile)
            joined[:, end - len(tile) : end] = tile.T
    return joined


def _sort_together(ranked: Scores, enters: Counts, n_sets: int) -> None:
    """Sort the positives of a class by score, in place, and `enters` along with them."""
    if n_sets == 1:  # then all of them enter at once
        ranked.sort()
    else:
        order = ranked.argsort()
        ranked[:], enters[:] = ranked[order], enters[order]


def _summarise(
    ranked: Scores, enters: Counts, above: Counts, bounds: Counts, limit: np.floating
) -> tuple[NDArray[np.float64], Counts, Counts]:
    """Average precision, positives at or above the limit, and positives: [sets, classes] each."""
    ends = np.repeat(bounds[1:], np.diff(bounds))  # where the class of each positive ends
    first = _first_of_ties(ranked, ends)
    found = (ranked >= limit)[None]
    if len(above) == 1:
        precision, true = (ends - first) / above, np.diff(bounds)[None]
    else:
        member = enters <= np.arange(len(above))[:, None]  # [sets, positives]
        upwards = np.zeros((len(above), len(ranked) + 1), dtype=np.int64)  # members from each one upwards
        np.cumsum(member[:, ::-1], axis=1, out=upwards[:, -2::-1])
        true = upwards[:, bounds[:-1]] - upwards[:, bounds[1:]]
        hits = upwards.take(first, axis=1) - upwards.take(ends, axis=1)
        # Where a positive is not in the set yet, there may be no image above it either.
        precision = member * hits / np.maximum(above, 1)
        found = found & member
    with np.errstate(invalid="ignore"):
        ap = _sum_by_class(precision, bounds) / true
    return ap, _sum_by_class(found, bounds), true


def _first_of_ties(ranked: Scores, ends: Counts) -> Counts:
    """Where the group of equal scores begins that each positive belongs to; `ends` tells classes apart."""
    first = np.arange(len(ranked))
    tied = (ranked[1:] == ranked[:-1]) & (ends[1:] == ends[:-1])
    if tied.any():
        first[1:][tied] = 0
        np.maximum.accumulate(first, out=first)
    return first


def _sum_by_class(values: NDArray, bounds: Counts) -> NDArray:
    """Sum [sets, positives] over the positives of each class; 0 for a class without any."""
    sums = np.zeros((len(values), len(bounds) - 1), dtype=np.result_type(values, np.int64))
    filled = bounds[:-1] < bounds[1:]
    if filled.any():
        sums[:, filled] = np.add.reduceat(values, bounds[:-1][filled], axis=1, dtype=sums.dtype)
    return sums
