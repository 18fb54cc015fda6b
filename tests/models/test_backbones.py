import copy
import warnings

import pytest
import torch
from torch import nn

from avalanche_agcn.benchmarks.scenes import MEAN, STD
from avalanche_agcn.models import Backbone, MultiLabelClassifier, Precomputed, RandomFeatures, create_backbone
from avalanche_agcn.models.backbones import WeightsUnavailable, fold_into_convolutions


def twins(name="small", **changes):
    """Two backbones of the same weights; the second with other settings."""
    common = {"pretrained": False, "freeze_batchnorm": changes.get("freeze_batchnorm", False)}
    torch.manual_seed(0)
    plain = create_backbone(name, **common).eval()
    torch.manual_seed(0)
    return plain, create_backbone(name, **{"pretrained": False, **changes}).eval()


@pytest.mark.parametrize(("name", "count"), [("small", 256), ("resnet18", 512), ("mobilenet_v3_small", 576)])
def test_backbone_gives_one_vector_per_image(name, count):
    backbone = create_backbone(name, pretrained=False)
    assert backbone.num_features == count
    assert backbone(torch.zeros(2, 3, 64, 64)).shape == (2, count)
    assert name != "small" or 3e5 < sum(p.numel() for p in backbone.parameters()) < 5e5


def test_maps_are_pooled_globally_and_vectors_are_passed_on():
    maps, vectors = torch.randn(2, 4, 3, 5), torch.randn(2, 7)
    for pool, expected in (("max", maps.amax((2, 3))), ("avg", maps.mean((2, 3)))):
        torch.testing.assert_close(Backbone(nn.Identity(), num_features=4, pool=pool)(maps), expected)
    assert torch.equal(Backbone(nn.Identity(), num_features=7)(vectors), vectors)
    assert Precomputed(7)(vectors) is vectors
    assert not list(Precomputed(7).parameters())


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batchnorm_keeps_its_statistics_and_trains_its_weights(frozen):
    backbone = create_backbone("small", freeze_batchnorm=frozen)
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    for mode in (lambda: None, backbone.train):  # from the start, and after a call of train()
        mode()
        before = [norm.running_mean.clone() for norm in norms]
        backbone(torch.randn(4, 3, 64, 64)).sum().backward()
        for norm, mean in zip(norms, before, strict=True):
            assert torch.equal(norm.running_mean, mean) == frozen
            assert norm.weight.grad is not None


def test_frozen_layers_get_no_gradient_and_stay_in_evaluation_mode():
    backbone = create_backbone("resnet18", pretrained=False, frozen=["conv1", "bn1", "layer1"]).train()
    backbone(torch.randn(2, 3, 64, 64)).sum().backward()
    trained = {name for name, p in backbone.layers.named_parameters() if p.grad is not None}
    assert not any(name.startswith(("conv1", "bn1", "layer1.")) for name in trained)
    assert any(name.startswith("layer2.") for name in trained)
    assert not any(module.training for module in backbone.layers.layer1.modules())
    assert backbone.layers.layer2.training
    whole = create_backbone("small", frozen="all")
    for mode in (lambda: None, whole.train):
        mode()
        assert not whole(torch.randn(2, 3, 64, 64)).requires_grad
        assert not any(module.training for module in whole.layers.modules())


def test_channels_last_changes_the_layout_and_not_the_values():
    plain, fast = twins(channels_last=True)
    tensors, x = [next(fast.parameters())], torch.randn(2, 3, 64, 64)
    fast.layers.register_forward_pre_hook(lambda _, args: tensors.append(args[0]))
    torch.testing.assert_close(fast(x), plain(x))
    assert [t.is_contiguous(memory_format=torch.channels_last) for t in tensors] == [True, True]


