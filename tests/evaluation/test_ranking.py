"""Ranks against counting one by one, and against each other however the work is cut up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.evaluation import ranking
from avalanche_agcn.evaluation.ranking import Increment, count_sets


def count_one_by_one(scores, positive, annotated, threshold):
    """The figures of one class of one set, by definition."""
    scores, positive = scores[annotated], positive[annotated]
    precisions = [
        np.count_nonzero(scores[positive] >= score) / np.count_nonzero(scores >= score)
        for score in scores[positive]
    ]
    predicted = scores >= threshold
    ap = np.mean(precisions) if precisions else np.nan
    return ap, np.sum(predicted & positive), np.sum(predicted), np.sum(positive), len(scores)


@st.composite
def increments(draw):
    """Increments with many ties, some unlabelled cells, some classes without positives."""
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    n_classes = draw(st.integers(1, 5))
    levels = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    partial = draw(st.booleans())
    result = []
    for size in sizes:
        annotated = rng.random((size, n_classes)) < 0.7 if partial else None
        positive = rng.random((size, n_classes)) < 0.4
        if annotated is not None:
            positive &= annotated
        scores = rng.integers(-levels, levels + 1, (size, n_classes)).astype(np.float32)
        scores[rng.random(scores.shape) < 0.05] = -np.inf
        result.append(Increment(scores, positive, annotated))
    return result


@settings(deadline=None, max_examples=150)
@given(increments(), st.sampled_from([-2.0, 0.0, 1.0]))
def test_counts_equal_counting_one_by_one(parts, threshold):
    counts = count_sets(parts, threshold=threshold)
    for i in range(len(parts)):
        scores = np.concatenate([part.scores for part in parts[: i + 1]])
        positive = np.concatenate([part.positive for part in parts[: i + 1]])
        annotated = np.concatenate(
            [np.ones_like(p.positive) if p.annotated is None else p.annotated for p in parts[: i + 1]]
        )
        for c in range(scores.shape[1]):
            expected = count_one_by_one(scores[:, c], positive[:, c], annotated[:, c], threshold)
            np.testing.assert_allclose([field[i, c] for field in counts], expected, rtol=1e-14)


def random_increments(n_classes, sizes=(30, 20, 50)):
    rng = np.random.default_rng(0)
    return [
        Increment(rng.standard_normal((n, n_classes)).astype(np.float32), rng.random((n, n_classes)) < 0.2)
        for n in sizes
    ]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("block", "tile"), [(1, 30), (3, 7), (16, 1000)])
def test_counts_do_not_depend_on_blocks_tiles_and_threads(monkeypatch, threads, block, tile):
    parts = random_increments(n_classes=7)
    expected = count_sets(parts)
    monkeypatch.setattr(ranking, "CELLS_WORTH_THREADS", 0)
    monkeypatch.setattr(ranking, "MOST_CLASSES", block)
    monkeypatch.setattr(ranking, "TILE", tile)
    for got, want in zip(count_sets(parts, threads=threads), expected):
        np.testing.assert_array_equal(got, want)


def test_inputs_are_not_modified():
    parts = random_increments(n_classes=3)
    before = [part.scores.copy() for part in parts]
    count_sets(parts)
    for part, scores in zip(parts, before):
        np.testing.assert_array_equal(part.scores, scores)


def test_nan_score_is_refused_with_its_class():
    parts = random_increments(n_classes=3)
    parts[1].scores[4, 2] = np.nan
    with pytest.raises(ValueError, match="class 2 contain NaN"):
        count_sets(parts)


@pytest.mark.parametrize("n_sets", [1, 10, 1000])
@pytest.mark.parametrize(("n_classes", "threads"), [(1, 1), (1, 4), (40, 2), (81, 2), (2000, 3), (17, 1)])
def test_blocks_cover_every_class_once_and_stay_small(n_classes, n_sets, threads):
    blocks = ranking._blocks(n_classes, n_sets, threads)
    assert [c for block in blocks for c in range(block.start, block.stop)] == list(range(n_classes))
    largest = max(block.stop - block.start for block in blocks)
    assert largest <= ranking.MOST_CLASSES
    assert largest == 1 or largest * n_sets <= ranking.BLOCK_SIZE
