"""Ridge classifiers in closed form from feature statistics, their probabilities, and relations of labels.

**Classifiers** of experience t, with features standardised and a constant appended that is not regularised:

    W_t = ((1−γ) G_t + γ Σ_s G_s + λI)⁻¹ C_t

where G_t = Σffᵀ and C_t = Σf yᵀ run over the images of experience t. Own images have weight 1, those of other
experiences weight γ, as negatives: they are unlabelled, but do not show most classes. γ = 0 uses own images
only, γ = 1 takes unlabelled for negative.

**Probabilities** per class (`calibrate`). With scores s = f·w + b, sums give their mean over positives, m₊,
and mean and variance over all images. If scores of positives and of negatives are two normal distributions of
one variance v (linear discriminant analysis in one dimension), then

    P(positive | s) = sigmoid(scale · s + offset)
    scale = (m₊ − m₋) / v        offset = log(p / (1 − p)) − scale · (m₊ + m₋) / 2

with p the share of positives. It is increasing in s, so average precision does not change.

**Relations** (`estimate_relations`) raise the scores of classes that often appear beside others, such as a
car beside a traffic light:

    s_i += β Σ_{j≠i} max(P(i|j) − P(i), 0) · clip(s_j, 0, 1)

Labels are known within an experience only. Between experiences, P(i|j) is estimated by the mean score of
class i on the positives of class j, w_i · (Σ f y_j / Σy_j) + b_i, on a scale where negatives of class i have
the mean 0 and its positives 1. A mean on that scale is a share of positives ("adjusted count" in the
literature on quantification).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.checks import check_range
from avalanche_agcn.models.linear import LogitRefinement
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.sums import solve_regularised

RIDGE_GRID = torch.logspace(0, 6, 61, dtype=torch.float64)  # values of λ for generalised cross-validation
CONSTANT_FEATURE = 1e-12  # least share of the variance in the mean square: below is the rounding of float64
OTHERS_WEIGHT = 0.15
"""Weight of images of other experiences as negatives in the calibration. They are unlabelled: with weight 1
the share of positives would be too low, with 0 too high. Chosen on held-out train photos; it holds for 2 to
18 experiences."""
LEAST_SCALE = 1.0  # for positives that do not score higher: their probability hardly depends on the score
LEAST_VARIANCE = 1e-4  # of scores between 0 and 1 that separate all images
MOST_LEVERAGE = 0.9


class Calibration(NamedTuple):
    """How the scores of K classes are distributed; each entry is ``[K]``."""

    scale: Tensor  # positive
    offset: Tensor
    negative_mean: Tensor  # m₋
    positive_mean: Tensor  # m₊


class RidgeClassifiers(NamedTuple):
    """Linear classifiers of all C classes, float64: the result of `solve_ridge`."""

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    calibration: Calibration  # how scores become probabilities
    ridge: Tensor  # [T], the λ of each experience

    def scores(self, features: Tensor) -> Tensor:
        """Scores ``[N, C]`` of features ``[N, D]``: about 1 for positives, 0 for negatives."""
        return features.to(self.weight) @ self.weight.T + self.bias

    def calibrated(self) -> tuple[Tensor, Tensor]:
        """Weight ``[C, D]`` and bias ``[C]`` whose scores are the logits of probabilities."""
        scale, offset = self.calibration.scale, self.calibration.offset
        return self.weight * scale[:, None], self.bias * scale + offset


def solve_ridge(
    statistics: FeatureStatistics, *, gamma: float = 0.3, ridge: float | None = None
) -> RidgeClassifiers:
    """Classifiers of all experiences, each from its own sums and those of all others.

    ``gamma``, 0 to 1, is the weight of images of other experiences, ``ridge`` the λ of all experiences, above
    0; if None, generalised cross-validation chooses one per experience. A class without positives gets the
    constant 0 as its score. A feature that does not vary gets weight 0.
    """
    check_ridge(gamma, ridge)
    total = sum_of_moments(statistics)
    inverse_std = inverse_deviations(total)
    parts = []
    for t in range(statistics.n_experiences):
        moments = statistics.moments(t)
        problem = pose(moments, total, inverse_std, gamma)
        weight, used_ridge, freedom = solve_by_gcv(problem) if ridge is None else solve_given(problem, ridge)
        weight = (weight * inverse_std[:, None]).T  # for features that are not standardised
        bias = problem.positives / problem.n - weight @ problem.mean
        calibration = calibrate(weight, bias, moments, total, leverage=freedom / problem.n)
        parts.append((weight, bias, *calibration, weight.new_tensor([used_ridge])))
    weight, bias, *calibrations, ridges = (torch.cat(part) for part in zip(*parts, strict=True))
    return RidgeClassifiers(weight, bias, Calibration(*calibrations), ridges)


def check_ridge(gamma: float, ridge: float | None) -> None:
    """Raise a ValueError if a setting of `solve_ridge` is out of range."""
    check_range("gamma", gamma, least=0, most=1)
    check_range("ridge", ridge, above=0)


class Problem(NamedTuple):
    """Weighted and centred least squares of one experience, in standardised features."""

    n: float  # sum of weights, n_t + γ Σ_{s≠t} n_s
    mean: Tensor  # [D], the weighted mean feature, not standardised
    gram: Tensor  # [D, D], centred
    cross: Tensor  # [D, K], centred
    positives: Tensor  # [K], Σy = Σy²


def sum_of_moments(statistics: FeatureStatistics) -> Tensor:
    """Σ [1, f]ᵀ [1, f] over the images of all experiences, ``[1 + D, 1 + D]``."""
    if statistics.width is None:
        raise ValueError("The statistics have no images yet, so there is nothing to solve.")
    size = 1 + statistics.width
    total = statistics.moments(0)[:size, :size].clone()
    for t in range(1, statistics.n_experiences):
        total += statistics.moments(t)[:size, :size].to(total.device)
    return total


def inverse_deviations(total: Tensor) -> Tensor:
    """1 / standard deviation of each feature, 0 where it does not vary, ``[D]``."""
    n = total[0, 0].clamp(min=1)
    squares, mean = total.diagonal()[1:] / n, total[0, 1:] / n
    variance = squares - mean**2
    return torch.where(variance > CONSTANT_FEATURE * squares, variance.rsqrt(), 0.0)


def pose(moments: Tensor, total: Tensor, inverse_std: Tensor, gamma: float) -> Problem:
    """Least squares of one experience, from its sums, ``[1 + D + K, 1 + D + K]``, and ``total`` of all."""
    width = len(total)
    weighted = torch.lerp(moments[:width, :width], total, gamma)  # (1−γ) G_t + γ Σ_s G_s
    n = max(weighted[0, 0].item(), 1.0)
    mean, positives = weighted[0, 1:] / n, moments[0, width:]
    # The best constant is not regularised and removes the weighted means.
    gram = weighted[1:, 1:].addr(mean, mean, alpha=-n)
    cross = moments[1:width, width:] - torch.outer(mean, positives)
    gram.mul_(inverse_std).mul_(inverse_std[:, None])
    return Problem(n, mean, gram, cross * inverse_std[:, None], positives)


def solve_given(problem: Problem, ridge: float) -> tuple[Tensor, float, float]:
    """Weights ``[D, K]`` for standardised features, λ as given, degrees of freedom 1 + tr(G (G + λI)⁻¹)."""
    weight, factor = solve_regularised(problem.gram, problem.cross, ridge)
    return weight, ridge, 1 + len(factor) - ridge * torch.cholesky_inverse(factor).trace().item()


def solve_by_gcv(problem: Problem, grid: Tensor = RIDGE_GRID) -> tuple[Tensor, float, float]:
    """The same with the λ of smallest generalised cross-validation error n·RSS / (n − df)², over all classes.

    One eigendecomposition serves all L values of the grid.
    """
    n, positives = problem.n, problem.positives
    values, vectors = torch.linalg.eigh(problem.gram)
    values, grid = values.clamp(min=0), grid.to(values)  # rounding leaves eigenvalues just below 0
    rotated = vectors.T @ problem.cross  # [D, K]
    shrunk = values + grid[:, None]  # [L, D]
    spread = (positives - positives**2 / n).sum()  # Σ(y − mean)²
    explained = rotated.square().sum(dim=1)  # [D]
    rss = spread - (explained * (values + 2 * grid[:, None]) / shrunk**2).sum(dim=1)
    left = n - 1 - (values / shrunk).sum(dim=1)  # n − df, [L]
    # Infinite where the solution has as many degrees of freedom as there are images.
    errors = torch.where(left > 1e-9 * n, n * rss.clamp(min=0) / left**2, torch.inf)
    ridge = grid[errors <= errors.min()].max().item()  # the strongest where all are equal
    weight = vectors @ (rotated / (values + ridge)[:, None])
    return weight, ridge, 1 + (values / (values + ridge)).sum().item()


def calibrate(
    weight: Tensor, bias: Tensor, moments: Tensor, total: Tensor, *, leverage: float
) -> Calibration:
    """Calibration of an experience's classifiers, weight ``[K, D]`` and bias ``[K]``, from sums as in `pose`.

    An image's own label pulls its score: by leave-one-out, its score without itself is (s − h·y) / (1 − h),
    with h its leverage, here the mean over images: degrees of freedom / number of images, or 0 if the images
    were not used to fit the weights. Without this step probabilities are too confident.
    """
    width, h = len(total), min(leverage, MOST_LEVERAGE)
    population = torch.lerp(moments[:width, :width], total, OTHERS_WEIGHT)
    count, positives = population[0, 0].clamp(min=1), moments[0, width:]
    share, prior = positives / count, (positives + 0.5) / (count + 1)
    classifiers = torch.cat([bias[:, None], weight], dim=1)  # [K, 1 + D]: scores are [1, f] · classifiers
    summed = classifiers @ population
    mean, square = summed[:, 0] / count, (summed * classifiers).sum(dim=1) / count
    of_positives = (classifiers * moments[:width, width:].T).sum(dim=1) / positives
    positive_mean = torch.where(positives > 0, of_positives, mean)
    # The same moments of (s − h·y) / (1 − h):
    covariance = share * (positive_mean - mean)  # of scores and labels
    variance = square - mean**2 - 2 * h * covariance + h**2 * share * (1 - share)
    positive_mean = torch.where(share > 0, (positive_mean - h) / (1 - h), mean / (1 - h))
    return _discriminant(share, (mean - h * share) / (1 - h), variance / (1 - h) ** 2, positive_mean, prior)


def _discriminant(
    share: Tensor, mean: Tensor, variance: Tensor, positive_mean: Tensor, prior: Tensor
) -> Calibration:
    rest = 1 - share  # share of negatives
    negative_mean = torch.where(rest > 0, (mean - share * positive_mean) / rest, mean)
    distance = positive_mean - negative_mean
    within = (variance - share * rest * distance**2).clamp(min=LEAST_VARIANCE)
    scale = (distance / within).clamp(min=LEAST_SCALE)
    offset = prior.logit() - scale * (positive_mean + negative_mean) / 2
    return Calibration(scale, offset, negative_mean, positive_mean)


def standardise(scores: Tensor, calibration: Calibration) -> Tensor:
    """Scores with 0 for the mean of negatives and 1 for that of positives, ``[N, K]``.

    Classes whose positives do not score higher get 0.
    """
    distance = calibration.positive_mean - calibration.negative_mean
    return torch.where(distance > 0, (scores - calibration.negative_mean) / distance, 0.0)


class LabelRelations(NamedTuple):
    """How often classes appear, alone and together."""

    conditional: Tensor  # [C, C], entry [i, j] = P(i | j)
    prior: Tensor  # [C], P(i)


def make_refinement(classifiers: RidgeClassifiers, relations: LabelRelations, beta: float) -> LogitRefinement:
    """Make the module that refines the calibrated logits of classifiers, with the weight β of the relations.

    Scores of rare classes are generally small; on the scale of `standardise` one β suits all classes.
    """
    scale, offset, negative, positive = classifiers.calibration
    gain = (relations.conditional - relations.prior[:, None]).clamp(min=0).fill_diagonal_(0.0)
    unit = scale * (positive - negative).clamp(min=0)
    return LogitRefinement(scale * negative + offset, unit, beta * gain)


def estimate_relations(statistics: FeatureStatistics, classifiers: RidgeClassifiers) -> LabelRelations:
    """Relations between all classes, from the statistics that the classifiers were solved from."""
    parts = []
    for t in range(statistics.n_experiences):
        own, n, positives = statistics.columns(t), statistics.moments(t)[0, 0], statistics.label_sum(t)
        among_all = _shares(classifiers, statistics.feature_sum(t)[None] / n.clamp(min=1))[0]  # [C]
        among_all[own] = positives / n.clamp(min=1)
        given = _shares(classifiers, (statistics.cross(t) / positives).T).T  # P(i | j), [C, n_new]
        given[own] = statistics.label_products(t) / positives
        parts.append((n, among_all, given, positives))
    counts, of_experiences, conditionals, all_positives = zip(*parts, strict=True)
    prior = torch.stack(of_experiences, dim=1) @ torch.stack(counts) / torch.stack(counts).sum()
    # Nothing is known about the company of a class without positives.
    conditional = torch.where(torch.cat(all_positives) > 0, torch.cat(conditionals, dim=1), prior[:, None])
    return LabelRelations(conditional.fill_diagonal_(1.0), prior)


def _shares(classifiers: RidgeClassifiers, means: Tensor) -> Tensor:
    """Share of positives of each class among images with mean features ``[N, D]``, ``[N, C]``."""
    return standardise(classifiers.scores(means), classifiers.calibration).clamp(0, 1)
