"""The GCN, and the model that it makes classifiers for."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import leaky_relu

from avalanche_agcn.agcn.gcn import GCN
from avalanche_agcn.agcn.model import AGCNModel
from avalanche_agcn.models.backbones import Backbone


def make_model(n_words=6):
    backbone = Backbone(nn.Conv2d(3, 4, 3), num_features=4)
    return AGCNModel(backbone, torch.randn(n_words, 5), hidden_features=7)


@pytest.fixture
def images():
    return torch.randn(3, 3, 8, 8)


def test_gcn_equals_the_formula_and_has_two_uniform_weights_within_one_over_root_of_the_output():
    gcn = GCN(3, 5, hidden_features=4).double()
    graph, words = torch.rand(6, 6).double(), torch.randn(6, 3).double()
    hidden = leaky_relu(graph @ words @ gcn.first.weight, 0.2)
    torch.testing.assert_close(gcn(graph, words), graph @ hidden @ gcn.second.weight)
    first, second = GCN(300, 400).parameters()  # no bias
    assert (first.shape, second.shape) == ((300, 1024), (1024, 400))
    assert second.abs().max() <= 0.05
    assert abs(second.std().item() - 0.05 / 3**0.5) < 1e-3


@given(st.permutations(range(5)))
def test_gcn_follows_the_order_of_its_nodes(order):
    gcn, graph, words = GCN(3, 5, hidden_features=4), torch.rand(5, 5), torch.randn(5, 3)
    moved = gcn(graph[order][:, order], words[order])
    torch.testing.assert_close(moved, gcn(graph, words)[order])


def test_classifiers_are_the_output_of_the_gcn_and_new_classes_enter_without_relations(images):
    model, graph = make_model(), torch.rand(2, 2, requires_grad=True)
    assert model(images).shape == (3, 0)  # it starts with no class
    model.set_graph(graph)
    expected = model.gcn(graph, model.word_vectors[:2])
    assert torch.equal(model.embeddings(), expected)
    assert torch.equal(model.embeddings(), expected)
    assert model.classifiers().bias is None
    model.train().adaptation(SimpleNamespace(classes_seen_so_far=range(4)))
    assert torch.equal(model.adjacency, torch.block_diag(graph, torch.eye(2)))
    model(images).sum().backward()
    assert graph.grad is None  # the graph is not trained
    assert model.gcn.first.weight.grad.abs().sum() > 0


def test_state_is_loaded_into_a_model_of_any_size(images, tmp_path):
    large = make_model()
    for n in (2, 4):
        large.set_graph(torch.rand(n, n))
    torch.save(large.state_dict(), tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    for n_before in (0, 6):
        model = make_model()
        model.set_graph(torch.eye(n_before))
        model.load_state_dict(state)
        assert torch.equal(model(images), large(images))


def test_state_of_a_version_that_kept_earlier_graphs_is_loaded(images):
    saved = make_model()
    saved.set_graph(torch.rand(4, 4))
    model = make_model()
    model.load_state_dict(
        {**saved.state_dict(), "past_graphs": torch.zeros(4), "past_sizes": torch.tensor([2])}
    )
    assert torch.equal(model(images), saved(images))


def test_graphs_and_word_vectors_must_fit_and_vectors_can_be_added(images):
    with pytest.raises(ValueError, match="load_word_vectors"):
        AGCNModel(Backbone(nn.Conv2d(3, 4, 3), num_features=4), torch.zeros(5))
    model = make_model(n_words=3)
    model.set_graph(torch.eye(3))
    for graph in (torch.eye(2), torch.zeros(3, 5), torch.eye(4)):
        with pytest.raises(ValueError, match=r"square one, no smaller and of at most 3; .* add_word_vectors"):
            model.set_graph(graph)
    model.add_word_vectors(torch.randn(1, 5))
    model.set_graph(torch.eye(4))
    assert model(images).shape == (3, 4)
