"""Ranks of the positives, which determine average precision, ROC-AUC and F1 of any number of nested sets.

Only the ranks of the positives matter, and positives are few. So the scores of a class are sorted without
their labels (NumPy sorts plain floats with vector instructions, which is much faster than an argsort), and
each positive is located among them by binary search. The decision threshold is located in the same way: its
rank is the number of predictions.

Nested set i is the increments 0..i. Each increment is sorted once, by itself; the number of images at or
above a positive in set i is the sum over the increments 0..i. So no image is sorted once per set.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

# Classes are copied and sorted in blocks of at most this many classes × sets, and at most this many classes:
# the whole matrix is never copied, and the arrays of a block stay in the cache.
BLOCK_SIZE = 160
MAX_CLASSES = 32
# Number of rows that are transposed at a time, so that source and destination are in few memory pages.
TILE = 512
# Below this many cells, starting threads takes longer than the work itself.
MIN_CELLS_FOR_THREADS = 200_000


class Batch(NamedTuple):
    """Scores and labels of some images, as arrays of [images, classes]."""

    scores: Scores
    positive: Mask
    annotated: Mask | None = None  # which cells have a label, 0 or 1; None if all have


class SetCounts(NamedTuple):
    """Average precision, ROC-AUC and counts of each class in each set."""

    average_precision: NDArray[np.float64]  # [sets, classes]; NaN where a class has no positive in a set
    counts: Counts  # [4, sets, classes]: correct, predicted, positive and annotated images
    roc_auc: NDArray[np.float64] | None  # [sets, classes]; NaN without positive or negative; None: not wanted


def count_sets(
    increments: Sequence[Sequence[Batch]], *, threshold: float = 0.0, roc_auc: bool = False, threads: int = 1
) -> SetCounts:
    """Rank the positives of every class in every nested set; the caller selects the classes of a set.

    ``increments`` has for each set the batches that it adds to the previous set, all with the same classes;
    some may be empty, but not all. A score at or above the threshold is predicted. With ``roc_auc``, that is
    computed from the same sort, by a second binary search.
    """
    batches = list(chain.from_iterable(increments))
    n_classes = batches[0].scores.shape[1]
    if sum(batch.scores.size for batch in batches) < MIN_CELLS_FOR_THREADS:
        threads = 1
    blocks = _blocks(n_classes, len(increments), threads)
    sizes = [sum(len(batch.scores) for batch in increment) for increment in increments]
    ends = np.cumsum(sizes)
    count_block = partial(_count_block, batches, ends, threshold, roc_auc)
    # The calling thread counts the first blocks itself, so that one thread fewer has to be started.
    n_here = math.ceil(len(blocks) / threads)
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        others = pool.map(count_block, blocks[n_here:])  # begins now, in the other threads
        here = [count_block(block) for block in blocks[:n_here]]
        counted = [*here, *others]
    return SetCounts(
        np.concatenate([block.average_precision for block in counted], axis=-1),
        np.concatenate([block.counts for block in counted], axis=-1),
        np.concatenate([block.roc_auc for block in counted], axis=-1) if roc_auc else None,
    )


def _blocks(n_classes: int, n_sets: int, threads: int) -> list[slice]:
    """Blocks of classes of about equal size, equally many for each thread."""
    largest = max(1, min(MAX_CLASSES, BLOCK_SIZE // n_sets))
    n_blocks = threads * math.ceil(n_classes / (largest * threads))
    size = math.ceil(n_classes / n_blocks)
    return [slice(start, min(start + size, n_classes)) for start in range(0, n_classes, size)]


def _count_block(
    batches: Sequence[Batch], ends: Counts, threshold: float, roc_auc: bool, block: slice
) -> SetCounts:
    """Counts of a block of classes; ``ends`` has the number of images of each nested set."""
    columns = _by_class([batch.scores[:, block] for batch in batches])  # [classes, images]
    positive = _by_class([batch.positive[:, block] for batch in batches])
    masks = _annotated_by_class(batches, block)
    n_classes, n_images = columns.shape
    n_sets = len(ends)

    # The positives of all classes are in one flat array, class after class; those of class c are
    # bounds[c] : bounds[c + 1]. So most steps below are one NumPy call per block instead of one per class.
    cell = np.flatnonzero(positive)
    bounds = np.searchsorted(cell, np.arange(n_classes + 1) * n_images)
    ranked = columns.reshape(-1).take(cell)  # scores of the positives; sorted within each class below
    enters = np.zeros(len(cell), dtype=np.int64)  # the first set that each positive is in
    if n_sets > 1:
        enters = np.searchsorted(ends, cell % n_images, side="right")
    above = np.empty((n_sets, len(cell)), dtype=np.int64)  # images at or above each positive
    strictly_above = np.empty_like(above) if roc_auc else None
    predicted = np.zeros((n_sets, n_classes), dtype=np.int64)
    annotated = np.zeros((n_sets, n_classes), dtype=np.int64)
    # Compared in the type of the scores: 0.7 as float32 is less than 0.7 as float64.
    limit = columns.dtype.type(threshold)

    for c, column in enumerate(columns):
        of_class = slice(bounds[c], bounds[c + 1])
        _sort_together(ranked[of_class], enters[of_class], n_sets)
        for i, (start, end) in enumerate(pairwise([0, *ends])):
            values = column[start:end] if masks is None else column[start:end][masks[c, start:end]]
            values.sort()  # in place: columns is a copy, and no later step needs the order of the images
            if len(values) and np.isnan(values[-1]):  # sorting puts NaN last
                raise ValueError(
                    f"The scores of class {block.start + c} contain NaN; check whether training diverged."
                )
            # searchsorted counts the scores below a positive; the others, with its ties, are at or above it.
            np.subtract(len(values), values.searchsorted(ranked[of_class]), out=above[i, of_class])
            if strictly_above is not None:
                below_or_tied = values.searchsorted(ranked[of_class], side="right")
                np.subtract(len(values), below_or_tied, out=strictly_above[i, of_class])
            predicted[i, c] = len(values) - values.searchsorted(limit)
            annotated[i, c] = len(values)
    _accumulate(above)
    predicted, annotated = predicted.cumsum(axis=0), annotated.cumsum(axis=0)

    ap, correct, true = _summarise(ranked, enters, above, bounds, limit)
    auc = None
    if strictly_above is not None:
        _accumulate(strictly_above)
        auc = _roc_auc(above + strictly_above, enters, bounds, true, annotated - true)
    return SetCounts(ap, np.stack([correct, predicted, true, annotated]), auc)


def _accumulate(rows: Counts) -> None:
    """Replace each row by the sum of the rows up to it: cumsum(axis=0), which is slow for few long rows."""
    for before, after in pairwise(rows):
        after += before


def _by_class(parts: Sequence[NDArray]) -> NDArray:
    """Copy parts of [images, classes] into one array of [classes, all images]."""
    dtype = np.result_type(*{part.dtype for part in parts})
    joined = np.empty((parts[0].shape[1], sum(map(len, parts))), dtype)
    end = 0
    for part in parts:
        for start in range(0, len(part), TILE):
            tile = part[start : start + TILE]
            end += len(tile)
            joined[:, end - len(tile) : end] = tile.T
    return joined


def _annotated_by_class(batches: Sequence[Batch], block: slice) -> Mask | None:
    """Which cells have a label, [classes, all images]; None if all have, which saves applying the mask."""
    if all(batch.annotated is None for batch in batches):
        return None
    parts = []
    for batch in batches:
        if batch.annotated is None:
            parts.append(np.ones_like(batch.positive[:, block]))
        else:
            parts.append(batch.annotated[:, block])
    return _by_class(parts)


def _sort_together(ranked: Scores, enters: Counts, n_sets: int) -> None:
    """Sort the positives of a class by score, in place, and ``enters`` in the same order."""
    if n_sets == 1:  # then enters is 0 everywhere, and sorting is faster than argsort
        ranked.sort()
    else:
        order = ranked.argsort()
        ranked[:] = ranked[order]
        enters[:] = enters[order]


def _summarise(
    ranked: Scores, enters: Counts, above: Counts, bounds: Counts, limit: np.floating
) -> tuple[NDArray[np.float64], Counts, Counts]:
    """Average precision, positives at or above the limit, and positives: [sets, classes] each.

    The precision at a positive is the number of positives at or above it, over the number of images at or
    above it. Positives are in ascending order, so those at or above one are all from the first of its ties
    to the end of its class.

    Args:
        ranked: scores of the positives, class after class, in ascending order within each, [positives].
        enters: the first nested set that each positive is in, [positives].
        above: number of images at or above each positive, [sets, positives].
        bounds: class c has the positives ``bounds[c] : bounds[c + 1]``, [classes + 1].
        limit: least score of a predicted label.
    """
    ends = np.repeat(bounds[1:], np.diff(bounds))  # for each positive, the end of its class
    first = _first_of_ties(ranked, ends)
    predicted = (ranked >= limit)[None]
    if len(above) == 1:
        precision = (ends - first) / above
        n_positive = np.diff(bounds)[None]
    else:
        # Set i has only the positives of increments 0..i, so they are counted with cumulative sums from the
        # right: n_from[i, k] is the number of members of set i among the positives k, k + 1, … of the block.
        member = enters <= np.arange(len(above))[:, None]  # [sets, positives]
        n_from = np.zeros((len(above), len(ranked) + 1), dtype=np.int64)  # the last column stays 0
        np.cumsum(member[:, ::-1], axis=1, out=n_from[:, -2::-1])
        n_positive = n_from[:, bounds[:-1]] - n_from[:, bounds[1:]]
        hits = n_from.take(first, axis=1) - n_from.take(ends, axis=1)
        # A positive that is not in the set yet may have no image above it: avoid 0 / 0, it counts 0 anyway.
        precision = member * hits / np.maximum(above, 1)
        predicted = predicted & member
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: a class without positives
        ap = _sum_by_class(precision, bounds) / n_positive
    return ap, _sum_by_class(predicted, bounds), n_positive


def _roc_auc(
    twice_above: Counts, enters: Counts, bounds: Counts, n_positive: Counts, n_negative: Counts
) -> NDArray[np.float64]:
    """Share of pairs of a positive and a negative with the positive above, ties as half: [sets, classes].

    ``twice_above`` has, for each positive, the images at or above it plus those strictly above it, so that an
    image above it counts 2 and a tie 1. The positives of a class contribute P² to the sum, as each of them
    counts 1 with itself and each pair of them 2; the rest are negatives.
    """
    member = enters <= np.arange(len(twice_above))[:, None]  # [sets, positives]
    twice_misranked = _sum_by_class(member * twice_above, bounds) - n_positive**2
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: a class without positives or without negatives
        return 1 - twice_misranked / (2 * n_positive * n_negative)


def _first_of_ties(ranked: Scores, ends: Counts) -> Counts:
    """For each positive, the start of its group of equal scores; groups do not cross classes."""
    first = np.arange(len(ranked))
    tied = (ranked[1:] == ranked[:-1]) & (ends[1:] == ends[:-1])
    if tied.any():
        first[1:][tied] = 0  # the running maximum then fills in the start of the group
        np.maximum.accumulate(first, out=first)
    return first


def _sum_by_class(values: NDArray, bounds: Counts) -> NDArray:
    """Sum [sets, positives] over the positives of each class; 0 for a class without any."""
    sums = np.zeros((len(values), len(bounds) - 1), dtype=np.result_type(values, np.int64))
    filled = bounds[:-1] < bounds[1:]  # for an empty range, reduceat would return the next value instead of 0
    if filled.any():
        sums[:, filled] = np.add.reduceat(values, bounds[:-1][filled], axis=1, dtype=sums.dtype)
    return sums