def test_compiled_layers_keep_names_and_values(monkeypatch):
    compiling = "_compiled_call_impl"
    monkeypatch.setattr(nn.Module, "compile", lambda self: setattr(self, compiling, self._call_impl))
    plain, compiled = twins(compile=True)
    x = torch.randn(2, 3, 64, 64)
    for backbone in (compiled, copy.deepcopy(compiled)):
        assert torch.equal(backbone(x), plain(x))
        assert backbone.layers._compiled_call_impl is not None
    assert plain.layers._compiled_call_impl is None
    assert compiled.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(
    ("function", "arguments", "settings", "message"),
    [
        (create_backbone, ["resnet102"], {}, "'resnet101'"),
        (create_backbone, ["small"], {"pool": "min"}, "'max', 'avg'"),
        (create_backbone, ["small"], {"frozen": ["layer9"]}, r"no layer 'layer9' to freeze; .*'0', '1'"),
        (create_backbone, ["small"], {"fold_batchnorm": True}, "freeze_batchnorm=True"),
        (Precomputed(5), [torch.zeros(2, 4)], {}, r"features must be \[images, 5\], as a feature_b"),
        (RandomFeatures, [Precomputed(6), 0], {}, "width must be at least 1, not 0"),
        (RandomFeatures, [nn.Identity()], {}, "has no num_features, the length of its features"),
    ],
)
def test_wrong_arguments_are_rejected_with_the_choices(function, arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments, **settings)


def with_statistics(layers):
    """As after some training: nothing about the normalisations is 0 or 1."""
    generator = torch.Generator().manual_seed(1)
    for module in layers.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.weight.data, module.bias.data):
                values.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return layers


@pytest.mark.parametrize("bias", [False, True])
def test_folded_convolution_computes_the_same_and_other_normalisations_stay(bias):
    convolution = nn.Conv2d(3, 8, 3, bias=bias)
    after = nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8), nn.Dropout()
    layers = nn.Sequential(nn.BatchNorm2d(3), convolution, *after)
    x = torch.randn(2, 3, 16, 16)
    expected = with_statistics(layers).eval()(x)
    layers.train()[1].eval()
    assert fold_into_convolutions(layers) == 1
    types = [nn.BatchNorm2d, nn.Conv2d, nn.Identity, nn.ReLU, nn.BatchNorm2d, nn.Dropout]
    assert [type(layer) for layer in layers] == types
    assert [layers[1].training, layers[5].training] == [False, True]
    torch.testing.assert_close(layers.eval()(x), expected)
    assert fold_into_convolutions(layers) == 0


def test_networks_without_normalisation_are_not_run_for_folding():
    class Rejecting(nn.Conv2d):
        def forward(self, x):
            raise AssertionError("its maps of a large image may not fit into memory")

    assert fold_into_convolutions(nn.Sequential(Rejecting(3, 8, 3), nn.ReLU())) == 0


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v2"])
def test_folded_networks_give_the_same_features(name):
    plain, folded = twins(name, freeze_batchnorm=True, fold_batchnorm=True)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    x = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(folded(x), plain(x), rtol=1e-3, atol=1e-4)


def test_networks_that_cannot_be_folded_are_rejected():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            maps = self.convolution(x)
            return maps + self.norm(maps)

    with pytest.raises(ValueError, match="fold_batchnorm=False"):
        fold_into_convolutions(with_statistics(Twice()))


def test_random_weights_that_were_not_asked_for_are_mentioned():
    with pytest.warns(UserWarning, match="resnet18 starts from random weights: pass pretrained=True"):
        create_backbone("resnet18")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_backbone("resnet18", pretrained=False)
        create_backbone("small")


def test_small_has_weights_of_drawn_scenes():
    torch.manual_seed(1)
    first, second = (create_backbone("small", pretrained=True) for _ in range(2))
    assert first.pretrained
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))
    assert (first.mean, first.std) == (MEAN, STD)
    with pytest.raises(WeightsUnavailable, match="width=32 only"):
        create_backbone("small", pretrained=True, width=8)


def test_random_features_are_a_fixed_layer_initialised_like_pytorch():
    backbone = RandomFeatures(Precomputed(100), 500, seed=3)
    weight, x = backbone.weight, torch.randn(4, 100)
    torch.testing.assert_close(backbone(x), (x @ weight.T).clamp(min=0))
    assert not list(backbone.parameters())
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(torch.nn.Linear(100, 500).weight.std().item(), rel=0.02)
    assert abs(weight.mean()) < 0.002
    assert torch.equal(RandomFeatures(Precomputed(100), 500, seed=3).weight, weight)
    other = MultiLabelClassifier(RandomFeatures(Precomputed(100), 500, seed=4), 3)
    assert not torch.equal(other.backbone.weight, weight)
    other.load_state_dict(MultiLabelClassifier(backbone, 3).state_dict())  # it is saved with the model
    assert torch.equal(other.backbone.weight, weight)
