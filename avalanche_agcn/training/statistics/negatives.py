"""Negatives from earlier experiences, of which only sums of features are kept."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.checks import check_range, check_shape
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.losses import at_least_float32
from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
from avalanche_agcn.training.statistics.compact import StatisticsKind
from avalanche_agcn.training.statistics.features import FeatureStatistics

LEAST_VARIANCE = 1e-12  # of a score: the square root has no gradient at 0
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(9)


class StatisticalNegativesPlugin(FeatureStatisticsPlugin):
    """Trains new classifiers to give low scores on earlier experiences, without a stored image.

    Each earlier experience is modelled as a Gaussian with the mean and covariance of its features. The
    expected loss of the new classifiers on it, with all labels negative, is added to the loss, multiplied by
    ``weight`` (`statistical_negative_loss`). It works with every model that has one weight vector per class,
    and with a replay memory. Place it after `AGCNPlugin`, so that λ₁ does not scale it.

    Its cost grows with the number of Gaussians. If there are more than ``max_gaussians``, similar experiences
    get one Gaussian with their common mean and covariance (`group_by_means`). For ``statistics`` see
    `FeatureStatisticsPlugin`.
    """

    def __init__(
        self,
        weight: float = 1.0,
        *,
        max_gaussians: int | None = None,
        statistics: StatisticsKind = "exact",
    ) -> None:
        super().__init__(statistics=statistics)
        check_range("weight", weight, least=0)
        check_range("max_gaussians", max_gaussians, least=1)
        self.weight, self.max_gaussians = weight, max_gaussians
        self._older: list[Tensor] = []  # means, covariances and counts of earlier experiences with images

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience and compute the Gaussians of the earlier ones, in float32."""
        super().before_training_exp(strategy, **kwargs)
        self._older = []
        sums = self.statistics
        older = [t for t in range(sums.n_experiences - 1) if sums.count(t)]
        if older:
            groups = [[t] for t in older]
            if self.max_gaussians is not None:
                all_means = torch.stack([sums.mean(t) for t in older])
                counts = torch.tensor([sums.count(t) for t in older])
                found = group_by_means(all_means, counts, self.max_gaussians)
                groups = [[older[k] for k in group] for group in found]
            gaussians = [_gaussian(sums, group) for group in groups]
            self._older = [torch.stack(part).to(strategy.device) for part in zip(*gaussians, strict=True)]

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the expected loss of the new classifiers."""
        if self._older and self.weight:
            weight, bias = unwrap(strategy.model).classifiers()
            new = slice(self.statistics.n_old, self.statistics.n_seen)
            loss = statistical_negative_loss(weight[new], None if bias is None else bias[new], *self._older)
            strategy.loss = strategy.loss + self.weight * loss

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Free the covariances."""
        super().after_training_exp(strategy, **kwargs)
        self._older = []


def _gaussian(statistics: FeatureStatistics, experiences: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance, in float32, and number of the images of some experiences together."""
    count = sum(statistics.count(t) for t in experiences)
    mean = torch.stack([statistics.feature_sum(t) for t in experiences]).sum(dim=0) / count
    covariance = statistics.gram(experiences[0]) / count
    for t in experiences[1:]:
        covariance += statistics.gram(t) / count
    covariance.addr_(mean, mean, alpha=-1)
    return mean.float(), ((covariance + covariance.T) / 2).float(), torch.tensor(count)


def group_by_means(means: Tensor, counts: Tensor, n_groups: int) -> list[list[int]]:
    """Group experiences, with ``means [T, D]`` and ``counts [T]`` of images, into at most ``n_groups``.

    The two groups are joined, again and again, whose joint scatter around their mean is the least larger than
    the two of them (Ward's method): n₁n₂ / (n₁ + n₂) · |μ₁ − μ₂|².
    """
    groups = [[t] for t in range(len(means))]
    means, counts = means.double().clone(), counts.double().to(means.device)
    while len(groups) > n_groups:
        weights = counts[:, None] * counts / (counts[:, None] + counts)
        increase = weights * torch.cdist(means, means).square()
        increase.fill_diagonal_(torch.inf)
        first, second = sorted(divmod(int(increase.argmin()), len(groups)))
        pair = torch.tensor([first, second], device=means.device)
        means[first] = counts[pair] @ means[pair] / counts[pair].sum()
        counts[first] += counts[second]
        groups[first] += groups.pop(second)
        remaining = torch.arange(len(means), device=means.device) != second
        means, counts = means[remaining], counts[remaining]
    return groups


def statistical_negative_loss(
    weight: Tensor, bias: Tensor | None, means: Tensor, covariances: Tensor, counts: Tensor
) -> Tensor:
    """Expected loss of classifiers on negatives of which only mean and covariance are known, a scalar.

    Features of an earlier experience s are modelled as a Gaussian N(μ_s, Σ_s). The score of a classifier w
    with bias b is then also Gaussian, with mean m = w·μ_s + b and variance v = wᵀΣ_s w, and its expected loss
    on images without its class is E softplus(a), a ~ N(m, v). No image and no sampling is needed.

    The result is the mean over the K classifiers, ``weight [K, D]`` and ``bias [K]``, and over the T
    experiences, ``means [T, D]`` and symmetric ``covariances [T, D, D]``, weighted by their ``counts [T]`` of
    images; 0 with no classifier or no image. It can be differentiated once. The dtype of the covariances is
    that of the product, which takes most of the time: float32 is enough.
    """
    classes, width = weight.shape
    n = len(counts)
    reason = f" for {classes} classifiers of {width} features and {n} experiences"
    check_shape("means", means, (n, width), reason)
    check_shape("covariances", covariances, (n, width, width), reason)
    if bias is not None:
        check_shape("bias", bias, (classes,), reason)
    weight = at_least_float32(weight)
    mean = means.to(weight) @ weight.T  # [T, K]
    if bias is not None:
        mean = mean + bias
    expected = expected_softplus(mean, score_variances(weight, covariances)).sum(dim=1)  # [T]
    counts = counts.to(weight)
    return (counts * expected).sum() / (counts.sum() * len(weight)).clamp(min=1)


def score_variances(weight: Tensor, covariances: Tensor) -> Tensor:
    """Variances wᵀΣw of classifiers ``[K, D]`` under symmetric covariances ``[T, D, D]``, ``[T, K]``.

    All products are one matrix product, and the gradient 2Σw reuses it instead of multiplying again, so the
    result can be differentiated only once.
    """
    n, width, _ = covariances.shape
    with torch.no_grad():
        products = covariances.reshape(n * width, width) @ weight.T.to(covariances)
        products = products.view(n, width, len(weight)).to(weight)  # Σw, [T, D, K]
    # Autograd takes the products for constants, and so finds half of the gradient, Σw: the result below has
    # the value of the variances and the gradient of twice the variances.
    variances = (products * weight.T).sum(dim=1)
    return 2 * variances - variances.detach()


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E softplus(a) for a ~ N(mean, variance), entry by entry.

    By Gauss–Hermite quadrature with 9 nodes: within 1 % for deviations up to 3 and means from −10 to 10, and
    within 7 % for deviations up to 20 and means from −5 to 10.
    """
    nodes = torch.as_tensor(_NODES, dtype=mean.dtype, device=mean.device)
    weights = torch.as_tensor(_WEIGHTS / math.sqrt(math.pi), dtype=mean.dtype, device=mean.device)
    deviation = (2 * variance.clamp(min=LEAST_VARIANCE)).sqrt()
    return F.softplus(mean[..., None] + deviation[..., None] * nodes) @ weights
