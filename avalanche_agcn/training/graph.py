"""From label relations to the adjacency matrix of a GCN.

All constants of the ``official`` graph are from the authors' published program; where the paper leaves a step
open, the graph of ML-GCN (Chen et al., 2019) is used, which AGCN builds on.
"""

from typing import Literal

import torch
from torch import Tensor

from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.training.acm import AugmentedCorrelationMatrix

Graph = Literal["paper", "official", "plain", "identity"]

NEIGHBOUR_WEIGHT = 0.25  # total weight of a node's neighbours; ML-GCN, authors' code
NORMALISATION_POWER = -0.5  # of the degrees; ML-GCN, authors' code
NEW_THRESHOLD = 0.4  # where New-New is binarised; authors' code
CROSS_THRESHOLD = 0.3  # where Old-New and New-Old are binarised; authors' code
NEW_OLD_FACTOR = 0.5  # New-Old is halved before it is binarised; authors' code
COLUMN_EPSILON = 1e-6  # added to column sums; authors' code
FIRST_NEIGHBOUR_WEIGHT = 0.28  # the first experience has its own constants; authors' code
FIRST_NORMALISATION_POWER = -0.8


def adjacency(
    acm: AugmentedCorrelationMatrix,
    preset: Graph = "paper",
    *,
    cross_blocks: bool = True,
    neighbour_weight: float = NEIGHBOUR_WEIGHT,
    new_threshold: float | None = None,
    cross_threshold: float | None = None,
) -> Tensor:
    """Make the graph over all classes seen so far, for the layers of a `GCN`: ``[n_seen, n_seen]``, float64.

    It costs a few passes over the matrix, whatever the number of experiences. A ValueError is raised for an
    unknown preset, a weight or threshold out of range, or a threshold for a preset that has none.

    Args:
        acm: the statistics, which are not changed.
        preset: how relations become weights.

            - ``"paper"``: the off-diagonal entries of each row are scaled to sum to ``neighbour_weight``, the
              identity is added, and the result A normalised to D^-½ A D^-½ with D its row sums. The paper
              only says "similar to ML-GCN"; without such re-weighting all classifiers are smoothed into one.
            - ``"official"``: block by block as in the authors' code. New-Old is halved, blocks are
              binarised, each column of a block is scaled to sum to ``neighbour_weight``, and only New-New
              gets the identity and is normalised, to D^-½ Aᵀ D^-½. The block of the first experience does not
              depend on the data.
            - ``"plain"``: the probabilities as they are, normalised to D^-½ A D^-½.
            - ``"identity"``: no relations; the GCN is then a perceptron over word vectors.
        cross_blocks: with False, classes of different experiences have no relations (without R and Q: the
            paper's Table 2, line 1).
        neighbour_weight: total weight of a node's neighbours, beside its own of 1.
        new_threshold: where ``"official"`` binarises New-New; 0.4 if None.
        cross_threshold: where ``"official"`` binarises Old-New and New-Old; 0.3 if None.
    """
    check_choice("preset", preset, Graph)
    check_range("neighbour_weight", neighbour_weight, least=0)
    for name, threshold in {"new_threshold": new_threshold, "cross_threshold": cross_threshold}.items():
        if threshold is not None and preset != "official":
            raise ValueError(f"{name} belongs to preset 'official'; {preset!r} has no threshold.")
        check_range(name, threshold, above=0, most=1)
    relations, sizes = acm.matrix(), torch.tensor(acm.block_sizes, dtype=torch.long)
    if preset == "identity":
        return torch.eye(len(relations), dtype=relations.dtype, device=relations.device)
    owner = torch.arange(len(sizes)).repeat_interleave(sizes).to(acm.device)  # experience of each class, [n]
    if not cross_blocks:
        relations = relations.where(owner[:, None] == owner, 0.0)
    if preset == "plain":
        return _normalise(relations)
    if preset == "paper":
        return _normalise(_reweight_rows(relations, neighbour_weight))
    thresholds = new_threshold or NEW_THRESHOLD, cross_threshold or CROSS_THRESHOLD
    return _official(relations, owner, len(sizes), neighbour_weight, thresholds)


def _reweight_rows(relations: Tensor, neighbour_weight: float) -> Tensor:
    neighbours = relations.clone().fill_diagonal_(0.0)
    totals = neighbours.sum(dim=1, keepdim=True)
    weights = torch.where(totals > 0, neighbours * (neighbour_weight / totals), 0.0)
    return weights.fill_diagonal_(1.0)


def _normalise(weights: Tensor) -> Tensor:
    scale = weights.sum(dim=1).pow(NORMALISATION_POWER)
    return scale[:, None] * weights * scale[None, :]


def _official(
    relations: Tensor, owner: Tensor, n_experiences: int, weight: float, thresholds: tuple[float, float]
) -> Tensor:
    # The authors' code adds one experience after another. Here masks [n, n] make all blocks at once: no
    # later experience changes an entry, so the order does not matter.
    first = owner == 0  # [n]
    first_block = first[:, None] & first
    new_new, old_new, new_old = (compare(owner[:, None], owner) for compare in (torch.eq, torch.lt, torch.gt))
    scaled = torch.where(new_old, NEW_OLD_FACTOR * relations, relations)
    edges = torch.where(new_new, scaled >= thresholds[0], scaled >= thresholds[1])
    # The authors' counts exclude a class with itself, but their first threshold of 0 admits every entry.
    edges = edges.fill_diagonal_(False) | first_block

    # The edges of a column share one weight, block by block; the diagonal is the node itself. New-New and
    # New-Old blocks have the rows of one experience, Old-New of all before the column.
    sums = torch.where(old_new, (edges * old_new).sum(dim=0), _sums_by_owner(edges, owner, n_experiences))
    weights = edges * _choose(first_block, FIRST_NEIGHBOUR_WEIGHT, weight)
    weights /= sums + COLUMN_EPSILON
    weights.diagonal().add_(1.0)

    # Only New-New blocks are normalised, and transposed: the authors' code computes (A·D)ᵀ·D.
    power = _choose(first, FIRST_NORMALISATION_POWER, NORMALISATION_POWER)
    scale = weights.where(new_new, 0.0).sum(dim=1).pow(power)
    return torch.where(new_new, scale[:, None] * weights.T * scale[None, :], weights)


def _sums_by_owner(edges: Tensor, owner: Tensor, n_experiences: int) -> Tensor:
    """For each entry, the sum of its column over the rows of its own row's experience, ``[n, n]``."""
    sums = torch.zeros(n_experiences, len(edges), dtype=torch.float64, device=edges.device)
    return sums.index_add_(0, owner, edges.double())[owner]


def _choose(mask: Tensor, inside: float, outside: float) -> Tensor:
    """Select in float64: `torch.where` with two numbers would give float32."""
    return torch.full_like(mask, outside, dtype=torch.float64).masked_fill_(mask, inside)
