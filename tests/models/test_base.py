"""The contract that both models fulfil."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from avalanche_agcn.models import AGCNModel, Backbone, MultiLabelClassifier, Precomputed

N_CLASSES = 6


def make_backbone():
    return Backbone(nn.Conv2d(3, 4, 3), num_features=4)


def make_linear(backbone, **settings):
    return MultiLabelClassifier(backbone, N_CLASSES, **settings)


def make_agcn(backbone, **settings):
    return AGCNModel(backbone, torch.randn(N_CLASSES, 5), hidden_features=7, **settings)


@pytest.fixture(params=[make_linear, make_agcn])
def make(request):
    return request.param


@pytest.fixture
def images():
    return torch.randn(3, 3, 8, 8)


def train_on(model, n_seen):
    model.train().adaptation(SimpleNamespace(classes_seen_so_far=list(range(n_seen))))


def test_logits_are_features_times_classifiers(make, images):
    model = make(make_backbone())
    train_on(model, 4)
    weight, bias = model.classifiers()
    assert weight.shape == (4, 4)
    features = model.features(images)
    assert torch.equal(features, model.backbone(images))
    expected = features @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(model(images), expected)
    torch.testing.assert_close(model.logits(features), expected)


def test_classifiers_pass_gradients_to_the_head(make):
    model = make(make_backbone())
    train_on(model, 2)
    model.classifiers().weight.square().sum().backward()
    head = model.gcn if make is make_agcn else model.classifier
    gradients = [parameter.grad for parameter in head.parameters() if parameter.grad is not None]
    assert any(gradient.abs().sum() > 0 for gradient in gradients)
    if make is make_linear:  # the parameter itself, so that unseen classes get no gradient
        torch.testing.assert_close(gradients[0][:2], 2 * model.classifier.weight[:2])
        assert not gradients[0][2:].any()


def test_model_grows_in_training_only_and_without_new_parameters(make, images):
    model = make(make_backbone())
    before = [id(parameter) for parameter in model.parameters()]
    for n_seen, expected in ((2, 2), (5, 5), (2, 5)):  # at last an earlier experience again
        train_on(model, n_seen)
        assert model.n_seen == expected
        assert model(images).shape == (3, expected)
    model.eval().adaptation(SimpleNamespace(classes_seen_so_far=list(range(6))))
    assert model.n_seen == 5
    assert [id(parameter) for parameter in model.parameters()] == before


@pytest.mark.parametrize("decoupled", [False, True])
def test_parameter_groups_have_every_parameter_once(make, decoupled):
    rates = {"lr_backbone": 0.1} | ({"lr_head": 0.2} if make is make_linear else {"lr_gcn": 0.2})
    model = make(make_backbone(), decoupled=decoupled)
    groups = model.parameter_groups(**rates, lr_auxiliary=0.3)
    assert [group["lr"] for group in groups] == [0.1, 0.2, 0.3][: 2 + decoupled]
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    (only,) = make(Precomputed(4)).parameter_groups(**rates)  # a backbone without parameters has no group
    assert only["lr"] == 0.2


def test_auxiliary_head_trains_the_backbone_in_place_of_the_classifiers(make, images):
    model = make(make_backbone(), decoupled=True)
    train_on(model, 2)
    outputs = []
    model.auxiliary.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model(images).sum().backward()
    head = model.gcn if make is make_agcn else model.classifier
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    outputs[0].sum().backward()
    assert all((parameter.grad == 0).all() for parameter in model.backbone.parameters())  # a head of zeros
    torch.nn.init.ones_(model.auxiliary.weight)
    model(images)
    outputs[1].sum().backward()
    assert any((parameter.grad != 0).any() for parameter in model.backbone.parameters())
    assert outputs[0].shape == (3, N_CLASSES)
    model.eval()(images)
    assert len(outputs) == 2  # not in evaluation


def test_logits_under_autocast_are_in_full_precision(make):
    model, images = make(make_backbone()), torch.randn(300, 3, 8, 8)
    train_on(model, 4)
    with torch.autocast("cpu", torch.bfloat16):
        features, logits, classifiers = model.features(images), model(images), model.classifiers()
    assert features.dtype == torch.bfloat16
    assert torch.equal(classifiers.weight, model.classifiers().weight)
    torch.testing.assert_close(logits, model.logits(features.float()))
    # In half precision, many images would share a score and so a rank.
    assert len(logits[:, 0].unique()) > len(logits[:, 0].bfloat16().unique())
