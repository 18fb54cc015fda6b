"""Graph convolutions over the classes of a label graph (Eq. 5)."""

import torch
from torch import Tensor, nn

HIDDEN_FEATURES = 1024  # width between the two layers; authors' code and ML-GCN


class GraphConvolution(nn.Module):
    """Linear transform of the nodes, then a weighted sum over neighbours, however many nodes there are."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = out_features**-0.5  # ±1/√out, as in ML-GCN
        self.weight = nn.Parameter(torch.empty(in_features, out_features).uniform_(-bound, bound))

    def forward(self, adjacency: Tensor, nodes: Tensor) -> Tensor:
        """``adjacency [n, n]`` times ``nodes [n, in]`` times the weight, ``[n, out]``."""
        return adjacency @ (nodes @ self.weight)


class GCN(nn.Module):
    """Two graph convolutions from word vectors (``in_features``) to one linear classifier per class."""

    def __init__(
        self, in_features: int, out_features: int, *, hidden_features: int = HIDDEN_FEATURES
    ) -> None:
        super().__init__()
        self.first = GraphConvolution(in_features, hidden_features)
        self.second = GraphConvolution(hidden_features, out_features)
        self.activation = nn.LeakyReLU(0.2)  # ML-GCN

    def forward(self, adjacency: Tensor, nodes: Tensor) -> Tensor:
        """H, the classifiers ``[n, D]`` of all nodes (Eq. 5): ``adjacency [n, n]``, ``nodes [n, d]``."""
        return self.second(adjacency, self.activation(self.first(adjacency, nodes)))  # Eq. 5
