"""Ridge classifiers of experiences with few images, all from one eigendecomposition.

In a long stream the problem of an experience (`ridge.make_problem`) differs from that of all images in as
many dimensions as it has images, n. With S the scatter of all N images around their mean μ, in standardised
features, and R = [a, X, Y] the factor of the experience's sums, RᵀR = Σ [1, f, y]ᵀ [1, f, y]:

    gram  = γS + (1−γ) UᵀU         U = X − a (μ_t − b d)ᵀ, standardised, [n, D]
    cross = UᵀQ                    Q = Y − a (1−b) Σy / n_t, [n, K]

where d = μ_t − μ is the distance of the means, b² = γN / n_w and n_w = (1−γ) n_t + γN the sum of weights.
(aᵀ(X − a μ_tᵀ) = 0, so the cross terms of UᵀU vanish.) With S = V diag(e) Vᵀ and Woodbury's identity,

    (gram + λI)⁻¹ UᵀQ = V diag(γe + λ)⁻¹ P Z    P = VᵀUᵀ    Z = (I + (1−γ) H)⁻¹ Q    H = Pᵀ diag(γe + λ)⁻¹ P

so that each λ costs n²D operations, and an eigendecomposition, D³ operations, serves all experiences.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """Eigendecomposition S = V diag(e) Vᵀ of the scatter of all images, in standardised features."""

    n_images: float  # N
    mean: Tensor  # μ [D], not standardised
    inverse_std: Tensor  # [D], 1 / standard deviation of each feature
    eigenvalues: Tensor  # e, [D]
    vectors: Tensor  # V, [D, D]

    @classmethod
    def of(cls, total: Tensor, inverse_std: Tensor) -> "Spectrum":
        """From Σ [1, f]ᵀ [1, f] over all images, ``[1 + D, 1 + D]``."""
        count = max(total[0, 0].item(), 1.0)
        mean = total[0, 1:] / count
        scatter = total[1:, 1:].addr(mean, mean, alpha=-count)
        scatter.mul_(inverse_std).mul_(inverse_std[:, None])
        eigenvalues, vectors = torch.linalg.eigh(scatter)
        return cls(count, mean, inverse_std, eigenvalues.clamp(min=0), vectors)


class FewImages(NamedTuple):
    """The least-squares problem of one experience; symbols as above."""

    n: float  # n_w
    mean: Tensor  # [D], the weighted mean feature, not standardised
    positives: Tensor  # Σy, [K]
    projected: Tensor  # P, [D, n]
    labels: Tensor  # Q, [n, K]
    gamma: float
    spectrum: Spectrum

    @classmethod
    def of(cls, factor: Tensor, total: Tensor, spectrum: Spectrum, gamma: float) -> "FewImages":
        """The problem of the experience whose sums have this factor, ``[n, 1 + D + K]``."""
        width = len(total)  # 1 + D
        a, X, Y = factor[:, 0], factor[:, 1:width], factor[:, width:]
        count = round(a.square().sum().item())  # n_t
        n = (1 - gamma) * count + gamma * spectrum.n_images
        own_mean = a @ X / count
        distance = own_mean - spectrum.mean
        b = math.sqrt(gamma * spectrum.n_images / n)
        U = (X - torch.outer(a, own_mean - b * distance)) * spectrum.inverse_std
        positives = (a @ Y).round()  # whole numbers, but for rounding errors
        Q = Y - torch.outer(a, (1 - b) / count * positives)
        mean = own_mean - b**2 * distance
        return cls(n, mean, positives, spectrum.vectors.T @ U.T, Q, gamma, spectrum)

    def errors(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        """Residual sum of squares and n − degrees of freedom, for each λ of a grid, both ``[L]``."""
        reduced = self._reduce(grid)
        Z = reduced.Z
        total_squares = (self.positives - self.positives**2 / self.n).sum()  # Σ(y − mean)²
        # Σ c·(G + λI)⁻¹c + λ |(G + λI)⁻¹c|² over the columns c of the cross products
        explained = (self.labels * (reduced.H @ Z)).sum((1, 2))
        explained += grid * (Z * (reduced.squared @ Z)).sum((1, 2))
        return total_squares - explained, self.n - reduced.freedom

    def solve(self, ridge: float) -> tuple[Tensor, float]:
        """Weights ``[K, D]`` for features that are not standardised, and degrees of freedom."""
        reduced = self._reduce(self.projected.new_tensor([ridge]))
        shared = self.gamma * self.spectrum.eigenvalues + ridge
        standardised = self.spectrum.vectors @ (self.projected @ reduced.Z[0] / shared[:, None])  # [D, K]
        weights = standardised * self.spectrum.inverse_std[:, None]
        return weights.T, reduced.freedom.item()

    def _reduce(self, grid: Tensor) -> "Reduced":
        """The problem in n dimensions for each λ of a grid, ``[L]``."""
        shared = self.gamma * self.spectrum.eigenvalues  # γe
        inverse = 1 / (shared + grid[:, None])  # [L, D]
        H, squared = self._weighted_products(torch.cat([inverse, inverse**2])).split(len(grid))
        own_weight = 1 - self.gamma
        factor = torch.linalg.cholesky(torch.eye(H.shape[-1]).to(H) + own_weight * H)
        Z = torch.cholesky_solve(self.labels.expand(len(grid), -1, -1), factor)
        # tr(G + λI)⁻¹ is that of γS + λI, less (1−γ) tr((I + (1−γ) H)⁻¹ Pᵀ diag(γe + λ)⁻² P).
        gained = torch.cholesky_solve(squared, factor).diagonal(dim1=1, dim2=2).sum(dim=1)
        return Reduced(H, squared, Z, 1 + inverse @ shared + grid * own_weight * gained)

    def _weighted_products(self, weights: Tensor) -> Tensor:
        """Pᵀ diag(w) P for each row w of the weights ``[M, D]``, ``[M, n, n]``.

        A row and column at a time for all weights: half the multiplications, in larger products.
        """
        P = self.projected
        n = P.shape[1]
        products = P.new_empty(len(weights), n, n)
        for i in range(n):
            row = weights @ (P[:, i : i + 1] * P[:, i:])  # [M, n − i]
            products[:, i, i:] = row
            products[:, i:, i] = row
        return products


class Reduced(NamedTuple):
    """The problem of an experience in as many dimensions as it has images, for L values of λ."""

    H: Tensor  # Pᵀ diag(γe + λ)⁻¹ P, [L, n, n]
    squared: Tensor  # Pᵀ diag(γe + λ)⁻² P, [L, n, n]
    Z: Tensor  # [L, n, K]
    freedom: Tensor  # degrees of freedom 1 + tr(G (G + λI)⁻¹), [L]
