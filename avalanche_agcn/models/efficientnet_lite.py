"""EfficientNet-Lite without its package, for saved models that have all weights.

Layers and parameters have the names of ``efficientnet_lite_pytorch``, which runs use and whose weights are
stored. Tan and Le 2019, and the settings of TensorFlow's ``efficientnet_lite_builder.py``.
"""

import math

from torch import Tensor, nn

SCALES = {  # of width and depth, and the image size that the padding is computed for
    "efficientnet_lite0": (1.0, 1.0, 224),
    "efficientnet_lite1": (1.0, 1.1, 240),
    "efficientnet_lite2": (1.1, 1.2, 260),
    "efficientnet_lite3": (1.2, 1.4, 280),
    "efficientnet_lite4": (1.4, 1.8, 300),
}
STAGES = (  # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280  # channels; not scaled
DIVISOR = 8  # of numbers of channels


class SamePadConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding ``same``, as for images of one size."""

    def __init__(
        self, n_inputs: int, n_outputs: int, kernel: int, size: int, *, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(n_inputs, n_outputs, kernel, stride, groups=groups, bias=False)
        missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        before = missing // 2
        after = missing - before
        self.static_padding = nn.ZeroPad2d((before, after, before, after)) if missing else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps of padded maps."""
        return super().forward(self.static_padding(x))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection, and a shortcut if the shape stays the same."""

    def __init__(
        self, n_inputs: int, n_outputs: int, kernel: int, stride: int, expansion: int, size: int
    ) -> None:
        super().__init__()
        n_inner = n_inputs * expansion
        self.is_expanded = expansion != 1
        self.has_shortcut = stride == 1 and n_inputs == n_outputs
        if self.is_expanded:
            self._expand_conv = SamePadConv2d(n_inputs, n_inner, 1, size)
            self._bn0 = _norm(n_inner)
        self._depthwise_conv = SamePadConv2d(n_inner, n_inner, kernel, size, stride=stride, groups=n_inner)
        self._bn1 = _norm(n_inner)
        self._project_conv = SamePadConv2d(n_inner, n_outputs, 1, size)
        self._bn2 = _norm(n_outputs)
        self._swish = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """Maps of maps."""
        inner = self._swish(self._bn0(self._expand_conv(x))) if self.is_expanded else x
        inner = self._swish(self._bn1(self._depthwise_conv(inner)))
        inner = self._bn2(self._project_conv(inner))
        return inner + x if self.has_shortcut else inner


def make_layers(name: str) -> nn.Sequential:
    """The layers before the pooling, with random weights."""
    width, depth, size = SCALES[name]
    layers: list[nn.Module] = [SamePadConv2d(3, STEM, 3, size, stride=2), _norm(STEM), nn.ReLU6()]
    size = math.ceil(size / 2)
    n_channels = STEM
    for stage in STAGES:
        repeats, kernel, stride, expansion, channels = stage
        is_scaled = stage not in (STAGES[0], STAGES[-1])
        n_outputs = _scaled_channels(channels, width)
        for k in range(math.ceil(repeats * depth) if is_scaled else repeats):
            own_stride = stride if k == 0 else 1
            layers.append(InvertedResidual(n_channels, n_outputs, kernel, own_stride, expansion, size))
            size = math.ceil(size / own_stride)
            n_channels = n_outputs
    return nn.Sequential(*layers, SamePadConv2d(n_channels, HEAD, 1, size), _norm(HEAD), nn.ReLU6())


def _norm(n_channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(n_channels, eps=1e-3, momentum=0.01)


def _scaled_channels(n_channels: int, width: float) -> int:
    """A multiple of `DIVISOR` that is at least nine tenths of the scaled number."""
    scaled = n_channels * width
    rounded = max(DIVISOR, int(scaled + DIVISOR / 2) // DIVISOR * DIVISOR)
    return rounded + DIVISOR if rounded < 0.9 * scaled else rounded
