import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.methods.l3a import L3AStatistics, class_weights, sample_weights

SIZES, WIDTH = [2, 1, 3], 5


def make_experiences(seed=0, n=30):
    """Features and own labels of each experience, some images without any label."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(sum(SIZES), WIDTH))
    made, start = [], 0
    for size in SIZES:
        y = (rng.random((n, sum(SIZES))) < 0.4).astype(float)
        z = np.maximum(y @ directions + 0.3 * rng.normal(size=(n, WIDTH)), 0)
        made.append((z, y[:, start : start + size]))
        start += size
    return made


def brute_force(experiences, ridge, threshold):
    """L3A over raw rows, one image after the other."""
    n_classes = sum(SIZES)
    rows, counts, W, seen = [], np.zeros(n_classes), None, 0
    for z, own in experiences:
        size = own.shape[1]
        counts[seen : seen + size] = own.sum(0)
        present = [c for c in range(n_classes) if counts[c] > 0]
        total = sum(counts[c] ** -0.5 for c in present)
        w = {c: len(present) * counts[c] ** -0.5 / total for c in present}
        for features, label_row in zip(z, own):
            y = np.zeros(n_classes)
            y[seen : seen + size] = label_row
            for c in range(seen):
                y[c] = float(1 / (1 + math.exp(-(features @ W[:, c]))) > threshold)
            positives = [w[c] for c in range(n_classes) if y[c]]
            omega = sum(positives) / len(positives) if positives else 1.0
            rows.append((omega, features, y))
        seen += size
        A = sum(omega * np.outer(f, f) for omega, f, _ in rows) + ridge * np.eye(WIDTH)
        C = sum(omega * np.outer(f, y) for omega, f, y in rows)
        W = np.linalg.inv(A) @ C
    return W, rows


def train(experiences, batch, ridge=2.0, threshold=0.6, save_at=None):
    statistics = L3AStatistics(ridge=ridge, threshold=threshold)
    for t, (z, own) in enumerate(experiences):
        z, own = torch.from_numpy(z), torch.from_numpy(own)
        statistics.begin(own.sum(0))
        for i in range(0, len(z), batch):
            statistics.update(z[i : i + batch], own[i : i + batch])
            if (t, i) == save_at:
                state = {name: tensor.clone() for name, tensor in statistics.state_dict().items()}
                statistics = L3AStatistics(ridge=ridge, threshold=threshold)
                statistics.load_state_dict(state)
    return statistics


@pytest.mark.parametrize("seed", range(3))
def test_solution_equals_brute_force_over_raw_rows(seed):
    experiences = make_experiences(seed)
    expected, rows = brute_force(experiences, 2.0, 0.6)
    found = train(experiences, batch=7).solve()
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-9, atol=1e-11)
    old = np.array([y[:2] for _, _, y in rows[30:]])
    assert 0 < old.mean() < 1  # pseudo-labels of both kinds occur
    assert any(omega == 1.0 and not y.any() for omega, _, y in rows)  # and images without labels


@given(st.integers(1, 40), st.integers(0, 3), st.booleans())
def test_batches_and_order_within_an_experience_do_not_matter(batch, seed, reverse):
    experiences = make_experiences(seed)
    expected = train(experiences, batch=30).solve()
    step = -1 if reverse else 1
    reordered = [(z[::step].copy(), y[::step].copy()) for z, y in experiences]
    torch.testing.assert_close(train(reordered, batch).solve(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("save_at", [(0, 7), (1, 0), (2, 21)])
def test_state_resumes_to_the_last_bit(save_at):
    experiences = make_experiences()
    resumed = train(experiences, batch=7, save_at=save_at).solve()
    assert torch.equal(resumed, train(experiences, batch=7).solve())


def test_rows_without_own_labels_are_skipped():
    (z, y), *_ = make_experiences()
    statistics = L3AStatistics()
    statistics.begin(torch.from_numpy(y).sum(0))
    padded = np.concatenate([z, z[:4]]), np.concatenate([y, np.full((4, y.shape[1]), np.nan)])
    statistics.update(*map(torch.from_numpy, padded))
    assert torch.equal(statistics.solve(), train([(z, y)], 40, ridge=1000.0, threshold=0.7).solve())


def test_weights_of_classes_and_images():
    weights = class_weights(torch.tensor([100.0, 4.0, 0.0, 1.0], dtype=torch.float64))
    assert weights.tolist() == pytest.approx([3 * 0.1 / 1.6, 3 * 0.5 / 1.6, 0, 3 / 1.6])
    labels = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.float64)
    assert sample_weights(labels, weights).tolist() == pytest.approx([3 * 0.55 / 1.6, 1.0])
    assert class_weights(torch.zeros(2)).tolist() == [0, 0]


def test_input_that_does_not_fit_is_rejected():
    statistics = L3AStatistics()
    with pytest.raises(RuntimeError, match="No experience is open"):
        statistics.update(torch.zeros(1, 3), torch.zeros(1, 2))
    statistics.begin(torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="no images yet"):
        statistics.solve()
    with pytest.raises(ValueError, match=r"targets_new must be \[1, 2\], one column .* 0, not \[1, 3\]"):
        statistics.update(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="Feature 1 of row 0 is inf"):
        statistics.update(torch.tensor([[1.0, math.inf, 0.0]]), torch.zeros(1, 2))
