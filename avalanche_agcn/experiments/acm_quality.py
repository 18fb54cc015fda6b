"""How near an Augmented Correlation Matrix came to the truth, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from avalanche_agcn.benchmarks.multilabel import Plan


class BlockQuality(NamedTuple):
    """Of the entries of one kind of block, over all experiences."""

    mean_absolute_error: float
    correlation: float
    """Pearson's; NaN if either side is constant."""
    mean: float
    true_mean: float


def train_cooccurrence(plan: Plan) -> Tensor | None:
    """P(i | j) among all train images of a benchmark, float64; None if their labels are not all known."""
    if not plan.labels_complete:
        return None
    used = {position for positions in plan.train.positions for position in positions.tolist()}
    labels = plan.train.labels[sorted(used)].double()
    together = labels.T @ labels
    return together / together.diagonal().clamp(min=1)


def block_quality(
    acm: Sequence[Sequence[float]], truth: Sequence[Sequence[float]], sizes: Sequence[int]
) -> dict[str, BlockQuality]:
    """Compare the blocks B (new-new), R (old-new) and Q (new-old) of every experience with the truth.

    Args:
        acm: [n, n], entry [i, j] = P(i | j).
        truth: The same, as it should be.
        sizes: Classes of each experience.

    Returns:
        By the name of the block. The diagonal, which is 1 in both, does not count.
    """
    found, true = np.asarray(acm, dtype=float), np.asarray(truth, dtype=float)
    experience = np.repeat(np.arange(len(sizes)), sizes)
    row, column = experience[:, None], experience[None, :]
    blocks = {
        "B": (row == column) & ~np.eye(len(found), dtype=bool),
        "R": row < column,
        "Q": row > column,
    }
    return {name: _compare(found[mask], true[mask]) for name, mask in blocks.items()}


def _compare(found: np.ndarray, true: np.ndarray) -> BlockQuality:
    if found.size == 0:
        return BlockQuality(*[float("nan")] * 4)
    constant = np.ptp(found) == 0 or np.ptp(true) == 0
    correlation = float("nan") if constant else float(np.corrcoef(found, true)[0, 1])
    return BlockQuality(
        float(np.abs(found - true).mean()), correlation, float(found.mean()), float(true.mean())
    )
