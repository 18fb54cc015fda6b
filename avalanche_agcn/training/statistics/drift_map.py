"""A linear map between the features of a network before and after training."""

import torch
from torch import Tensor

from avalanche_agcn.checks import check_range, check_shape
from avalanche_agcn.training.statistics.sums import MomentSums, check_features, solve_regularised


class DriftMap(MomentSums):
    """Linear map between two feature spaces by ridge regression towards the identity, in float64.

    While a network is trained its features move, and sums collected earlier become outdated. With f the
    teacher's and g the student's features of the same images, the drift is modelled as linear: g ≈ fA + s.
    `FeatureStatistics.map` then changes old sums to those of the new features.

    With Δ = g − f and a = [f − μ, 1], μ the mean of f, let M = (Σaᵀa + λI)⁻¹ ΣaᵀΔ, the constant not
    regularised, M₁ its first D rows and b its last. Then A = I + M₁ and s = b − μM₁. For large λ only the
    shift by the mean of Δ remains.
    """

    def __init__(self) -> None:
        super().__init__(None, target_products=False)  # Σ [1, f]ᵀ [1, f, g]

    def update(self, teacher: Tensor, student: Tensor) -> None:
        """Add pairs, both ``[B, D]``. Nothing is added if a shape does not fit or a feature is not finite."""
        check_features(teacher, self.width, "teacher")
        check_shape("student", student, tuple(teacher.shape), ", the shape of the teacher's features")
        check_features(student, teacher.shape[1], "student")
        self.add(teacher.detach().clone(), student.detach().clone())

    def solve(self, ridge: float = 1000.0) -> tuple[Tensor, Tensor]:
        """A ``[D, D]`` and shift ``[D]`` of the map f → fA + shift for λ > 0; a ValueError without pairs."""
        check_range("ridge", ridge, above=0)
        total = self.total()
        if total is None or total[0, 0] == 0:
            raise ValueError("The map has no pairs of features: call update(teacher, student) first.")
        width = len(total)  # 1 + D: the rows are those of [1, f], the columns those of [1, f, g]
        n = total[0, 0]
        teacher_sums = total[:, 1:width]  # Σ [1, f]ᵀ f
        drift_sums = total[:, width:] - teacher_sums  # Σ [1, f]ᵀ Δ
        mean = teacher_sums[0] / n  # μ
        mean_drift = drift_sums[0] / n  # b
        gram = teacher_sums[1:] - n * torch.outer(mean, mean)  # Σ (f − μ)ᵀ (f − μ)
        cross = drift_sums[1:] - n * torch.outer(mean, mean_drift)  # Σ (f − μ)ᵀ Δ
        slope, _ = solve_regularised(gram, cross, ridge)  # M₁
        return torch.eye(width - 1).to(slope) + slope, mean_drift - mean @ slope
