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
from avalanche_agcn.evaluation.calibration import LogitMoments
from avalanche_agcn.models.linear import LogitRefinement
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.few_images import FewImages, Spectrum
from avalanche_agcn.training.statistics.sums import inverse_deviations, solve_regularised

RIDGE_GRID = torch.logspace(0, 6, 61, dtype=torch.float64)  # values of λ for generalised cross-validation
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
    leverage: Tensor = torch.empty(0)  # [T], of an experience's own images: the mean pull of their labels

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
    spectrum = None  # of all images, if an experience has few
    solved = []
    for t in range(statistics.n_experiences):
        factor = statistics.factor(t)
        if factor is None:
            solved.append(_solve_experience(statistics.moments(t), total, inverse_std, gamma, ridge))
            continue
        if spectrum is None:
            spectrum = Spectrum.of(total, inverse_std)
        solved.append(_solve_few(factor.to(total.device), total, spectrum, gamma, ridge))
    weights, biases, calibrations, ridges, leverages = zip(*solved, strict=True)
    calibration = Calibration(*map(torch.cat, zip(*calibrations, strict=True)))
    return RidgeClassifiers(
        torch.cat(weights), torch.cat(biases), calibration, torch.cat(ridges), torch.cat(leverages)
    )


def _solve_experience(
    moments: Tensor, total: Tensor, inverse_std: Tensor, gamma: float, ridge: float | None
) -> RidgeClassifiers:
    """Classifiers of one experience from its sums, as in `make_problem`."""
    problem = make_problem(moments, total, inverse_std, gamma)
    if ridge is None:
        weight, used_ridge, freedom = solve_by_gcv(problem)
    else:
        weight, used_ridge, freedom = solve_given(problem, ridge)
    weight = (weight * inverse_std[:, None]).T  # for features that are not standardised
    bias = problem.positives / problem.n - weight @ problem.mean
    leverage = freedom / problem.n
    calibration = calibrate(weight, bias, moments, total, leverage=leverage)
    return RidgeClassifiers(
        weight, bias, calibration, weight.new_tensor([used_ridge]), weight.new_tensor([leverage])
    )


def _solve_few(
    factor: Tensor, total: Tensor, spectrum: Spectrum, gamma: float, ridge: float | None
) -> RidgeClassifiers:
    """Classifiers of one experience of few images, from a factor of its sums (`few_images.py`)."""
    problem = FewImages.of(factor, total, spectrum, gamma)
    grid = RIDGE_GRID.to(factor) if ridge is None else factor.new_tensor([ridge])
    used_ridge = choose_ridge(grid, problem.n, *problem.errors(grid)) if ridge is None else ridge
    weight, freedom = problem.solve(used_ridge)
    bias = problem.positives / problem.n - weight @ problem.mean
    width = len(total)  # 1 + D
    classifiers = torch.cat([bias[:, None], weight], dim=1)
    own, labels = factor[:, :width], factor[:, width:]
    # Numbers of images and of positives are whole: a rounding error would pass for a share of negatives.
    count = torch.lerp(own[:, 0].square().sum().round(), total[0, 0], OTHERS_WEIGHT)
    summed = torch.lerp(classifiers @ own.T @ own, classifiers @ total, OTHERS_WEIGHT)
    leverage = freedom / problem.n
    calibration = _calibrate_sums(
        classifiers,
        summed=summed,
        count=count,
        positives=(own[:, 0] @ labels).round(),
        cross=own.T @ labels,
        leverage=leverage,
    )
    return RidgeClassifiers(
        weight, bias, calibration, weight.new_tensor([used_ridge]), weight.new_tensor([leverage])
    )


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
    return statistics.total()


def make_problem(moments: Tensor, total: Tensor, inverse_std: Tensor, gamma: float) -> Problem:
    """Make the least-squares problem of one experience.

    Args:
        moments: Σ [1, f, y]ᵀ [1, f, y] over its images, ``[1 + D + K, 1 + D + K]``.
        total: Σ [1, f]ᵀ [1, f] over the images of all experiences, ``[1 + D, 1 + D]``.
        inverse_std: 1 / standard deviation of each feature, ``[D]``.
        gamma: weight of the images of other experiences.
    """
    width = len(total)  # 1 + D
    weighted = torch.lerp(moments[:width, :width], total, gamma)  # (1−γ) G_t + γ Σ_s G_s
    n = max(weighted[0, 0].item(), 1.0)
    mean = weighted[0, 1:] / n
    positives = moments[0, width:]
    # The constant is not regularised: solving for it first subtracts the weighted mean from the features.
    gram = weighted[1:, 1:].addr(mean, mean, alpha=-n)
    cross = moments[1:width, width:] - torch.outer(mean, positives)
    # Standardise the features.
    gram.mul_(inverse_std).mul_(inverse_std[:, None])
    cross = cross * inverse_std[:, None]
    return Problem(n, mean, gram, cross, positives)


