"""The map from a teacher's features to a student's, from sums over pairs of them.

While a network is trained its features move, and sums collected before go stale. With f the teacher's and g
the student's features of the same images, the move is modelled as linear: g ≈ fA + s. `FeatureStatistics.map`
then moves old sums as if they had been collected with the new features.

With Δ = g − f and a = [f − μ, 1], μ the mean of f, let M = (Σaᵀa + λI)⁻¹ ΣaᵀΔ, the constant not regularised,
M₁ its first D rows and b its last. Then A = I + M₁ and s = b − μM₁. For large λ only the shift by the mean of
Δ is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from avalanche_agcn.checks import check_range
from avalanche_agcn.training.moment_sums import MomentSums


class DriftMap:
    """Linear map between two feature spaces by ridge regression towards the identity, in float64.

    Pairs are summed as they come; their order and split into batches do not matter. With
    `torch.distributed` each process adds its own pairs; call `synchronize` before `solve`.

    Example:
        >>> import torch
        >>> drift = DriftMap()
        >>> teacher = torch.tensor([[0.0], [1.0], [2.0]])
        >>> drift.update(teacher, 3 * teacher + 1)
        >>> drift.solve(ridge=1e-9)
        (tensor([[3.0000]], dtype=torch.float64), tensor([1.0000], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self._sums: MomentSums | None = None

    @property
    def count(self) -> int:
        """Number of pairs."""
        return 0 if self._sums is None else self._sums.count

    def update(self, teacher: Tensor, student: Tensor) -> None:
        """Add pairs. Nothing is added if the input is rejected.

        Args:
            teacher: features before, ``[B, D]``.
            student: features of the same images after, ``[B, D]``.

        Raises:
            ValueError: for NaN or infinite features or a shape that does not fit.
        """
        self._check(teacher, student)
        if self._sums is None:
            self._sums = MomentSums(teacher.shape[1], target_products=False)
        self._sums.add(teacher.detach().clone(), student.detach().clone())

    def synchronize(self, width: int) -> None:
        """Add up the pairs of all processes of `torch.distributed`; every process must call it.

        Args:
            width: number of features D, also for a process without pairs.
        """
        if self._sums is None:
            self._sums = MomentSums(width, target_products=False)
        self._sums.synchronize()

    def solve(self, ridge: float = 1000.0) -> tuple[Tensor, Tensor]:
        """A ``[D, D]`` and shift ``[D]`` of the map f → fA + shift.

        Args:
            ridge: λ, above 0: how strongly the map is drawn to a shift.

        Raises:
            ValueError: if there are no pairs or λ is not above 0.
        """
        check_range("ridge", ridge, above=0)
        total = None if self._sums is None else self._sums.total()
        if total is None or total[0, 0] == 0:
            raise ValueError("The map has no pairs of features: call update(teacher, student) first.")
        return _solve(total, ridge)

    def state_dict(self) -> dict[str, Tensor]:
        """Sums and waiting rows."""
        return {} if self._sums is None else self._sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: if the state is not that of a drift map.
        """
        if any(tensor.ndim != 2 for tensor in state.values()):
            raise ValueError(f"A drift map has sums and rows as matrices, but this state has {dict(state)}.")
        self._sums = None
        if state:
            width = len(state["sums"]) - 1 if "sums" in state else state["features"].shape[1]
            self._sums = MomentSums(width, target_products=False)
            self._sums.load_state_dict(state)

    def _check(self, teacher: Tensor, student: Tensor) -> None:
        width = None if self._sums is None else self._sums.n_targets
        if teacher.ndim != 2 or teacher.shape != student.shape or width not in (None, teacher.shape[1]):
            raise ValueError(
                f"teacher and student must both be [images, {width or 'D'}], but are "
                f"{tuple(teacher.shape)} and {tuple(student.shape)}."
            )
        if not bool(teacher.isfinite().all() & student.isfinite().all()):
            raise ValueError("Features of teacher or student are NaN or infinite: the network diverged.")


def _solve(total: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """From Σ [1, f]ᵀ [1, f, g]."""
    width = len(total)
    n, mean = total[0, 0], total[0, 1:width] / total[0, 0]
    products = total[:, width:] - total[:, 1:width]  # Σ [1, f]ᵀ Δ
    drift = products[0] / n
    gram = total[1:, 1:width] - n * torch.outer(mean, mean)
    gram.diagonal().add_(ridge)
    M = torch.cholesky_solve(products[1:] - n * torch.outer(mean, drift), torch.linalg.cholesky(gram))
    return M + torch.eye(width - 1).to(M), drift - mean @ M
