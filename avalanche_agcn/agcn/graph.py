"""Between Eq. 4 and Eq. 5: the correlation matrix becomes the graph that the GCN multiplies by.

The paper only says "similar to ML-GCN". The graph ``"paper"`` is therefore the one of ML-GCN (Chen et al.,
2019) without its binarisation; ``"official"`` is that of the authors' code.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.agcn.official import CROSS_THRESHOLD, NEW_THRESHOLD, official_graph
from avalanche_agcn.checks import check_choice, check_range

Graph = Literal["paper", "official", "plain", "identity"]


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Options of `adjacency`."""

    cross_blocks: bool = True  # False: without R and Q, as in the paper's Table 2, line 1
    neighbour_weight: float = 0.25  # of a node's neighbours in all; its own is 1 (ML-GCN, authors' code)
    new_threshold: float | None = None  # where "official" binarises New-New; 0.4 if None
    cross_threshold: float | None = None  # where "official" binarises Old-New and New-Old; 0.3 if None

    def check(self, graph: str) -> None:
        """Raise a ValueError for an unknown graph, or an option out of range or unused by the graph."""
        check_choice("graph", graph, Graph)
        if self.neighbour_weight is None:
            raise ValueError("neighbour_weight must be a number of at least 0, not None (0.25 by default).")
        check_range("neighbour_weight", self.neighbour_weight, least=0)
        for name in ("new_threshold", "cross_threshold"):
            threshold = getattr(self, name)
            check_range(name, threshold, above=0, most=1)
            if threshold is not None and graph != "official":
                raise ValueError(f"{name} belongs to the graph 'official'; {graph!r} has no threshold.")


def adjacency(
    acm: AugmentedCorrelationMatrix, preset: Graph = "paper", options: GraphOptions | None = None
) -> Tensor:
    """Make the graph over all classes seen so far, for the layers of a `GCN`: ``[n_seen, n_seen]``, float64.

    Args:
        acm: the statistics, which are not changed.
        preset: how relations become weights.

            - ``"paper"``: D^-½ W D^-½, with w_ij = ``neighbour_weight`` · P_ij / Σ_{k≠i} P_ik, w_ii = 1 and D
              the row sums of W. Without such weights all classifiers become nearly equal.
            - ``"official"``: block by block as in the authors' code; see `official_graph`.
            - ``"plain"``: the probabilities as they are, normalised to D^-½ A D^-½.
            - ``"identity"``: no relations; the GCN is then a perceptron over word vectors.
        options: see `GraphOptions`.
    """
    options = options or GraphOptions()
    options.check(preset)
    relations = acm.matrix()
    if not options.cross_blocks:
        same_experience = torch.block_diag(*[torch.ones(n, n) for n in acm.block_sizes])
        relations = relations * same_experience.to(relations)
    if preset == "official":
        new_threshold = options.new_threshold or NEW_THRESHOLD
        cross_threshold = options.cross_threshold or CROSS_THRESHOLD
        weight = options.neighbour_weight
        return official_graph(relations, acm.block_sizes, weight, new_threshold, cross_threshold)
    if preset == "identity":
        return torch.eye(len(relations)).to(relations)
    if preset == "paper":
        relations = _reweight_rows(relations, options.neighbour_weight)
    return _normalise(relations)


def _reweight_rows(relations: Tensor, neighbour_weight: float) -> Tensor:
    neighbours = relations.clone().fill_diagonal_(0.0)
    totals = neighbours.sum(dim=1, keepdim=True)
    weights = torch.where(totals > 0, neighbours * (neighbour_weight / totals), 0.0)
    return weights.fill_diagonal_(1.0)


def _normalise(weights: Tensor) -> Tensor:
    """D^-½ W D^-½, with D the row sums of W."""
    scale = weights.sum(dim=1).pow(-0.5)
    return scale[:, None] * weights * scale[None, :]
