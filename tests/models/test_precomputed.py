"""Features in place of images."""

import pytest
import torch

from avalanche_agcn.models import AGCNModel, Precomputed


def test_features_are_passed_on_and_there_is_nothing_to_train():
    x = torch.randn(3, 5)
    backbone = Precomputed(5)
    assert backbone(x) is x
    assert list(backbone.parameters()) == []


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 4)])
def test_anything_else_is_refused(shape):
    with pytest.raises(ValueError, match=r"Expected features \[B, 5\]"):
        Precomputed(5)(torch.zeros(shape))


def test_an_optimizer_has_the_gcn_alone():
    model = AGCNModel(Precomputed(5), torch.randn(3, 4))
    (group,) = model.parameter_groups(lr_gcn=0.5)
    assert group["lr"] == 0.5
    assert group["params"] == list(model.gcn.parameters())
