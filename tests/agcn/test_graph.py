import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.agcn.graph import GraphOptions, adjacency


def random_acm(seed, sizes, n_images=12):
    generator = torch.Generator().manual_seed(seed)
    acm, n_old = AugmentedCorrelationMatrix(), 0
    for size in sizes:
        acm.begin(size)
        targets = (torch.rand(n_images, size, generator=generator) < 0.5).float()
        soft = torch.rand(n_images, n_old, generator=generator) ** 2
        acm.update(targets, soft)
        n_old += size
    return acm


def program(acm, weight=0.25, new_cut=0.4, cross_cut=0.3):
    """The authors' code: one experience after the other."""
    relations = acm.matrix().tolist()
    result = [[0.0] * len(relations) for _ in relations]

    def scaled_by_column(rows, columns, edge, weight):
        block = {(i, j): 1.0 if edge(i, j) else 0.0 for i in rows for j in columns}
        sums = {j: sum(block[i, j] for i in rows) for j in columns}
        return {(i, j): value * weight / (sums[j] + 1e-6) for (i, j), value in block.items()}

    start = 0
    for experience, size in enumerate(acm.block_sizes):
        old, new = range(start), range(start, start + size)
        if experience == 0:
            block = scaled_by_column(new, new, lambda i, j: True, 0.28)
        else:
            block = scaled_by_column(new, new, lambda i, j: i != j and relations[i][j] >= new_cut, weight)
        for i in new:
            block[i, i] += 1
        power = -0.8 if experience == 0 else -0.5
        degree = {i: sum(block[i, j] for j in new) ** power for i in new}
        for i in new:
            for j in new:  # (A·D)ᵀ·D
                result[i][j] = block[j, i] * degree[i] * degree[j]
        cross = scaled_by_column(old, new, lambda i, j: relations[i][j] >= cross_cut, weight)
        back = scaled_by_column(new, old, lambda i, j: relations[i][j] / 2 >= cross_cut, weight)
        for (i, j), value in (cross | back).items():
            result[i][j] = value
        start += size
    return torch.tensor(result, dtype=torch.float64).reshape(start, start)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    weight=st.sampled_from([0.0, 0.25, 0.9]),
    thresholds=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
)
def test_official_equals_the_program_step_by_step(seed, sizes, weight, thresholds):
    acm = random_acm(seed, sizes)
    torch.testing.assert_close(adjacency(acm, "official"), program(acm), rtol=0, atol=1e-12)
    new, cross = thresholds
    options = GraphOptions(neighbour_weight=weight, new_threshold=new, cross_threshold=cross)
    changed = adjacency(acm, "official", options)
    torch.testing.assert_close(changed, program(acm, weight, new, cross), rtol=0, atol=1e-12)


def test_official_second_experience_worked_by_hand():
    acm = AugmentedCorrelationMatrix()
    acm.begin(1)
    acm.begin(2)
    # N = (2, 2), N_01 = 1: both P(new|new) are 0.5, above 0.4.
    # R = (0.9 + 0.1) / 2 = 0.5 and (0.9 + 0.2) / 2 = 0.55, both above 0.3.
    # Σẑ = 1.2: Q = 1.0 / 1.2 / 2 = 0.417 and 1.1 / 1.2 / 2 = 0.458, both above 0.3.
    acm.update(torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9], [0.1], [0.2]]))
    first = (0.28 / (1 + 1e-6) + 1) * 1.28**-1.6  # 0.8623
    edge = 0.25 / (1 + 1e-6)
    inner = 1 / (1 + edge)  # rows sum to 1.25, to the power −½ on both sides
    rows = [[first, edge, edge], [edge / 2, inner, edge * inner], [edge / 2, edge * inner, inner]]
    expected = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(adjacency(acm, "official"), expected, rtol=0, atol=1e-6)


def test_paper_worked_by_hand():
    acm = AugmentedCorrelationMatrix()
    acm.begin(3)
    acm.update(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    # P(0|1) = 1, P(1|0) = 0.5; each is its row's only neighbour, so each weighs 0.25.
    # Rows sum to 1.25, 1.25 and 1.
    expected = torch.tensor([[0.8, 0.2, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(adjacency(acm), expected, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    weight=st.sampled_from([0.0, 0.25, 0.9]),
)
def test_paper_keeps_relations_between_neighbours(seed, sizes, weight):
    acm = random_acm(seed, sizes)
    relations, graph = acm.matrix(), adjacency(acm, "paper", GraphOptions(neighbour_weight=weight))
    assert weight == 0 or torch.equal(graph == 0, relations == 0)
    neighbours = relations.clone().fill_diagonal_(0).sum(1)
    degree = 1 + weight * (neighbours > 0).double()
    torch.testing.assert_close(graph.diagonal(), 1 / degree)
    weights = graph * degree.sqrt()[:, None] * degree.sqrt()[None, :]
    expected = relations * (weight / neighbours.clamp(min=1e-300))[:, None]
    expected.fill_diagonal_(1)
    torch.testing.assert_close(weights, expected)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), preset=st.sampled_from(["paper", "official", "plain"]))
def test_graph_follows_the_order_of_classes_within_an_experience(seed, preset):
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(12, 4, generator=generator) < 0.5).float()
    order = torch.randperm(4, generator=generator)
    graphs = []
    for columns in (torch.arange(4), order):
        acm = random_acm(seed, [2])
        acm.begin(4)
        acm.update(targets[:, columns], torch.full((12, 2), 0.5))
        graphs.append(adjacency(acm, preset))
    both = torch.cat([torch.arange(2), 2 + order])
    torch.testing.assert_close(graphs[0][both][:, both], graphs[1])


def test_plain_is_the_symmetrically_normalised_matrix_and_identity_has_no_relations():
    acm = random_acm(2, [2, 2])
    relations = acm.matrix()
    scale = torch.diag(relations.sum(1) ** -0.5)
    torch.testing.assert_close(adjacency(acm, "plain"), scale @ relations @ scale)
    assert torch.equal(adjacency(acm, "identity"), torch.eye(4).double())


@pytest.mark.parametrize("preset", ["paper", "official", "plain"])
def test_without_cross_blocks_experiences_are_unrelated(preset):
    acm = random_acm(4, [2, 3, 2])
    graph = adjacency(acm, preset, GraphOptions(cross_blocks=False))
    own = torch.block_diag(*(torch.ones(n, n) for n in acm.block_sizes)).bool()
    assert graph[~own].eq(0).all()
    assert adjacency(acm, preset)[~own].ne(0).any()
    assert graph[own].ne(0).any()


@pytest.mark.parametrize("preset", ["paper", "official", "plain", "identity"])
def test_graph_of_classes_without_images_is_finite_and_statistics_are_not_changed(preset):
    acm = AugmentedCorrelationMatrix()
    assert adjacency(acm, preset).shape == (0, 0)
    acm.begin(2)
    acm.begin(3)
    graph = adjacency(acm, preset)
    assert graph.shape == (5, 5)
    assert graph.isfinite().all()
    assert graph[2:, 2:].equal(torch.eye(3).double())
    acm = random_acm(6, [2, 2])
    before = {name: value.clone() for name, value in acm.state_dict().items()}
    adjacency(acm, preset, GraphOptions(cross_blocks=False)).fill_(torch.nan)
    assert all(torch.equal(value, before[name]) for name, value in acm.state_dict().items())


def test_a_weight_of_none_is_named():
    with pytest.raises(ValueError, match=r"neighbour_weight must be a number of at least 0, not None"):
        GraphOptions(neighbour_weight=None).check("paper")
