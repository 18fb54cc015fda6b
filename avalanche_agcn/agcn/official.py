"""What the authors' code computes instead of the equations (``preset="official"``).

====================  ==================================  ==========================================
quantity              paper                               authors' code
====================  ==================================  ==========================================
ẑ in Eq. 3 and 4      sigmoid of the teacher's logits     softmax over the old classes
counts N_j and Σ ẑ_i  not said (here: start at 0)         start at 1e-6 and 1e-10
a batch is counted    not said (here: after its step)     before its forward pass
what the GCN sees     not said (see `adjacency`)          binarised blocks
first experience      counted                             a constant block, whatever the labels are
====================  ==================================  ==========================================

`ACMPlugin` has the first three, `official_graph` the others. All presets use its means in Eq. 7 and 8.
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
NORMALISATION_POWER = -0.5  # of row sums
FIRST_NEIGHBOUR_WEIGHT = 0.28  # the first experience has its own constants
FIRST_NORMALISATION_POWER = -0.8


def official_graph(
    relations: Tensor, block_sizes: Sequence[int], weight: float, new_threshold: float, cross_threshold: float
) -> Tensor:
    """Make the graph ``[n, n]`` of relations ``[n, n]`` whose experiences have ``block_sizes`` new classes.

    As in the authors' code, one experience is added after another. Old-Old stays as the previous experience
    left it. Each column of a binarised block is scaled to sum to ``weight``.
    """
    graph = torch.zeros_like(relations)
    n_old = 0
    for experience, n_new in enumerate(block_sizes):
        old = slice(n_old)
        new = slice(n_old, n_old + n_new)
        if experience == 0:  # the code's threshold is 0 here, so every entry is an edge, also the diagonal
            edges = torch.ones_like(relations[new, new])
            graph[new, new] = _new_new(edges, FIRST_NEIGHBOUR_WEIGHT, FIRST_NORMALISATION_POWER)
        else:
            edges = (relations[new, new] >= new_threshold).fill_diagonal_(False)
            graph[new, new] = _new_new(edges, weight, NORMALISATION_POWER)
            graph[old, new] = _reweight_columns(relations[old, new] >= cross_threshold, weight)
            new_old = NEW_OLD_FACTOR * relations[new, old]
            graph[new, old] = _reweight_columns(new_old >= cross_threshold, weight)
        n_old += n_new
    return graph


def _reweight_columns(edges: Tensor, weight: float) -> Tensor:
    edges = edges.double()
    return edges * weight / (edges.sum(dim=0) + COLUMN_EPSILON)


def _new_new(edges: Tensor, weight: float, power: float) -> Tensor:
    """(A·D)ᵀ·D, with A the re-weighted edges plus the identity, and D the power of A's row sums."""
    weights = _reweight_columns(edges, weight) + torch.eye(len(edges)).to(edges.device)
    scale = weights.sum(dim=1).pow(power)
    return scale[:, None] * weights.T * scale[None, :]
