"""A random layer behind a backbone, for closed-form methods."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_agcn.models.base import count_features

WIDTH = 4096  # of L3A's program


class RandomFeatures(nn.Module):
    """A backbone whose features are a random, fixed ReLU layer over those of another: ReLU(f R).

    Linear classifiers over it can separate more than over the features themselves (RanPAC, L3A). The layer is
    drawn as PyTorch initialises a linear one, has no bias, and is never trained.

    Args:
        backbone: network from images to ``[B, D]``, with D as its attribute ``num_features``.
        width: number of random features.
        seed: seed of the layer.

    Attributes:
        num_features: ``width``.

    Example:
        >>> from avalanche_agcn.models import MultiLabelClassifier, Precomputed
        >>> model = MultiLabelClassifier(RandomFeatures(Precomputed(8), 32), 5)
        >>> model(torch.zeros(2, 8)).shape
        torch.Size([2, 5])
    """

    weight: Tensor

    def __init__(self, backbone: nn.Module, width: int = WIDTH, *, seed: int = 0) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, but is {width}.")
        self.backbone, self.num_features = backbone, width
        n_inputs = count_features(backbone)
        bound = n_inputs**-0.5
        drawn = torch.rand(width, n_inputs, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("weight", (2 * drawn - 1) * bound)

    def forward(self, x: Tensor) -> Tensor:
        """Random features of images, ``[B, width]``, in the precision of the layer."""
        features = self.backbone(x)
        with torch.autocast(x.device.type, enabled=False):
            return F.relu(F.linear(features.to(self.weight.dtype), self.weight))
