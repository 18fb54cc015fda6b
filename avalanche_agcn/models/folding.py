"""Batch normalisation with fixed statistics, folded into the convolution before it."""

import torch
from torch import Tensor, nn


def fold_batchnorm(layers: nn.Module) -> int:
    """Fold each batch normalisation that follows a convolution directly into it, in place.

    With statistics that do not change, BN(Wx) = (γ/σ · W) x + (β − γμ/σ): one convolution with a bias. What
    the network computes stays the same; what is trained is the product, so that γ and W have no learning rate
    each any more. Which convolution a normalisation follows is found by running an image through.

    Args:
        layers: a network from images to features. Normalisations that follow anything else stay.

    Returns:
        How many were folded.

    Raises:
        ValueError: if the network gives other features afterwards, because it uses the output of a
            convolution also elsewhere.

    Example:
        >>> layers = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        >>> fold_batchnorm(layers)
        1
    """
    before, pairs = _find_pairs(layers)
    owners = {
        id(child): (owner, name) for owner in layers.modules() for name, child in owner.named_children()
    }
    for convolution, norm in pairs:
        _fold(convolution, norm)
        owner, name = owners[id(norm)]
        setattr(owner, name, nn.Identity())
    after = _run(layers)
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-3 * float(before.abs().max())):
        raise ValueError("This network cannot be folded: choose fold_batchnorm=False.")
    return len(pairs)


def _find_pairs(layers: nn.Module) -> tuple[Tensor, list[tuple[nn.Conv2d, nn.BatchNorm2d]]]:
    """Features of an image, and the pairs found on its way."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # with the tensor, so that its id is not used again
    pairs = []

    def after_convolution(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        outputs[id(output)] = (module, output)

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.BatchNorm2d)
        if id(inputs[0]) in outputs and module.running_mean is not None:
            pairs.append((outputs[id(inputs[0])][0], module))

    handles = [
        module.register_forward_hook(after_convolution)
        if isinstance(module, nn.Conv2d)
        else module.register_forward_pre_hook(before_norm)
        for module in layers.modules()
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))
    ]
    features = _run(layers)
    for handle in handles:
        handle.remove()
    return features, pairs


@torch.no_grad()
def _run(layers: nn.Module) -> Tensor:
    modes = {module: module.training for module in layers.modules()}
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    features = layers.eval()(image)
    for module, mode in modes.items():
        module.training = mode
    return features


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
