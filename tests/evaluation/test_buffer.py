import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation.buffer import ScoreBuffer

NAN = math.nan


def batch(n, n_classes=3, dtype=torch.float32, unlabelled=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, n_classes, generator=generator).to(dtype)
    targets = (torch.rand(n, n_classes, generator=generator) < 0.4).float()
    return scores, targets.masked_fill(torch.rand(n, n_classes, generator=generator) < unlabelled, NAN)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 20), st.booleans())
def test_what_was_appended_comes_back_whatever_the_batches(sizes, capacity, partial):
    scores, targets = batch(sum(sizes), unlabelled=0.3 if partial else 0.0)
    buffer = ScoreBuffer(capacity)
    for part, labels in zip(scores.split(sizes), targets.split(sizes)):
        buffer.append(part, labels)
    arrays = buffer.arrays
    np.testing.assert_array_equal(arrays.scores, scores)
    np.testing.assert_array_equal(arrays.positive, targets == 1)
    annotated = np.ones_like(arrays.positive) if arrays.annotated is None else arrays.annotated
    np.testing.assert_array_equal(annotated, ~targets.isnan())


def test_labels_become_partial_when_the_first_unlabelled_cell_comes():
    buffer = ScoreBuffer()
    buffer.append(*batch(4))
    assert buffer.arrays.annotated is None
    buffer.append(torch.zeros(1, 3), torch.tensor([[NAN, 0.0, 1.0]]))
    np.testing.assert_array_equal(buffer.arrays.annotated[:4], True)
    np.testing.assert_array_equal(buffer.arrays.annotated[4], [False, True, True])


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float16, np.float32),
        (torch.bfloat16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
    ],
)
def test_scores_are_kept_exactly(dtype, kept):
    scores, targets = batch(5, dtype=dtype)
    buffer = ScoreBuffer()
    buffer.append(scores, targets)
    assert buffer.arrays.scores.dtype == kept
    np.testing.assert_array_equal(buffer.arrays.scores, scores.double())


def test_float64_after_float32_loses_nothing():
    buffer = ScoreBuffer()
    single, double = batch(5), batch(5, dtype=torch.float64)
    double = (double[0] + 1e-12, double[1])
    buffer.append(*single)
    buffer.append(*double)
    np.testing.assert_array_equal(buffer.arrays.scores, torch.cat([single[0].double(), double[0]]))


def test_known_capacity_is_neither_copied_nor_exceeded():
    buffer = ScoreBuffer(100)
    buffer.append(*batch(10))
    memory = buffer._scores
    for _ in range(9):
        buffer.append(*batch(10))
    assert buffer._scores is memory
    assert memory.nbytes == 100 * 3 * 4
    assert buffer._positive.nbytes == 100 * 3


def test_other_number_of_classes_is_refused():
    buffer = ScoreBuffer()
    buffer.append(*batch(2))
    with pytest.raises(ValueError, match="4 classes, those before had 3"):
        buffer.append(*batch(2, n_classes=4))


def test_state_goes_to_another_buffer_with_plain_tensors(tmp_path):
    buffer, other = ScoreBuffer(), ScoreBuffer()
    buffer.append(*batch(7, unlabelled=0.3))
    other.append(*batch(3, n_classes=5))
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for ours, theirs in zip(other.arrays, buffer.arrays):
        np.testing.assert_array_equal(ours, theirs)
