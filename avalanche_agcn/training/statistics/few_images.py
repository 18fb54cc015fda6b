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
        count = a.square().sum().item()  # n_t
        n = (1 - gamma) * count + gamma * spectrum.n_images
        own_mean = a @ X / count
        distance = own_mean - spectrum.mean
        b = math.sqrt(gamma * spectrum.n_images / n)
        U = (X - torch.outer(a, own_mean - b * distance)) * spectrum.inverse_std
        positives = a @ Y
        Q = Y - torch.outer(a, (1 - b) / count * positives)
        mean = own_mean - b**2 * distance
        return cls(n, mean, positives, spectrum.vectors.T @ U.T, Q, gamma, spectrum)

    def errors(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        """Residual sum of squares and n − degrees of freedom, for each λ of a grid, both ``[L]``."""
        total_squares = (self.positives - self.positives**2 / self.n).sum()  # Σ(y − mean)²
        rss = []
        freedom_left = []
        for ridge in grid.tolist():
            _, H, squared, Z, freedom = self._reduced(ridge)
            # Σ c·(G + λI)⁻¹c + λ |(G + λI)⁻¹c|² over the columns c of the cross products
            explained = (self.labels * (H @ Z)).sum() + ridge * (Z * (squared @ Z)).sum()
            rss.append(total_squares - explained)
            freedom_left.append(self.n - freedom)
        return torch.stack(rss), grid.new_tensor(freedom_left)

    def solve(self, ridge: float) -> tuple[Tensor, float]:
        """Weights ``[K, D]`` for features that are not standardised, and degrees of freedom."""
        scaled, _, _, Z, freedom = self._reduced(ridge)
        standardised = self.spectrum.vectors @ (scaled @ Z)  # [D, K]
        weights = standardised * self.spectrum.inverse_std[:, None]
        return weights.T, freedom

    def _reduced(self, ridge: float) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """diag(γe + λ)⁻¹ P, H, Pᵀ diag(γe + λ)⁻² P, Z and the degrees of freedom 1 + tr(G (G + λI)⁻¹)."""
        shared = self.gamma * self.spectrum.eigenvalues
        own_weight = 1 - self.gamma
        scaled = self.projected / (shared + ridge)[:, None]
        H = self.projected.T @ scaled
        factor = torch.linalg.cholesky(torch.eye(len(H)).to(H) + own_weight * H)
        Z = torch.cholesky_solve(self.labels, factor)
        squared = scaled.T @ scaled
        # tr(G + λI)⁻¹ is that of γS + λI, less (1−γ) tr((I + (1−γ) H)⁻¹ Pᵀ diag(γe + λ)⁻² P).
        gained = torch.cholesky_solve(squared, factor).trace()
        freedom = 1 + (shared / (shared + ridge)).sum() + ridge * own_weight * gained
        return scaled, H, squared, Z, freedom.item()
