"""Counts of nested sets against counting one by one, and however the work is divided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.evaluation import _ranking
from avalanche_agcn.evaluation._ranking import Batch, count_sets


def count_one_by_one(scores, positive, annotated, threshold):
    """The counts of one class in one set, by definition."""
    scores, positive = scores[annotated], positive[annotated]
    precisions = [
        np.count_nonzero(scores[positive] >= score) / np.count_nonzero(scores >= score)
        for score in scores[positive]
    ]
    predicted = scores >= threshold
    ap = np.mean(precisions) if precisions else np.nan
    negatives = scores[~positive]
    pairs = [(score > negatives).sum() + (score == negatives).sum() / 2 for score in scores[positive]]
    auc = np.sum(pairs) / (len(pairs) * len(negatives)) if len(pairs) * len(negatives) else np.nan
    return ap, auc, np.sum(predicted & positive), np.sum(predicted), np.sum(positive), len(scores)


@st.composite
def batches(draw, rng, n_classes, levels):
    """The batches of one increment: many ties, some unlabelled cells, some classes without positives."""
    made = []
    for size in draw(st.lists(st.integers(0, 5), max_size=3)):
        annotated = rng.random((size, n_classes)) < 0.7 if draw(st.booleans()) else None
        positive = (rng.random((size, n_classes)) < 0.4) & (True if annotated is None else annotated)
        scores = rng.integers(-levels, levels + 1, (size, n_classes)).astype(np.float32)
        scores[rng.random(scores.shape) < 0.05] = -np.inf
        made.append(Batch(scores, positive, annotated))
    return made


@st.composite
def nested_sets(draw):
    """Increments of several batches each; the first has one, which may have no images."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = batches(rng, draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    first = draw(made.filter(len))
    return [first, *draw(st.lists(made, max_size=3))]


@settings(deadline=None, max_examples=150)
@given(nested_sets(), st.sampled_from([-2.0, 0.0, 1.0]))
def test_counts_equal_counting_one_by_one(increments, threshold):
    precision, counts, auc = count_sets(increments, threshold=threshold, roc_auc=True)
    assert count_sets(increments, threshold=threshold).roc_auc is None
    for i in range(len(increments)):
        parts = [batch for increment in increments[: i + 1] for batch in increment]
        scores, positive = (np.concatenate([part[k] for part in parts]) for k in range(2))
        masks = [np.ones_like(p.positive) if p.annotated is None else p.annotated for p in parts]
        annotated = np.concatenate(masks)
        for c in range(scores.shape[1]):
            expected = count_one_by_one(scores[:, c], positive[:, c], annotated[:, c], threshold)
            found = [precision[i, c], auc[i, c], *counts[:, i, c]]
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("block", "tile"), [(1, 30), (3, 7), (16, 1000)])
def test_counts_do_not_depend_on_blocks_tiles_and_threads(monkeypatch, threads, block, tile):
    rng = np.random.default_rng(0)
    increments = [
        [Batch(rng.standard_normal((n, 7)).astype(np.float32), rng.random((n, 7)) < 0.2)]
        for n in (30, 20, 50)
    ]
    before = [batch.scores.copy() for (batch,) in increments]
    expected = count_sets(increments, roc_auc=True)
    monkeypatch.setattr(_ranking, "MIN_CELLS_FOR_THREADS", 0)
    monkeypatch.setattr(_ranking, "MAX_CLASSES", block)
    monkeypatch.setattr(_ranking, "TILE", tile)
    for got, want in zip(count_sets(increments, roc_auc=True, threads=threads), expected):
        np.testing.assert_array_equal(got, want)
    for (batch,), scores in zip(increments, before):  # inputs are not modified
        np.testing.assert_array_equal(batch.scores, scores)


@pytest.mark.parametrize("n_sets", [1, 10, 1000])
@pytest.mark.parametrize(("n_classes", "threads"), [(1, 1), (1, 4), (40, 2), (81, 2), (2000, 3), (17, 1)])
def test_blocks_cover_every_class_once_and_stay_small(n_classes, n_sets, threads):
    blocks = _ranking._blocks(n_classes, n_sets, threads)
    assert [c for block in blocks for c in range(block.start, block.stop)] == list(range(n_classes))
    largest = max(block.stop - block.start for block in blocks)
    assert largest <= _ranking.MAX_CLASSES
    assert largest == 1 or largest * n_sets <= _ranking.BLOCK_SIZE
