import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer
from avalanche_agcn.training.storage_policy.balanced import greedy_removal, target_shares


def divergence(counts, target):
    total = sum(counts)
    if total == 0:
        return math.inf
    return sum(c / total * math.log(c / total / q) for c, q in zip(counts, target) if c > 0)


def brute_force(labels, target, draws):
    """Compute the divergence again for every image that could go."""
    left, order = list(range(len(labels))), []
    for draw in draws:
        values = [
            divergence([sum(labels[j][c] for j in left if j != i) for c in range(len(target))], target)
            for i in left
        ]
        ties = [i for i, value in zip(left, values) if value <= min(values) + 1e-12 or value == min(values)]
        order.append(ties[int(draw * len(ties))])
        left.remove(order[-1])
    return order


@given(data=st.data(), n=st.integers(1, 9), n_classes=st.integers(1, 4))
def test_greedy_removal_equals_brute_force(data, n, n_classes):
    rows = st.lists(st.sampled_from([0.0, 1.0]), min_size=n_classes, max_size=n_classes)
    labels = data.draw(st.lists(rows, min_size=n, max_size=n))
    counts = data.draw(st.lists(st.integers(1, 50), min_size=n_classes, max_size=n_classes))
    draws = data.draw(st.lists(st.floats(0, 0.999), max_size=n))
    target = target_shares(torch.tensor(counts, dtype=torch.float64), 0.5)
    ours = greedy_removal(torch.tensor(labels, dtype=torch.float64), target, draws)
    assert ours == brute_force(labels, target.tolist(), draws)


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(2))
def test_distribution_is_at_least_as_near_to_the_target_as_that_of_prs(fill, long_tailed, rho, seed):
    labels = long_tailed(1000, 10, seed)
    target = target_shares(labels.sum(0), rho).tolist()
    kept = {
        kind: divergence(fill(kind(100, rho=rho, seed=seed), labels).labels.sum(0).tolist(), target)
        for kind in (OCDMBuffer, PRSBuffer)
    }
    assert kept[OCDMBuffer] <= kept[PRSBuffer]
    assert kept[OCDMBuffer] < divergence(labels[:100].sum(0).tolist(), target)


@settings(max_examples=30)
@given(m=st.integers(0, 12), batch_size=st.integers(1, 30), seed=st.integers(0, 20))
def test_memory_is_what_greedy_removal_leaves_of_memory_and_batch(fill, long_tailed, m, batch_size, seed):
    labels = long_tailed(30, 4, seed)
    generator, memory, counts = torch.Generator().manual_seed(seed), [], torch.zeros(4, dtype=torch.float64)
    for batch in torch.arange(30).split(batch_size):
        counts += labels[batch].sum(0)
        pool = memory + batch.tolist()
        draws = torch.rand(max(0, len(pool) - m), generator=generator, dtype=torch.float64).tolist()
        removed = brute_force(labels[pool].tolist(), target_shares(counts, 0.0).tolist(), draws)
        memory = [image for position, image in enumerate(pool) if position not in removed]
    assert fill(OCDMBuffer(m, seed=seed), labels, batch_size).keys[:, 1].tolist() == memory


def test_ties_are_broken_by_the_draw():
    labels, target = torch.ones(4, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert [greedy_removal(labels, target, [draw]) for draw in (0.0, 0.3, 0.6, 0.9)] == [[0], [1], [2], [3]]
    assert greedy_removal(labels, target, [0.3, 0.3, 0.3, 0.3]) == [1, 0, 2, 3]


def test_image_without_a_label_goes_when_no_other_removal_helps():
    target = torch.tensor([0.5, 0.5], dtype=torch.float64)
    balanced = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    assert greedy_removal(balanced, target, [0.0]) == [2]
    uneven = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    assert greedy_removal(uneven, target, [0.0]) == [0]
    assert sorted(greedy_removal(balanced, target, [0.5] * 3)) == [0, 1, 2]
