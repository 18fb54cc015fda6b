import copy

import pytest
import torch
from torch import nn

from avalanche_agcn.models.backbones import Backbone, create_backbone


@pytest.mark.parametrize(("name", "count"), [("small", 256), ("resnet18", 512), ("mobilenet_v3_small", 576)])
def test_backbone_gives_one_vector_an_image(name, count):
    backbone = create_backbone(name)
    assert backbone.num_features == count
    assert backbone(torch.zeros(2, 3, 64, 64)).shape == (2, count)


def test_pooling_is_global():
    maps = torch.randn(2, 4, 3, 5)
    for pool, expected in (("max", maps.amax((2, 3))), ("avg", maps.mean((2, 3)))):
        backbone = Backbone(nn.Identity(), num_features=4, pool=pool)
        torch.testing.assert_close(backbone(maps), expected)


def test_vectors_are_not_pooled():
    x = torch.randn(2, 7)
    assert torch.equal(Backbone(nn.Identity(), num_features=7)(x), x)


def test_frozen_batchnorm_keeps_its_statistics_and_trains_its_weights():
    for frozen in (True, False):
        backbone = create_backbone("small", freeze_batchnorm=frozen).train()
        norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
        before = [norm.running_mean.clone() for norm in norms]
        backbone(torch.randn(4, 3, 64, 64)).sum().backward()
        for norm, mean in zip(norms, before, strict=True):
            assert torch.equal(norm.running_mean, mean) == frozen
            assert norm.weight.grad is not None


def test_frozen_layers_get_no_gradient_and_stay_in_evaluation_mode():
    backbone = create_backbone("resnet18", frozen=["conv1", "bn1", "layer1"]).train()
    backbone(torch.randn(2, 3, 64, 64)).sum().backward()
    trained = {name for name, p in backbone.layers.named_parameters() if p.grad is not None}
    assert not any(name.startswith(("conv1", "bn1", "layer1.")) for name in trained)
    assert any(name.startswith("layer2.") for name in trained)
    assert not backbone.layers.layer1.training
    assert not backbone.layers.layer1[0].bn1.training
    assert backbone.layers.layer2.training


@pytest.mark.parametrize("settings", [{"freeze_batchnorm": True}, {"frozen": "all"}])
def test_what_is_frozen_is_so_from_the_start(settings):
    backbone = create_backbone("small", **settings)
    before = {name: value.clone() for name, value in backbone.named_buffers()}
    backbone(torch.randn(4, 3, 32, 32))
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers())


def test_everything_can_be_frozen():
    backbone = create_backbone("small", frozen="all").train()
    assert not backbone(torch.randn(2, 3, 64, 64)).requires_grad
    assert not any(module.training for module in backbone.layers.modules())


def test_channels_last_changes_the_layout_and_not_the_values():
    x = torch.randn(2, 3, 64, 64)
    torch.manual_seed(0)
    plain = create_backbone("small").eval()
    torch.manual_seed(0)
    fast = create_backbone("small", channels_last=True).eval()
    layouts = []
    fast.layers.register_forward_pre_hook(
        lambda _, args: layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    torch.testing.assert_close(fast(x), plain(x))
    assert layouts == [True]
    assert next(fast.parameters()).is_contiguous(memory_format=torch.channels_last)


def test_compiled_layers_keep_names_and_values(monkeypatch):
    monkeypatch.setattr(
        nn.Module, "compile", lambda self: setattr(self, "_compiled_call_impl", self._call_impl)
    )
    torch.manual_seed(0)
    plain = create_backbone("small").eval()
    torch.manual_seed(0)
    compiled = create_backbone("small", compile=True).eval()
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(compiled(x), plain(x))
    assert compiled.layers._compiled_call_impl is not None
    assert plain.layers._compiled_call_impl is None
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    twin = copy.deepcopy(compiled)
    assert torch.equal(twin(x), plain(x))
    assert twin.layers._compiled_call_impl is not None


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match="'resnet101'"):
        create_backbone("resnet102")
    with pytest.raises(ValueError, match="'max', 'avg'"):
        create_backbone("small", pool="min")
    with pytest.raises(ValueError, match=r"'layer9'.*'layer1'"):
        create_backbone("resnet18", frozen=["layer9"])
