"""Long-tailed streams: train images thinned out until the classes follow a power law.

PRS (Kim et al., 2020) made COCOseq and NUS-WIDEseq in this manner, to study streams where a few classes have
most of the images.
"""

from __future__ import annotations

import torch
from torch import Tensor


def long_tail_quotas(counts: Tensor, power: float) -> Tensor:
    """Largest number of images of each class: n_max · r^−power for the class of rank r = 1, 2, ….

    Args:
        counts: number of images of each class, ``[C]``. The class with most images has rank 1; of equal ones
            the first column comes first.
        power: 0 leaves all images; the higher, the longer the tail.

    Returns:
        ``[C]`` int64, at least 1 and at most the class's own number; 0 for a class without images.

    Raises:
        ValueError: if ``power`` is negative.

    Example:
        >>> long_tail_quotas(torch.tensor([50, 100, 80]), power=1.0)
        tensor([ 33, 100,  50])
    """
    if not power >= 0:
        raise ValueError(f"long_tail must be a power of 0 or more, but is {power}.")
    order = counts.sort(descending=True, stable=True).indices
    ranks = torch.empty(len(counts), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(counts) + 1, dtype=torch.float64)
    if power == 0:
        return counts.long()
    wanted = (counts.max() * ranks.pow(-power)).round().long().clamp(min=1)
    return torch.minimum(wanted, counts.long())


def draw_long_tail(labels: Tensor, power: float, seed: int = 0) -> Tensor:
    """Which images to keep, so that no class has more than its quota of images.

    Images are taken in random order, those of classes with the smallest quotas first, and kept while none of
    their classes is full. A class that would be left without an image keeps one, above the quota of a class
    it appears with. Images without a label are kept. The most frequent classes stay below their quotas, since
    many of their images also show a rarer class that is full.

    Args:
        labels: [N, C] of 0 and 1.
        power: see `long_tail_quotas`.
        seed: seed of the order.

    Returns:
        [N] bool.
    """
    quotas = long_tail_quotas(labels.sum(0), power)
    order = _rare_first(labels, quotas, seed)
    keep = ~labels.any(1)
    left = quotas.clone()
    for image in order.tolist():
        shown = labels[image].bool()
        if bool((left[shown] > 0).all()):
            keep[image] = True
            left -= labels[image]
    for column in ((quotas > 0) & ~labels[keep].any(0)).nonzero().flatten().tolist():
        candidates = order[labels[order, column] == 1]
        keep[candidates[0]] = True
    return keep


def _rare_first(labels: Tensor, quotas: Tensor, seed: int) -> Tensor:
    """Positions of the images with a label, by the smallest quota of their classes, at random within it."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = shuffled[labels[shuffled].any(1)]
    none = torch.iinfo(torch.int64).max
    smallest = quotas.expand(len(shuffled), -1).masked_fill(labels[shuffled] == 0, none).amin(1)
    return shuffled[smallest.sort(stable=True).indices]
