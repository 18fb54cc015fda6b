"""PRS and OCDM against their algorithms word by word."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.methods.replay import (
    choose_removal,
    entry_probability,
    greedy_removal,
    target_shares,
)
from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer


def test_target_shares_by_hand():
    counts = torch.tensor([100.0, 25.0, 0.0])
    for rho, expected in ((0.0, [0.5, 0.5, 0.0]), (1.0, [0.8, 0.2, 0.0]), (-0.5, [1 / 3, 2 / 3, 0.0])):
        torch.testing.assert_close(target_shares(counts, rho), torch.tensor(expected))
    assert target_shares(torch.zeros(3), 0.0).tolist() == [0, 0, 0]


def literal_prs(labels, m, rho, draws):
    """The paper's algorithm word by word, on lists and dictionaries."""
    n, memory = {}, []

    def shares():
        total = sum(count**rho for count in n.values())
        return {c: count**rho / total for c, count in n.items()}

    def distance(images, p):
        held = {c: sum(c in classes for _, classes in images) for c in n}
        return sum(abs(held[c] - p[c] * sum(held.values())) for c in n)

    for index, (row, (u_in, u_class, u_tie)) in enumerate(zip(labels, draws)):
        classes = {c for c, value in enumerate(row) if value == 1}
        for c in classes:
            n[c] = n.get(c, 0) + 1
        if len(memory) < m:
            memory.append((index, classes))
            continue
        p = shares()
        weights = {c: math.exp(-n[c] + min(n[d] for d in classes)) for c in classes}
        s = sum(w / sum(weights.values()) * min(1, m * p[c] / n[c]) for c, w in weights.items())
        if u_in >= s:
            continue
        held = {c: sum(c in image for _, image in memory) for c in n}
        delta = {c: held[c] - p[c] * sum(held.values()) for c in n}
        present = sorted(c for c in n if held[c] > 0)
        highest = max(delta[c] for c in present)
        exponentials = {c: math.exp(delta[c] - highest) for c in present}
        cumulative, drawn = 0.0, None
        for c in present:
            cumulative += exponentials[c] / sum(exponentials.values())
            if drawn is None and u_class < cumulative:
                drawn = c
        candidates = [k for k, (_, image) in enumerate(memory) if drawn in image]
        lacking = {k: sum(delta[c] <= 0 and c not in memory[k][1] for c in n) for k in candidates}
        candidates = [k for k in candidates if lacking[k] == max(lacking.values())]
        left = {k: distance(memory[:k] + memory[k + 1 :], p) for k in candidates}
        ties = [k for k in candidates if left[k] <= min(left.values()) + 1e-9]
        memory[ties[int(u_tie * len(ties))]] = (index, classes)
    return [index for index, _ in memory]


@settings(max_examples=60)
@given(
    n=st.integers(5, 60),
    m=st.integers(0, 12),
    n_classes=st.integers(1, 6),
    rho=st.sampled_from([-0.5, -0.03, 0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_prs_equals_the_literal_algorithm_under_the_same_draws(fill, long_tailed, n, m, n_classes, rho, seed):
    labels = long_tailed(max(n, n_classes), n_classes, seed)
    buffer = fill(PRSBuffer(m, rho=rho, seed=seed), labels, batch_size=5)
    draws = torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert buffer.keys[:, 1].tolist() == literal_prs(labels.tolist(), m, rho, draws.tolist())


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_shares_approach_the_target_on_a_long_tailed_stream(fill, long_tailed, rho):
    labels = long_tailed(2000, 8, seed=0)
    buffer = fill(PRSBuffer(150, rho=rho), labels)
    counts = labels.sum(0)
    # No memory can have more of a class than the stream had.
    reachable = torch.minimum(target_shares(counts, rho) * buffer.labels.sum(), counts)
    reachable = reachable / reachable.sum()
    shares = buffer.labels.sum(0) / buffer.labels.sum()
    random = labels[torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:150]].sum(0)
    distance = (shares - reachable).abs().sum() / 2
    assert distance < 0.06
    if rho < 1:
        assert distance < (random / random.sum() - reachable).abs().sum() / 4


def test_class_never_seen_has_no_share_and_is_never_drawn():
    labels = torch.tensor([[1, 0, 0], [1, 0, 1]], dtype=torch.float64)
    shares = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    for draw in (0.0, 0.5, 1 - 2**-53):
        assert choose_removal(labels, shares, draw, 0.0) in (0, 1)


def test_entry_probability_by_hand():
    counts = torch.tensor([30.0, 10.0, 0.0], dtype=torch.float64)
    both = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    # Equal shares: m p / n = 4 / 30 and 4 / 10; e^-10 against e^-30 leaves the rarer class alone.
    assert entry_probability(both, counts, 8, 0.0) == pytest.approx(0.4, abs=1e-8)
    assert entry_probability(both, counts, 100, 0.0) == pytest.approx(1.0)
    assert entry_probability(both, counts, 0, 0.0) == 0.0


def test_image_without_a_label_does_not_enter_prs(dataset_of):
    dataset = dataset_of(torch.ones(3, 2))  # a benchmark takes no image without a label
    dataset.targets.codes.copy_(torch.tensor([[1, 0], [0, 0], [0, 1]]))
    buffer = PRSBuffer(5)
    buffer.open(0, dataset)
    buffer.observe(0, torch.arange(3))
    assert buffer.keys[:, 1].tolist() == [0, 2]


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
    assert fill(OCDMBuffer(m, seed=seed), labels, batch_size=batch_size).keys[:, 1].tolist() == memory


def test_image_without_a_label_leaves_ocdm_when_no_other_removal_helps():
    target = torch.tensor([0.5, 0.5], dtype=torch.float64)
    balanced = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    assert greedy_removal(balanced, target, [0.0]) == [2]
    uneven = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    assert greedy_removal(uneven, target, [0.0]) == [0]
    assert sorted(greedy_removal(balanced, target, [0.5] * 3)) == [0, 1, 2]