def solve_given(problem: Problem, ridge: float) -> tuple[Tensor, float, float]:
    """Weights ``[D, K]`` for standardised features, λ as given, degrees of freedom 1 + tr(G (G + λI)⁻¹)."""
    weight, factor = solve_regularised(problem.gram, problem.cross, ridge)
    return weight, ridge, 1 + len(factor) - ridge * torch.cholesky_inverse(factor).trace().item()


def solve_by_gcv(problem: Problem, grid: Tensor = RIDGE_GRID) -> tuple[Tensor, float, float]:
    """Choose λ by generalised cross-validation: weights, λ and degrees of freedom, as of `solve_given`.

    The λ with the smallest n·RSS / (n − df)², RSS summed over classes, is chosen from the L values of the
    grid. One eigendecomposition serves all of them.
    """
    n = problem.n
    positives = problem.positives
    eigenvalues, vectors = torch.linalg.eigh(problem.gram)
    eigenvalues = eigenvalues.clamp(min=0)  # rounding leaves some just below 0
    grid = grid.to(eigenvalues)
    rotated = vectors.T @ problem.cross  # [D, K]
    regularised = eigenvalues + grid[:, None]  # eigenvalues of G + λI, [L, D]
    total_squares = (positives - positives**2 / n).sum()  # Σ(y − mean)²
    rotated_squares = rotated.square().sum(dim=1)  # [D]
    explained = rotated_squares * (eigenvalues + 2 * grid[:, None]) / regularised**2  # [L, D]
    rss = total_squares - explained.sum(dim=1)
    freedom_left = n - 1 - (eigenvalues / regularised).sum(dim=1)  # n − df, [L]
    ridge = choose_ridge(grid, n, rss, freedom_left)
    weight = vectors @ (rotated / (eigenvalues + ridge)[:, None])
    freedom = 1 + (eigenvalues / (eigenvalues + ridge)).sum().item()
    return weight, ridge, freedom


def choose_ridge(grid: Tensor, n: float, rss: Tensor, freedom_left: Tensor) -> float:
    """The λ of the grid with the smallest n·RSS / (n − df)², the largest in a tie; RSS and n − df ``[L]``."""
    # Infinite where the solution has as many degrees of freedom as there are images.
    errors = torch.where(freedom_left > 1e-9 * n, n * rss.clamp(min=0) / freedom_left**2, torch.inf)
    return grid[errors <= errors.min()].max().item()


def calibrate(
    weight: Tensor, bias: Tensor, moments: Tensor, total: Tensor, *, leverage: float
) -> Calibration:
    """Calibration of the classifiers ``weight [K, D]``, ``bias [K]`` from sums as in `make_problem`.

    The score s of an image that the weights were fitted to is too close to its label y, which would make
    probabilities too confident. Without the image, its score would be (s − h·y) / (1 − h). ``leverage`` is h,
    the mean over the images: degrees of freedom divided by the number of images. It is 0 for images that
    the weights were not fitted to.
    """
    width = len(total)  # 1 + D
    population = torch.lerp(moments[:width, :width], total, OTHERS_WEIGHT)
    classifiers = torch.cat([bias[:, None], weight], dim=1)  # [K, 1 + D]: scores are [1, f] · classifiers
    return _calibrate_sums(
        classifiers,
        summed=classifiers @ population,
        count=population[0, 0],
        positives=moments[0, width:],
        cross=moments[:width, width:],
        leverage=leverage,
    )


def _calibrate_sums(
    classifiers: Tensor, *, summed: Tensor, count: Tensor, positives: Tensor, cross: Tensor, leverage: float
) -> Calibration:
    """The same from the products of the classifiers with the sums P of a population of ``count`` images.

    ``classifiers`` are [b, w], ``[K, 1 + D]``, and ``summed`` is [b, w] P; ``positives`` are Σy, ``[K]``, and
    ``cross`` is Σ [1, f] yᵀ, ``[1 + D, K]``.
    """
    h = min(leverage, MOST_LEVERAGE)
    count = count.clamp(min=1)
    share = positives / count
    prior = (positives + 0.5) / (count + 1)  # never 0 or 1, so that its logit is finite
    mean = summed[:, 0] / count
    square = (summed * classifiers).sum(dim=1) / count
    of_positives = (classifiers * cross.T).sum(dim=1) / positives
    positive_mean = torch.where(positives > 0, of_positives, mean)
    # The same moments of (s − h·y) / (1 − h):
    covariance = share * (positive_mean - mean)  # of scores and labels
    variance = square - mean**2 - 2 * h * covariance + h**2 * share * (1 - share)
    positive_mean = torch.where(share > 0, (positive_mean - h) / (1 - h), mean / (1 - h))
    return _discriminant(share, (mean - h * share) / (1 - h), variance / (1 - h) ** 2, positive_mean, prior)


