"""What the authors' code computes instead of the equations (``preset="official"``), in its order.

========================  =====================================  ==========================================
quantity                  paper                                  authors' code
========================  =====================================  ==========================================
soft labels ẑ             sigmoid of the teacher's logits        softmax over the old classes
counts N_j and Σ ẑ_i      start at 0                             start at 1e-6 and 1e-10
a batch is counted        after its step                         before its forward pass
what the GCN sees         the probabilities, re-weighted         binarised blocks (`official_graph`)
first experience          counted                                a constant block, whatever the labels are
========================  =====================================  ==========================================
"""

from collections.abc import Sequence

import torch
from torch import Tensor

HARD_START = 1e-6  # of N_j
SOFT_START = 1e-10  # of Σ ẑ_i
NEW_THRESHOLD = 0.4  # where New-New is binarised
CROSS_THRESHOLD = 0.3  # where Old-New and New-Old are binarised
NEW_OLD_FACTOR = 0.5  # New-Old is halved before it is binarised
COLUMN_EPSILON = 1e-6  # added to column sums
NORMALISATION_POWER = -0.5  # of the row sums
FIRST_NEIGHBOUR_WEIGHT = 0.28  # the first experience has its own constants
FIRST_NORMALISATION_POWER = -0.8


def official_graph(
    relations: Tensor,
    block_sizes: Sequence[int],
    *,
    neighbour_weight: float,
    new_threshold: float | None = None,
    cross_threshold: float | None = None,
) -> Tensor:
    """Make the graph ``[n, n]`` of relations ``[n, n]`` whose experiences have ``block_sizes`` new classes.

    One experience is added after another. Old-Old stays as the previous experience left it. New-Old is
    halved; then New-New, Old-New and New-Old are binarised, and each column of a block is scaled to sum to
    ``neighbour_weight``. Only New-New gets the identity and is normalised.
    """
    new_threshold = NEW_THRESHOLD if new_threshold is None else new_threshold
    cross_threshold = CROSS_THRESHOLD if cross_threshold is None else cross_threshold
    graph = torch.zeros_like(relations)
    n_old = 0
    for experience, n_new in enumerate(block_sizes):
        old = slice(n_old)
        new = slice(n_old, n_old + n_new)
        if experience == 0:
            # Its threshold of 0 admits every entry, also that of a class with itself.
            everything = torch.ones_like(graph[new, new])
            first = _reweight_columns(everything, FIRST_NEIGHBOUR_WEIGHT)
            graph[new, new] = _add_self_and_normalise(first, FIRST_NORMALISATION_POWER)
        else:
            new_new = (relations[new, new] >= new_threshold).fill_diagonal_(False)
            old_new = relations[old, new] >= cross_threshold
            new_old = NEW_OLD_FACTOR * relations[new, old] >= cross_threshold
            weights = _reweight_columns(new_new, neighbour_weight)
            graph[new, new] = _add_self_and_normalise(weights, NORMALISATION_POWER)
            graph[old, new] = _reweight_columns(old_new, neighbour_weight)
            graph[new, old] = _reweight_columns(new_old, neighbour_weight)
        n_old += n_new
    return graph


def _reweight_columns(edges: Tensor, weight: float) -> Tensor:
    """Weights of edges (0 or 1), those of a column sum to nearly ``weight``."""
    edges = edges.double()
    return edges * weight / (edges.sum(dim=0) + COLUMN_EPSILON)


def _add_self_and_normalise(weights: Tensor, power: float) -> Tensor:
    """(A·D)ᵀ·D, where A is the weights plus the identity, and D the power of A's row sums."""
    weights = weights + torch.eye(len(weights)).to(weights)
    scale = weights.sum(dim=1).pow(power)
    return scale[:, None] * weights.T * scale[None, :]
