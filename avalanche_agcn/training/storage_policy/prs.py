"""Partitioning reservoir sampling (Kim, Jeong and Kim, 2020).

=========  =============================================  ==============================
symbol     meaning                                        here
=========  =============================================  ==============================
m          size of the memory                             ``max_size``
n_i        images of the stream with class i so far       ``class_counts``
p_i        target share of class i, n_i^ρ / Σ n_j^ρ       `target_shares`
l_i        images in memory with class i                  ``labels.sum(0)``
δ_i        surplus of class i, l_i − p_i Σ l_j            ``delta``
s          probability to enter                           `entry_probability`
=========  =============================================  ==============================
"""

import torch
from torch import Tensor

from avalanche_agcn.training.storage_policy.base import OnlineBuffer, target_shares

RHO = -0.03  # the paper's, for COCO; 0.02 for NUS-WIDE
_ROUNDING = 1e-9  # distances are sums of counts times shares: equal ones differ by less, others by more


class PRSBuffer(OnlineBuffer):
    """A memory whose share of each class approaches n_i^ρ / Σ n_j^ρ, however long-tailed the stream.

    A new image is counted first, so that with a single class this is reservoir sampling: s = m/n. (The
    authors' program counts it after the decision, which differs by one image.) Ties between images to remove
    are broken at random; the authors' program takes the first in memory, which tends to be the newest of its
    class. An image without a label is not stored.

    A removal is one matrix operation on the stored images of one class.

    Args:
        max_size: m; 2,000 in the paper.
        rho: ρ, the power of allocation: 0 asks for equal shares, 1 for those of the stream.
        seed: see `OnlineBuffer`.
    """

    def __init__(self, max_size: int, *, rho: float = RHO, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        for key, row, draws in zip(keys, labels, self._uniform(len(keys), 3).tolist(), strict=True):
            self._n_seen += 1
            self._class_counts += row
            if not row.any():
                continue
            if self._size < self.max_size:
                self._put(self._size, key, row)
            elif draws[0] < entry_probability(row, self._class_counts, self.max_size, self.rho):
                self._put(self._choose(*draws[1:]), key, row)

    def _select_removal(self) -> int:
        return self._choose(*self._uniform(2).tolist())

    def _choose(self, class_draw: float, tie_draw: float) -> int:
        return choose_removal(self.labels, target_shares(self._class_counts, self.rho), class_draw, tie_draw)


def entry_probability(labels: Tensor, class_counts: Tensor, max_size: int, rho: float) -> float:
    """Probability of being stored: s = Σ w_i min(1, m p_i / n_i) over its classes, w = softmax(−n_i).

    The rarest of its classes nearly decides alone.

    Args:
        labels: 1 for each class of the image, ``[n_classes]``, at least one.
        class_counts: n_i with this image counted, ``[n_classes]``.
        max_size: m.
        rho: ρ.

    Example:
        >>> entry_probability(torch.tensor([1.0]), torch.tensor([40.0]), max_size=10, rho=0)
        0.25
    """
    own = labels > 0
    counts = class_counts[own]
    chances = (max_size * target_shares(class_counts, rho)[own] / counts).clamp(max=1.0)
    return float(torch.softmax(-counts, dim=0) @ chances)


def choose_removal(labels: Tensor, shares: Tensor, class_draw: float, tie_draw: float) -> int:
    """Position of the stored image to remove.

    A class is drawn from softmax(δ) among those in memory. Candidates are its images with the fewest labels
    of classes without a surplus (δ_i ≤ 0); the one whose removal leaves Σ|l_i − p_i Σ l_j| smallest is
    removed.

    Args:
        labels: of the stored images, ``[n, n_classes]`` of 0 and 1, each row with a 1.
        shares: p_i, ``[n_classes]``.
        class_draw: number in [0, 1) that selects the class.
        tie_draw: number in [0, 1) that selects among equally good images.
    """
    in_memory = labels.sum(0)  # l
    delta = in_memory - shares * in_memory.sum()
    drawn = _draw_class(delta.masked_fill(in_memory == 0, -torch.inf), class_draw)
    positions = labels[:, drawn].nonzero().flatten()
    needed = labels[positions] @ (delta <= 0).to(labels)
    positions = positions[needed == needed.min()]
    left = in_memory - labels[positions]  # [candidates, n_classes], l after each removal
    distances = (left - shares * left.sum(1, keepdim=True)).abs().sum(1)
    best = positions[distances <= distances.min() + _ROUNDING]
    return int(best[int(tie_draw * len(best))])


def _draw_class(logits: Tensor, draw: float) -> int:
    cumulative = torch.softmax(logits, dim=0).cumsum(0)
    drawn = int((cumulative <= draw).sum())
    last = int((logits > -torch.inf).nonzero()[-1])  # rounding can leave the sum below the draw
    return min(drawn, last)
