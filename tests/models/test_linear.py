from types import SimpleNamespace

import pytest
import torch
from torch import nn

from avalanche_agcn.models.backbones import Backbone
from avalanche_agcn.models.linear import MultiLabelClassifier
from avalanche_agcn.models.precomputed import Precomputed


def experience(n_seen):
    return SimpleNamespace(classes_seen_so_far=list(range(n_seen)))


def make_model(n_classes=5):
    return MultiLabelClassifier(Backbone(nn.Conv2d(3, 4, 3), num_features=4, pool="avg"), n_classes)


def test_logits_are_linear_in_the_features():
    model, x = make_model(), torch.randn(2, 3, 8, 8)
    expected = model.features(x) @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(model(x), expected)
    assert model.features(x).shape == (2, 4)


def test_training_on_an_experience_shows_its_classes():
    model, x = make_model(), torch.randn(2, 3, 8, 8)
    everything = model(x)
    assert everything.shape == (2, 5)
    for n_seen in (2, 4):
        model.train().adaptation(experience(n_seen))
        assert torch.equal(model(x), everything[:, :n_seen])
    model.adaptation(experience(2))  # an earlier experience again
    assert model.n_seen == 4


def test_evaluation_does_not_make_it_grow():
    model = make_model()
    model.train().adaptation(experience(2))
    model.eval().adaptation(experience(5))
    assert model.n_seen == 2


def test_no_parameter_is_ever_added():
    model = make_model()
    before = [id(p) for p in model.parameters()]
    model.train().adaptation(experience(3))
    assert [id(p) for p in model.parameters()] == before


def test_each_part_has_its_learning_rate():
    model = make_model()
    body, head = model.parameter_groups(lr_backbone=1e-5, lr_head=1e-3)
    assert (body["lr"], head["lr"]) == (1e-5, 1e-3)
    assert [id(p) for p in body["params"]] == [id(p) for p in model.backbone.parameters()]
    assert [id(p) for p in head["params"]] == [id(p) for p in model.classifier.parameters()]
    no_body = MultiLabelClassifier(Precomputed(4), 5).parameter_groups(lr_backbone=1e-5, lr_head=1e-3)
    assert [group["lr"] for group in no_body] == [1e-3]


def test_state_carries_the_classes_seen(tmp_path):
    model, x = make_model().eval(), torch.randn(2, 3, 8, 8)
    model.train().adaptation(experience(3))
    torch.save(model.state_dict(), tmp_path / "m.pt")
    other = make_model()
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert torch.equal(other(x), model(x))
    assert other.n_seen == 3


def test_more_classes_than_outputs_are_refused():
    with pytest.raises(ValueError, match="6 classes by now, but the model was made for 5"):
        make_model().adaptation(experience(6))


def test_columns_out_of_order_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        make_model().adaptation(SimpleNamespace(classes_seen_so_far=[3, 1]))


def test_backbone_must_say_how_long_its_features_are():
    with pytest.raises(ValueError, match="num_features"):
        MultiLabelClassifier(nn.Flatten(), 3)


def test_logits_under_autocast_are_as_fine_as_without():
    """In half precision, thousands of images would share a score, and rank alike."""
    model, x = make_model(), torch.randn(500, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        features = model.features(x)
    assert features.dtype == torch.bfloat16
    torch.testing.assert_close(logits, model.classifier(features.float()))
    assert len(logits[:, 0].unique()) > len(logits[:, 0].bfloat16().unique())
