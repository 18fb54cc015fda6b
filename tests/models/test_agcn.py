import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.models.backbones import Backbone


def make_model(n_words=6):
    backbone = Backbone(nn.Conv2d(3, 4, 3), num_features=4, pool="max")
    return AGCNModel(backbone, torch.randn(n_words, 5), hidden_features=7)


def experience(n_seen):
    return SimpleNamespace(classes_seen_so_far=list(range(n_seen)))


@pytest.fixture
def images():
    return torch.randn(3, 3, 8, 8)


def test_logits_are_features_times_gcn(images):
    model, graph = make_model(), torch.rand(4, 4)
    model.set_graph(graph)
    classifiers = model.gcn(graph, model.word_vectors[:4])
    assert torch.equal(model.embeddings(), classifiers)
    torch.testing.assert_close(model(images), model.backbone(images) @ classifiers.T)


def test_model_starts_with_no_class(images):
    assert make_model()(images).shape == (3, 0)


def test_growing_adds_no_parameters(images):
    model = make_model()
    before = [id(p) for p in model.parameters()]
    for n in (2, 3, 6):
        model.set_graph(torch.eye(n))
        assert model(images).shape == (3, n)
        assert model.n_seen == n
    assert [id(p) for p in model.parameters()] == before


def test_training_lets_new_classes_in_without_relations():
    model, graph = make_model(), torch.rand(2, 2)
    model.set_graph(graph)
    model.train().adaptation(experience(4))
    assert torch.equal(model.adjacency, torch.block_diag(graph, torch.eye(2)))
    model.adaptation(experience(2))  # an earlier experience again
    model.eval().adaptation(experience(6))  # evaluation does not make it grow
    assert model.n_seen == 4


def test_nested_logits_use_the_graph_of_each_experience(images):
    model = make_model()
    final = []
    for n in (2, 3, 5):
        for _ in range(2):  # only the last graph of a size is kept
            graph = torch.rand(n, n)
            model.set_graph(graph)
        final.append(graph)
    nested = model.nested_logits(images)
    assert [logits.shape for logits in nested] == [(3, 2), (3, 3), (3, 5)]
    assert torch.equal(nested[-1], model(images))
    for graph, logits in zip(final, nested, strict=True):
        expected = model.features(images) @ model.gcn(graph, model.word_vectors[: len(graph)]).T
        torch.testing.assert_close(logits, expected)


def test_nested_logits_pass_the_images_once(images):
    model, calls = make_model(), []
    for n in (2, 3, 5):
        model.set_graph(torch.eye(n))
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    nested = model.nested_logits(images)
    assert len(calls) == 1
    again = model.nested_logits(features=model.features(images))
    assert all(torch.equal(a, b) for a, b in zip(nested, again, strict=True))
    with pytest.raises(ValueError, match="either images or"):
        model.nested_logits()


def test_state_is_loaded_whatever_the_size(images, tmp_path):
    large = make_model()
    for n in (2, 4):
        large.set_graph(torch.rand(n, n))
    torch.save(large.state_dict(), tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    for n_before in (0, 6):
        model = make_model()
        model.set_graph(torch.eye(n_before))
        model.load_state_dict(state)
        for a, b in zip(model.nested_logits(images), large.nested_logits(images), strict=True):
            assert torch.equal(a, b)


def test_deep_copy_is_independent(images):
    model = make_model()
    model.set_graph(torch.rand(2, 2))
    twin = copy.deepcopy(model)
    before = twin(images)
    model.set_graph(torch.rand(4, 4))
    with torch.no_grad():
        model.gcn.first.weight.zero_()
    assert torch.equal(twin(images), before)


def test_graph_is_not_differentiated_through(images):
    model = make_model()
    graph = torch.rand(3, 3, requires_grad=True)
    model.set_graph(graph)
    model(images).sum().backward()
    assert graph.grad is None
    assert model.gcn.first.weight.grad.abs().sum() > 0


def test_autocast_leaves_the_graph_in_full_precision(images):
    model = make_model()
    model.set_graph(torch.rand(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        features, logits, classifiers = model.features(images), model(images), model.embeddings()
    assert features.dtype == torch.bfloat16
    assert torch.equal(classifiers, model.embeddings())
    assert torch.equal(logits, features.float() @ classifiers.T)


def test_words_can_be_added(images):
    model = make_model(n_words=2)
    model.set_graph(torch.eye(2))
    with pytest.raises(ValueError, match="add_word_vectors"):
        model.set_graph(torch.eye(3))
    model.add_word_vectors(torch.randn(1, 5))
    model.set_graph(torch.eye(3))
    assert model(images).shape == (3, 3)


def test_parameter_groups_cover_all_parameters_once():
    model = make_model()
    backbone, gcn = model.parameter_groups(lr_backbone=0.1, lr_gcn=0.2)
    assert (backbone["lr"], gcn["lr"]) == (0.1, 0.2)
    grouped = [id(p) for group in (backbone, gcn) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="load_word_vectors"):
        AGCNModel(Backbone(nn.Conv2d(3, 4, 3), num_features=4), torch.zeros(5))
    model = make_model()
    model.set_graph(torch.eye(3))
    for graph in (torch.eye(2), torch.zeros(4, 5)):
        with pytest.raises(ValueError, match="square and no smaller"):
            model.set_graph(graph)
