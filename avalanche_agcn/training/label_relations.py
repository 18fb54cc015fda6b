"""Label relations for refining scores: which classes make another one more likely.

    s_i += β Σ_{j≠i} max(P(i|j) − P(i), 0) · clip(s_j, 0, 1)

lifts classes that are hard to see by the company they keep: a car beside a traffic light.

`estimate_relations` knows labels within an experience only. Between experiences it takes the mean score of
class i on the positives of class j, w_i · (Σ f y_j / Σy_j) + b_i, which follows from the sums, and puts it on
a scale where negatives of class i have the mean 0 and its positives 1. A mean on that scale is a share of
positives ("adjusted count" in the literature on quantification).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.models.linear import LogitRefinement
from avalanche_agcn.training.calibration import standardise
from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.ridge import RidgeClassifiers


class LabelRelations(NamedTuple):
    """How often classes appear, alone and together."""

    conditional: Tensor
    """[C, C], entry [i, j] = P(i | j)."""
    prior: Tensor
    """[C], P(i)."""


def make_refinement(classifiers: RidgeClassifiers, relations: LabelRelations, beta: float) -> LogitRefinement:
    """Make the module that refines the calibrated logits of classifiers.

    Scores of rare classes are small throughout; on the scale of `standardise` one β suits all classes.

    Args:
        classifiers: solved classifiers.
        relations: how often classes appear together.
        beta: weight of the relations.
    """
    scale, offset, negative, positive = classifiers.calibration
    return LogitRefinement(
        scale * negative + offset, scale * (positive - negative).clamp(min=0), beta * _gain(relations)
    )


def estimate_relations(statistics: FeatureStatistics, classifiers: RidgeClassifiers) -> LabelRelations:
    """Relations between all classes, from sums of features and labels.

    Args:
        statistics: sums of features and labels per experience.
        classifiers: solved from these statistics.
    """
    experiences = range(statistics.n_experiences)
    counts = torch.stack([statistics.moments(t)[0, 0] for t in experiences])
    shares = torch.stack([_shares(statistics, classifiers, t) for t in experiences], dim=1)  # [C, T]
    prior = shares @ counts / counts.sum()
    conditional = torch.cat([_given(statistics, classifiers, t, prior) for t in experiences], dim=1)
    return LabelRelations(conditional.fill_diagonal_(1.0), prior)


def _gain(relations: LabelRelations) -> Tensor:
    """max(P(i|j) − P(i), 0), zero on the diagonal, ``[C, C]``."""
    return (relations.conditional - relations.prior[:, None]).clamp(min=0).fill_diagonal_(0.0)


def _shares(statistics: FeatureStatistics, classifiers: RidgeClassifiers, t: int) -> Tensor:
    """Share of each class's positives on the images of experience ``t``, ``[C]``."""
    count = statistics.moments(t)[0, 0].clamp(min=1)
    shares = _adjusted(classifiers, statistics.feature_sum(t)[None] / count)[0]
    shares[statistics.columns(t)] = statistics.label_sum(t) / count
    return shares


def _given(statistics: FeatureStatistics, classifiers: RidgeClassifiers, t: int, prior: Tensor) -> Tensor:
    """P(i | j) for all i and the classes j of experience ``t``, ``[C, n_new]``."""
    positives = statistics.label_sum(t)
    given = _adjusted(classifiers, (statistics.cross(t) / positives).T).T
    given[statistics.columns(t)] = statistics.label_products(t) / positives
    return torch.where(positives > 0, given, prior[:, None])  # nothing is known of a class not met


def _adjusted(classifiers: RidgeClassifiers, means: Tensor) -> Tensor:
    """Share of positives of each class among images with these mean features ``[N, D]``, ``[N, C]``."""
    return standardise(classifiers.scores(means), classifiers.calibration).clamp(0, 1)
