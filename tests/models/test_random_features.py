import pytest
import torch

from avalanche_agcn.models import MultiLabelClassifier, Precomputed, RandomFeatures


def test_features_are_a_fixed_random_layer_without_parameters():
    backbone = RandomFeatures(Precomputed(6), 20, seed=3)
    x = torch.randn(4, 6)
    torch.testing.assert_close(backbone(x), (x @ backbone.weight.T).clamp(min=0))
    assert not list(backbone.parameters())
    assert torch.equal(RandomFeatures(Precomputed(6), 20, seed=3).weight, backbone.weight)
    assert not torch.equal(RandomFeatures(Precomputed(6), 20, seed=4).weight, backbone.weight)


def test_layer_has_the_spread_of_pytorchs_own():
    ours, theirs = RandomFeatures(Precomputed(100), 500).weight, torch.nn.Linear(100, 500).weight
    assert ours.abs().max() <= 0.1
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.02)
    assert abs(ours.mean()) < 0.002


def test_layer_is_saved_with_the_model():
    saved = MultiLabelClassifier(RandomFeatures(Precomputed(6), 20, seed=1), 3).state_dict()
    model = MultiLabelClassifier(RandomFeatures(Precomputed(6), 20, seed=2), 3)
    model.load_state_dict(saved)
    assert torch.equal(model.backbone.weight, saved["backbone.weight"])


def test_settings_that_do_not_fit_are_rejected():
    with pytest.raises(ValueError, match="width must be at least 1, but is 0"):
        RandomFeatures(Precomputed(6), 0)
    with pytest.raises(ValueError, match="does not tell the length of its features"):
        RandomFeatures(torch.nn.Identity())
