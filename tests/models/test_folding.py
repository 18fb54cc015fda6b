"""Folding against the network as it was."""

import pytest
import torch
from torch import nn

from avalanche_agcn.models import create_backbone
from avalanche_agcn.models.folding import fold_batchnorm


def with_statistics(layers):
    """As after some training: nothing about its normalisations is 0 or 1."""
    generator = torch.Generator().manual_seed(1)
    for module in layers.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.weight.data, module.bias.data):
                values.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return layers


@pytest.mark.parametrize("bias", [False, True])
def test_a_folded_convolution_computes_the_same(bias):
    layers = with_statistics(
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias, groups=1), nn.BatchNorm2d(8), nn.ReLU())
    ).eval()
    x = torch.randn(2, 3, 16, 16)
    before = layers(x)
    assert fold_batchnorm(layers) == 1
    assert isinstance(layers[1], nn.Identity)
    torch.testing.assert_close(layers(x), before)


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v2", "efficientnet_b0"])
def test_folded_networks_give_the_same_features(name):
    torch.manual_seed(0)
    plain = create_backbone(name, freeze_batchnorm=True).eval()
    torch.manual_seed(0)
    folded = create_backbone(name, freeze_batchnorm=True, fold_batchnorm=True).eval()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    x = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(folded(x), plain(x), rtol=1e-3, atol=1e-4)


def test_normalisations_elsewhere_stay():
    layers = with_statistics(
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    )
    assert fold_batchnorm(layers) == 0
    assert sum(isinstance(module, nn.BatchNorm2d) for module in layers) == 2


def test_a_network_that_uses_the_convolution_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            maps = self.convolution(x)
            return maps + self.norm(maps)

    with pytest.raises(ValueError, match="fold_batchnorm=False"):
        fold_batchnorm(with_statistics(Twice()))


def test_modes_stay_as_they_were():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    layers[0].eval()
    fold_batchnorm(layers)
    assert [module.training for module in layers] == [False, True, True]


def test_folding_needs_frozen_statistics():
    with pytest.raises(ValueError, match="freeze_batchnorm=True"):
        create_backbone("small", fold_batchnorm=True)
