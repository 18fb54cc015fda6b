"""Optimizing class distribution in memory (Liang and Li, 2022)."""

import torch
from torch import Tensor

from avalanche_agcn.training.storage_policy.base import OnlineBuffer, target_shares

_ROUNDING = 1e-12  # of a divergence in float64


class OCDMBuffer(OnlineBuffer):
    """A memory whose removals bring its label distribution as near as possible to a target.

    When memory and batch together are too many, images are removed greedily: each time the one whose removal
    leaves the smallest KL(memory ‖ target), where the target of class i is n_i^ρ / Σ n_j^ρ over the classes
    seen. Ties are broken at random. An image without a label does not change the distribution, so it is
    removed when no other removal improves it.

    A removal is one product of a matrix and a vector (`greedy_removal`).

    Args:
        max_size: largest number of images.
        rho: ρ: 0 asks for equal shares (the paper's default), 1 for those of the stream.
        seed: see `OnlineBuffer`.
    """

    def __init__(self, max_size: int, *, rho: float = 0.0, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        self._n_seen += len(keys)
        self._class_counts += labels.sum(0)
        keys = torch.cat([self.keys, keys])
        labels = torch.cat([self.labels, labels]) if self._size else labels
        ties = self._uniform(max(0, len(keys) - self.max_size)).tolist()
        kept = torch.ones(len(keys), dtype=torch.bool)
        kept[greedy_removal(labels, target_shares(self._class_counts, self.rho), ties)] = False
        self._keys, self._labels, self._size = keys[kept], labels[kept], int(kept.sum())

    def _select_removal(self) -> int:
        shares = target_shares(self._class_counts, self.rho)
        return greedy_removal(self.labels, shares, self._uniform(1).tolist())[0]


def greedy_removal(labels: Tensor, shares: Tensor, tie_draws: list[float]) -> list[int]:
    """Select images to remove, each time the one that leaves the smallest KL divergence from the target.

    With l the class counts, N their sum and q the target, KL = Σ l_i log(l_i / q_i) / N − log N. A removal of
    image k lowers l_i by one for its classes, so that the sum after it is the sum before less Σ_{i∈k} d_i,
    with d_i = f_i(l_i) − f_i(l_i − 1) and f_i(l) = l log(l / q_i): one product of ``labels`` and ``d`` for
    all images.

    Args:
        labels: ``[n, n_classes]`` of 0 and 1, float64.
        shares: q, ``[n_classes]``, above 0 for every class that appears in ``labels``.
        tie_draws: one number in [0, 1) per removal, to choose among equally good images.

    Returns:
        Their positions, in order of removal.

    Example:
        >>> labels = torch.tensor([[1, 0], [1, 0], [0, 1]], dtype=torch.float64)
        >>> greedy_removal(labels, torch.tensor([0.5, 0.5]), [0.9])
        [1]
    """
    counts, sizes = labels.sum(0), labels.sum(1)
    removed = torch.zeros(len(labels), dtype=torch.bool)
    order = []
    for draw in tie_draws:
        # KL after removing image k is (Σ terms − labels_k · decrease) / n_left_k − log n_left_k.
        terms = _terms(counts, shares)
        decrease = terms - _terms((counts - 1).clamp(min=0), shares)  # d
        n_left = counts.sum() - sizes
        divergence = (terms.sum() - labels @ decrease) / n_left - n_left.log()
        # Without any label left there is no distribution: worse than every other removal, but still
        # possible. An image that was removed already is not.
        divergence = divergence.masked_fill(n_left == 0, torch.finfo(divergence.dtype).max)
        divergence = divergence.masked_fill(removed, torch.inf)
        best = (divergence <= divergence.min() + _ROUNDING).nonzero().flatten()
        chosen = int(best[int(draw * len(best))])
        order.append(chosen)
        removed[chosen] = True
        counts = counts - labels[chosen]
    return order


def _terms(counts: Tensor, shares: Tensor) -> Tensor:
    """l_i log(l_i / q_i), 0 for a class that is not there."""
    return torch.where(counts > 0, counts * (counts / shares).log(), 0.0)
