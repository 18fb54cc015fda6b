import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.models.gcn import GCN


def test_gcn_equals_the_formula():
    gcn = GCN(3, 5, hidden_features=4).double()
    graph, words = torch.rand(6, 6).double(), torch.randn(6, 3).double()
    hidden = F.leaky_relu(graph @ words @ gcn.first.weight, 0.2)
    torch.testing.assert_close(gcn(graph, words), graph @ hidden @ gcn.second.weight)


def test_gcn_has_two_uniform_weights_within_one_over_root_of_the_output_and_no_bias():
    weights = dict(GCN(300, 400).named_parameters())
    assert {name: tuple(w.shape) for name, w in weights.items()} == {
        "first.weight": (300, 1024),
        "second.weight": (1024, 400),
    }
    assert weights["second.weight"].abs().max() <= 0.05
    assert abs(weights["second.weight"].std().item() - 0.05 / 3**0.5) < 1e-3


@given(st.permutations(range(5)))
def test_gcn_follows_the_order_of_its_nodes(order):
    gcn, graph, words = GCN(3, 5, hidden_features=4), torch.rand(5, 5), torch.randn(5, 3)
    moved = gcn(graph[order][:, order], words[order])
    torch.testing.assert_close(moved, gcn(graph, words)[order])
