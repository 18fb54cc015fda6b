"""Frozen networks, whose forward pass is all that remains: as fast as their convolutions."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from avalanche_agcn.models.backbones import Backbone, fold_into_convolutions
from avalanche_agcn.models.forward import frozen_copy, one_thread
from avalanche_agcn.models.networks import pad_within_convolutions

PIXELS_PER_PASS = 16 * 128**2
"""Of the images that go through a network at once on a CPU.

With more, maps of the first layers exceed 32 MB, and the C library returns such memory to the system at
once: in batches of 32, a fifth of the folded EfficientNet-Lite0's time at 128
pixels, and two fifths at 224, was the system's.
"""


@one_thread()
def folded_copy(backbone: nn.Module, device: torch.device | str = "cpu") -> Any:
    """A frozen copy of a network on a device, which computes the same features faster.

    Batch normalisation and padding become parts of convolutions (`fold_into_convolutions`,
    `pad_within_convolutions`); on the CPU, channels are last and 1 × 1 convolutions are computed by oneDNN
    (`use_fast_pointwise`). Only a `Backbone` changes, and its batch normalisation only if the features stay
    the same: the copies of other modules compute as they do.
    """
    copied: Any = frozen_copy(backbone).cpu()
    if type(copied) is not Backbone:
        return copied.to(device)
    try:
        fold_into_convolutions(copied.layers)
    except (AssertionError, RuntimeError, TypeError, ValueError):  # also of networks for other images
        copied = frozen_copy(backbone).cpu()
    pad_within_convolutions(copied.layers)
    if torch.device(device).type == "cpu":
        use_fast_pointwise(copied.layers)
        copied.channels_last = True
        copied.layers.to(memory_format=torch.channels_last)
    return copied.to(device).requires_grad_(False)


class PointwiseConv2d(nn.Conv2d):
    """A 1 × 1 convolution, computed by oneDNN wherever that is possible.

    With one thread and fewer than 16 images torch chooses another kernel, which takes twice as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps of maps."""
        is_plain = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        is_other = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        if not is_plain or is_other or not torch.backends.mkldnn.is_available():
            return super().forward(x)
        return torch.mkldnn_convolution(
            x, self.weight, self.bias, padding=(0, 0), stride=(1, 1), dilation=(1, 1), groups=1
        )


def use_fast_pointwise(layers: nn.Module) -> None:
    """Replace the 1 × 1 convolutions among layers by `PointwiseConv2d`, in place; not for training."""
    for name, module in list(layers.named_modules(remove_duplicate=False)):
        if name and _is_pointwise(module):
            replacement = PointwiseConv2d(module.in_channels, module.out_channels, 1, device="meta")
            replacement.weight, replacement.bias = module.weight, module.bias
            owner, _, attribute = name.rpartition(".")
            setattr(layers.get_submodule(owner), attribute, replacement)


def _is_pointwise(module: Any) -> TypeGuard[nn.Conv2d]:
    """Whether a module is a 1 × 1 convolution and nothing else: torch's, or EfficientNet-Lite's."""
    if not isinstance(module, nn.Conv2d) or module.kernel_size != (1, 1) or module.padding != (0, 0):
        return False
    padding = getattr(module, "static_padding", None)  # of EfficientNet-Lite: a module that pads, or none
    is_plain = type(module) is nn.Conv2d or (padding is not None and not isinstance(padding, nn.ZeroPad2d))
    return is_plain and tuple(module.stride) == (1, 1) and module.groups == 1


def images_per_pass(image: Tensor) -> int:
    """How many images like this one, ``[3, H, W]``, should go through a network at once on a CPU."""
    return max(1, PIXELS_PER_PASS // image[0].numel())


def frozen_forward(
    model: nn.Module, images: Tensor, to_inputs: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Outputs of a model in evaluation mode for a batch of images, computed in passes of a good size.

    On the CPU each of torch's threads computes passes of its own: threads that share the work of a layer wait
    for each other. The number of threads changes no output, unless all images fit into one pass.

    Args:
        model: network or model with a network, best a `folded_copy`.
        images: ``[B, 3, H, W]`` of any type, such as the pixels of photos.
        to_inputs: makes inputs of images; see `split_transform`. None if they are inputs.
    """

    @torch.inference_mode()  # of a thread, as the state of autocast is
    def run(part: Tensor) -> Tensor:
        return model(part if to_inputs is None else to_inputs(part))

    if images.device.type != "cpu":
        return run(images)
    passes = images.split(images_per_pass(images[0]))
    is_for_threads = len(passes) > 1 and torch.get_num_threads() > 1
    if not is_for_threads or torch.is_autocast_enabled("cpu"):
        return torch.cat([run(part) for part in passes])
    with one_thread() as n_threads, ThreadPoolExecutor(n_threads) as pool:
        outputs = list(pool.map(run, passes))
    return torch.cat(outputs)