def _discriminant(
    share: Tensor, mean: Tensor, variance: Tensor, positive_mean: Tensor, prior: Tensor
) -> Calibration:
    """Logistic calibration of scores that are Gaussian among positives and negatives, of one variance."""
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
    scale, offset, negative_mean, positive_mean = classifiers.calibration
    # On that scale negatives have the mean 0, whose logit is the origin, and positives the mean 1.
    origin = scale * negative_mean + offset
    unit = scale * (positive_mean - negative_mean).clamp(min=0)  # 0: the class is ignored
    gain = (relations.conditional - relations.prior[:, None]).clamp(min=0)  # max(P(i|j) − P(i), 0)
    gain.fill_diagonal_(0.0)
    return LogitRefinement(origin, unit, beta * gain)


def estimate_relations(statistics: FeatureStatistics, classifiers: RidgeClassifiers) -> LabelRelations:
    """Relations between all classes, from the statistics that the classifiers were solved from."""
    image_counts = []
    positive_counts = []
    priors = []  # P(i) among the images of each experience, [C]
    conditionals = []  # P(i | j) for the new classes j of each experience, [C, n_new]
    for t in range(statistics.n_experiences):
        own_columns = statistics.columns(t)  # where labels are known; other shares follow from scores
        n_positives = statistics.label_sum(t)
        n_images = n_positives.new_tensor(statistics.count(t))
        mean_feature = statistics.feature_sum(t) / n_images.clamp(min=1)
        prior_here = _shares(classifiers, mean_feature[None])[0]
        prior_here[own_columns] = n_positives / n_images.clamp(min=1)
        means_of_positives = (statistics.cross(t) / n_positives).T  # [n_new, D]
        conditional_here = _shares(classifiers, means_of_positives).T
        conditional_here[own_columns] = statistics.label_products(t) / n_positives
        image_counts.append(n_images)
        positive_counts.append(n_positives)
        priors.append(prior_here)
        conditionals.append(conditional_here)
    weights = torch.stack(image_counts)
    prior = torch.stack(priors, dim=1) @ weights / weights.sum()
    conditional = torch.cat(conditionals, dim=1)
    # P(i | j) is unknown for a class j without positives: use P(i).
    conditional = torch.where(torch.cat(positive_counts) > 0, conditional, prior[:, None])
    return LabelRelations(conditional.fill_diagonal_(1.0), prior)


def logit_moments(statistics: FeatureStatistics, classifiers: RidgeClassifiers, gamma: float) -> LogitMoments:
    """Moments of the calibrated logits over the images in the sums, as if each had not been trained on.

    The mean leverage h corrects scores as in `calibrate`: those of own images to (s − h·y) / (1 − h), those
    of other experiences, whose weight is γ and whose target 0, to s / (1 − γh). Variances of positives and
    of negatives are not known separately, but their mean is.
    """
    total = sum_of_moments(statistics)
    width = len(total)  # 1 + D
    by_experience = []
    for t in range(statistics.n_experiences):
        columns = statistics.columns(t)
        moments = statistics.moments(t)
        own = moments[:width, :width].to(total.device)
        weight, bias = classifiers.weight[columns], classifiers.bias[columns]
        rows = torch.cat([bias[:, None], weight], dim=1).to(total)  # scores are [1, f] · rows, [K, 1 + D]
        h = classifiers.leverage[t].clamp(max=MOST_LEVERAGE).to(total)
        n_positives = moments[0, width:].to(total)
        n_negatives = own[0, 0] - n_positives
        positive_sum = (rows * moments[:width, width:].T.to(total)).sum(dim=1)
        mean, square = _mean_and_square(rows, own)
        positive_mean = positive_sum / n_positives.clamp(min=1)
        negative_mean = (mean * own[0, 0] - positive_sum) / n_negatives.clamp(min=1)
        squares = n_positives * positive_mean**2 + n_negatives * negative_mean**2
        within = (square - squares / own[0, 0].clamp(min=1)).clamp(min=0)
        other_mean, other_square = _mean_and_square(rows, total - own)
        other_variance = (other_square - other_mean**2).clamp(min=0)
        scale = classifiers.calibration.scale[columns].to(total)
        offset = classifiers.calibration.offset[columns].to(total)
        by_experience.append(
            LogitMoments(
                n_positives,
                scale * (positive_mean - h) / (1 - h) + offset,
                n_negatives,
                scale * negative_mean / (1 - h) + offset,
                within * (scale / (1 - h)) ** 2,
                (total[0, 0] - own[0, 0]).expand(len(rows)),
                scale * other_mean / (1 - gamma * h) + offset,
                other_variance * (scale / (1 - gamma * h)) ** 2,
            )
        )
    return LogitMoments(*map(torch.cat, zip(*by_experience, strict=True)))


def _mean_and_square(rows: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and mean square of scores, ``[K]`` each, from Σ [1, f]ᵀ [1, f]; 0 without images."""
    summed = rows @ moments
    count = moments[0, 0].clamp(min=1)
    return summed[:, 0] / count, (summed * rows).sum(dim=1) / count


def _shares(classifiers: RidgeClassifiers, means: Tensor) -> Tensor:
    """Share of positives of each class among images with mean features ``[N, D]``, ``[N, C]``."""
    return standardise(classifiers.scores(means), classifiers.calibration).clamp(0, 1)
