"""Memories that balance classes: PRS (Kim, Jeong and Kim, 2020) and OCDM (Liang and Li, 2022)."""

import torch
from torch import Tensor

from avalanche_agcn.training.storage_policy.base import OnlineBuffer

RHO = -0.03  # of the PRS paper, for COCO; 0.02 for NUS-WIDE
DISTANCE_ROUNDING = 1e-9  # equal distances, sums of counts times shares, differ by less, others by more
DIVERGENCE_ROUNDING = 1e-12  # of a divergence in float64


def target_shares(class_counts: Tensor, rho: float) -> Tensor:
    """Target share p_i = n_i^ρ / Σ n_j^ρ of each class with n_i > 0 images in the stream; 0 for others."""
    weights = torch.where(class_counts > 0, class_counts**rho, 0.0)
    return weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


class PRSBuffer(OnlineBuffer):
    """A memory whose share of each class approaches its target (`target_shares`) on long-tailed streams.

    A new image is counted first, so that with a single class this is reservoir sampling: s = m/n. (The
    authors' code counts it after the decision, which differs by one image.) Ties between images to remove
    are broken at random; the authors' code takes the first in memory, which tends to be the newest of its
    class. An image without a label is not stored. A removal is one matrix operation on one class's images.

    ``rho`` is the power ρ: 0 aims at equal shares, 1 at those of the stream. ``max_size``, m, is 2,000 in the
    paper.
    """

    def __init__(self, max_size: int, *, rho: float = RHO, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        for key, row, draws in zip(keys, labels, self._uniform(len(keys), 3).tolist(), strict=True):
            self.class_counts += row
            if not row.any():
                continue
            if self._size < self.max_size:
                self._put(self._size, key, row)
            elif draws[0] < entry_probability(row, self.class_counts, self.max_size, self.rho):
                self._put(self._choose(*draws[1:]), key, row)

    def _select_removal(self) -> int:
        return self._choose(*self._uniform(2).tolist())

    def _choose(self, class_draw: float, tie_draw: float) -> int:
        return choose_removal(self.labels, target_shares(self.class_counts, self.rho), class_draw, tie_draw)


def entry_probability(labels: Tensor, class_counts: Tensor, max_size: int, rho: float) -> float:
    """Probability to be stored: s = Σ w_i min(1, m p_i / n_i) over an image's classes, w = softmax(−n_i).

    m is ``max_size``. The rarest class is nearly decisive. ``labels`` has at least one 1, and
    ``class_counts`` are n_i with this image counted, both ``[n_classes]``.
    """
    own = labels > 0
    counts = class_counts[own]
    chances = (max_size * target_shares(class_counts, rho)[own] / counts).clamp(max=1.0)
    return float(torch.softmax(-counts, dim=0) @ chances)


def choose_removal(labels: Tensor, shares: Tensor, class_draw: float, tie_draw: float) -> int:
    """Position of the stored image to remove, for labels ``[n, n_classes]`` and p_i ``[n_classes]``.

    With l_i the number of stored images of class i, its surplus is δ_i = l_i − p_i Σ l_j. A class is drawn
    from softmax(δ) among those in memory. Candidates are its images with the fewest labels of classes without
    a surplus (δ_i ≤ 0); the one whose removal leaves Σ|δ_i| smallest is removed. The draws, in [0, 1), select
    the class, and one among equally good images.
    """
    in_memory = labels.sum(0)  # l
    delta = in_memory - shares * in_memory.sum()
    cumulative = torch.softmax(delta.masked_fill(in_memory == 0, -torch.inf), dim=0).cumsum(0)
    last = int(in_memory.nonzero()[-1])  # rounding can leave the sum below the draw
    drawn = min(int((cumulative <= class_draw).sum()), last)
    positions = labels[:, drawn].nonzero().flatten()
    needed = labels[positions] @ (delta <= 0).to(labels)
    positions = positions[needed == needed.min()]
    left = in_memory - labels[positions]  # [candidates, n_classes], l after each removal
    distances = (left - shares * left.sum(1, keepdim=True)).abs().sum(1)
    best = positions[distances <= distances.min() + DISTANCE_ROUNDING]
    return int(best[int(tie_draw * len(best))])


class OCDMBuffer(OnlineBuffer):
    """A memory whose removals bring its label distribution as near as possible to a target.

    When memory and batch exceed the capacity, images are removed greedily (`greedy_removal`), towards
    `target_shares`. Ties are broken at random. An image without a label does not change the distribution, so
    it is removed when no other removal improves it. For the arguments see `PRSBuffer`; ρ = 0 is the paper's.
    """

    def __init__(self, max_size: int, *, rho: float = 0.0, seed: int = 0) -> None:
        super().__init__(max_size, seed=seed)
        self.rho = rho

    def _insert(self, keys: Tensor, labels: Tensor) -> None:
        self.class_counts += labels.sum(0)
        keys = torch.cat([self.keys, keys])
        labels = torch.cat([self.labels, labels]) if self._size else labels
        kept = torch.ones(len(keys), dtype=torch.bool)
        kept[self._remove(labels, max(0, len(keys) - self.max_size))] = False
        self._keys, self._labels, self._size = keys[kept], labels[kept], int(kept.sum())

    def _select_removal(self) -> int:
        return self._remove(self.labels, 1)[0]

    def _remove(self, labels: Tensor, n: int) -> list[int]:
        shares = target_shares(self.class_counts, self.rho)
        return greedy_removal(labels, shares, self._uniform(n).tolist())


def greedy_removal(labels: Tensor, shares: Tensor, tie_draws: list[float]) -> list[int]:
    """Positions of images to remove, each time the one that leaves the smallest KL(memory ‖ target).

    With l the class counts, N their sum and q the target, KL = Σ l_i log(l_i / q_i) / N − log N. A removal of
    image k lowers l_i by one for its classes, so that the sum after it is the sum before less Σ_{i∈k} d_i,
    with d_i = f_i(l_i) − f_i(l_i − 1) and f_i(l) = l log(l / q_i). One product of ``labels`` and ``d`` gives
    this for all images.

    ``labels`` are ``[n, n_classes]`` of 0 and 1, float64; ``shares`` are q, above 0 for every class that
    appears; ``tie_draws`` has one number in [0, 1) per removal, to choose among equally good images.
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
        # Without any remaining label there is no distribution: worse than every other removal, but still
        # possible. Images already removed are not.
        divergence = divergence.masked_fill(n_left == 0, torch.finfo(divergence.dtype).max)
        divergence = divergence.masked_fill(removed, torch.inf)
        best = (divergence <= divergence.min() + DIVERGENCE_ROUNDING).nonzero().flatten()
        chosen = int(best[int(draw * len(best))])
        order.append(chosen)
        removed[chosen] = True
        counts = counts - labels[chosen]
    return order


def _terms(counts: Tensor, shares: Tensor) -> Tensor:
    """l_i log(l_i / q_i), 0 for a class without images."""
    return torch.where(counts > 0, counts * (counts / shares).log(), 0.0)
