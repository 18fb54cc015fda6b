"""AGCN's model: features of an image times classifiers that a GCN makes from a label graph (Eq. 5 and 6)."""

from typing import Any

import torch
from torch import Tensor, nn

from avalanche_agcn.agcn.gcn import GCN, HIDDEN_FEATURES
from avalanche_agcn.benchmarks.experience import MultiLabelExperience, count_seen
from avalanche_agcn.checks import check_shape
from avalanche_agcn.models.backbones import count_features
from avalanche_agcn.models.base import LR_AUXILIARY, LR_BACKBONE, Classifiers, MultiLabelModel

LR_GCN = 3e-5  # of Adam; the authors' code


class AGCNModel(MultiLabelModel):
    """Logits of the classes seen so far: features ⊗ GCN(adjacency, word vectors).

    The model starts without classes and grows with its graph, which is a buffer like the word vectors.
    Avalanche's strategies call `adaptation` before they train on an experience; `ACMPlugin` then keeps the
    graph up to date. Without Avalanche, call `set_graph`.

    Args:
        backbone: network from images to ``[B, D]``, the paper's CNN.
        word_vectors: one row per class, in the order of the columns of the targets, ``[n, d]``.
        hidden_features: width between the layers of the GCN.
        decoupled: whether to add an auxiliary head that trains the backbone; see `MultiLabelModel`.
    """

    adjacency: Tensor  # made from A^t, [n_seen, n_seen]
    word_vectors: Tensor  # [n, d]; H^{t,0} is its first n_seen rows
    resized_buffers = ("adjacency",)
    example = "AGCNModel(backbone, load_word_vectors(benchmark.class_names))"

    def __init__(
        self,
        backbone: nn.Module,
        word_vectors: Tensor,
        *,
        hidden_features: int = HIDDEN_FEATURES,
        decoupled: bool = False,
    ) -> None:
        check_shape("word_vectors", word_vectors, ("classes", "d"), ", as load_word_vectors returns them")
        super().__init__(backbone, n_auxiliary=len(word_vectors) if decoupled else 0)
        self.gcn = GCN(word_vectors.shape[1], count_features(backbone), hidden_features=hidden_features)
        self.register_buffer("word_vectors", word_vectors.detach().clone().to(torch.get_default_dtype()))
        self.register_buffer("adjacency", torch.zeros(0, 0))

    @property
    def n_seen(self) -> int:
        """Number of classes seen so far, and of logits."""
        return len(self.adjacency)

    def embeddings(self) -> Tensor:
        """H^t, one row per class seen, ``[n_seen, D]`` (Eq. 5)."""
        with torch.autocast(self.adjacency.device.type, enabled=False):  # small products, kept in float32
            return self.gcn(self.adjacency, self.word_vectors[: self.n_seen])

    def classifiers(self) -> Classifiers:
        """The embeddings as the weights of classifiers without bias."""
        return Classifiers(self.embeddings(), None)

    def logits(self, features: Tensor, classifiers: Classifiers | None = None) -> Tensor:
        """ŷ before σ, ``[B, n_seen]``, of features CNN(x) (Eq. 6); pass the classifiers if they are known."""
        embeddings = self.embeddings() if classifiers is None else classifiers.weight  # H^t
        return features.to(embeddings.dtype) @ embeddings.T  # Eq. 6 before σ: H ⊗ CNN(x) for each image

    def set_graph(self, adjacency: Tensor) -> None:
        """Set the graph ``[n, n]`` over the first n classes."""
        n = len(adjacency)
        n_words = len(self.word_vectors)
        if adjacency.shape != (n, n) or not self.n_seen <= n <= n_words:
            raise ValueError(
                f"A graph of shape {tuple(adjacency.shape)} cannot replace one of {self.n_seen} classes: use "
                f"a square one, no smaller and of at most {n_words}; for more, call add_word_vectors(...)."
            )
        self.adjacency = adjacency.detach().to(self.word_vectors)

    def add_word_vectors(self, word_vectors: Tensor) -> None:
        """Append rows for unknown classes, ``[n, d]``; an auxiliary head then needs a new optimizer."""
        self.word_vectors = torch.cat([self.word_vectors, word_vectors.to(self.word_vectors)])
        self._add_auxiliary_rows(len(word_vectors))

    def parameter_groups(
        self, *, lr_backbone: float = LR_BACKBONE, lr_gcn: float = LR_GCN, lr_auxiliary: float = LR_AUXILIARY
    ) -> list[dict[str, Any]]:
        """Parameters for an optimizer, with the learning rates of the authors' code."""
        return self._group_parameters(self.gcn, lr_backbone, lr_gcn, lr_auxiliary)

    def adaptation(self, experience: MultiLabelExperience) -> None:
        """Add the new classes of an experience as nodes without edges, in training mode only."""
        n_new = count_seen(experience) - self.n_seen
        if self.training and n_new > 0:
            self.set_graph(torch.block_diag(self.adjacency, torch.eye(n_new).to(self.adjacency)))
