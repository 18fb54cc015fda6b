import pytest
import torch
from torch import nn

from avalanche_agcn.evaluation.feature_tap import FeatureTap


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 2)

    def forward(self, x):
        return self.backbone(x).sum(dim=1)

    def nested_logits(self, x=None, *, features=None):
        return [features, 2 * features]


def test_nested_logits_come_from_the_features_of_the_last_batch():
    model, x = Model(), torch.randn(4, 3)
    tap = FeatureTap(model)
    model(torch.randn(5, 3))
    model(x)
    once, twice = tap.nested_logits()
    assert torch.equal(once, model.backbone(x))
    assert torch.equal(twice, 2 * model.backbone(x))


def test_removed_tap_leaves_the_model_as_it_was():
    model = Model()
    FeatureTap(model).remove()
    assert not model.backbone._forward_hooks


def test_model_without_saved_graphs_is_refused():
    with pytest.raises(ValueError, match=r"needs a model with `backbone` and `nested_logits`.* not Linear"):
        FeatureTap(nn.Linear(2, 2))
