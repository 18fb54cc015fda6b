"""Measure what labels for the photos of other experiences would add to ridge classifiers.

    python runs/studies/split_coco/missing_labels.py --data ROOT --split-lists LISTS

A photo of Split-COCO is labelled for the classes of its own experience. StreamingRidge takes it for a
negative of all other classes, with weight γ. Here those labels are predicted or, for comparison, known.
Scores are the mAP over all 40 classes on a held-out tenth of the train photos; study.py adds the table to the
page.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.evaluation.functional import mean_average_precision
from avalanche_agcn.experiments.build import make_backbone, make_benchmark
from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.settings import Settings, change_settings
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.ridge import (
    RidgeClassifiers,
    estimate_relations,
    inverse_deviations,
    make_problem,
    make_refinement,
    solve_given,
    solve_ridge,
    sum_of_moments,
)

GAMMA = 0.3  # of StreamingRidge
GAMMAS = (0.3, 0.6, 1.0)
NODES = 15  # of the quadrature over scores


class Photos(NamedTuple):
    """Features ``[N, D]`` and all labels ``[N, C]``, in float64."""

    features: Tensor
    labels: Tensor


def split_photos(settings: Settings) -> tuple[list[Photos], Photos]:
    """Train photos of each experience without a tenth, and these tenths together."""
    backbone = make_backbone(settings)
    plan = feature_benchmark(make_benchmark(settings, backbone), backbone, settings.cache).plan
    all_features: Tensor = plan.train.source.tensors[0]
    generator = torch.Generator().manual_seed(0)
    kept = []
    held_out = []
    for positions in plan.train.positions:
        shuffled = positions[torch.randperm(len(positions), generator=generator)]
        photos = Photos(all_features[shuffled].double(), plan.train.labels[shuffled].double())
        n_held_out = len(shuffled) // 10
        held_out.append(Photos(*(part[:n_held_out] for part in photos)))
        kept.append(Photos(*(part[n_held_out:] for part in photos)))
    return kept, Photos(*(torch.cat(parts) for parts in zip(*held_out, strict=True)))


def collect(experiences: Sequence[Photos], block_sizes: Sequence[int]) -> FeatureStatistics:
    """Sums of all photos, each with the labels of the classes of its experience."""
    statistics = FeatureStatistics()
    for t, size in enumerate(block_sizes):
        statistics.begin(size)
        photos = experiences[t]
        statistics.update(photos.features, photos.labels[:, statistics.columns(t)], experience=t)
    return statistics


class Stream:
    """Photos and sums of all experiences, and StreamingRidge's classifiers."""

    def __init__(self, experiences: Sequence[Photos]) -> None:
        self.experiences = experiences
        n_classes = experiences[0].labels.shape[1]
        self.sums = collect(experiences, [n_classes // len(experiences)] * len(experiences))
        self.total = sum_of_moments(self.sums)
        self.classifiers = solve_ridge(self.sums, gamma=GAMMA)
        self.weight, self.bias = self.classifiers.calibrated()

    def logits(self, t: int, features: Tensor) -> Tensor:
        """Logits of the classes of experience t."""
        columns = self.sums.columns(t)
        return features @ self.weight[columns].T + self.bias[columns]

    def solve(
        self, gamma: float, label_sums: Callable[[int, int], Tensor], *, later: bool
    ) -> RidgeClassifiers:
        """Classifiers with further labels for photos of other experiences, or of later ones only.

        ``label_sums(t, s)`` is Σ [1, f]ᵀ y over the photos of experience s, with labels of the classes of
        experience t, ``[1 + D, K]``.
        """
        inverse_std = inverse_deviations(self.total)
        weights = []
        biases = []
        for t in range(self.sums.n_experiences):
            moments = self.sums.moments(t).clone()
            for s in range(t + 1 if later else 0, self.sums.n_experiences):
                if s != t:
                    moments[: len(self.total), len(self.total) :] += gamma * label_sums(t, s)
            problem = make_problem(moments, self.total, inverse_std, gamma)
            weight, _, _ = solve_given(problem, self.classifiers.ridge[t].item())
            weight = (weight * inverse_std[:, None]).T
            weights.append(weight)
            biases.append(problem.positives / problem.n - weight @ problem.mean)
        return self.classifiers._replace(weight=torch.cat(weights), bias=torch.cat(biases))

    def true_sums(self, t: int, s: int) -> Tensor:
        """With the labels that the stream withholds."""
        photos = self.experiences[s]
        return _label_sums(photos.features, photos.labels[:, self.sums.columns(t)])

    def probability_sums(self, t: int, s: int) -> Tensor:
        """With probabilities as labels."""
        features = self.experiences[s].features
        return _label_sums(features, self.logits(t, features).sigmoid())

    def prediction_sums(self, t: int, s: int, *, threshold: float) -> Tensor:
        """With predictions as labels: 1 where the probability is above the threshold."""
        features = self.experiences[s].features
        return _label_sums(features, (self.logits(t, features).sigmoid() > threshold).double())

    def gaussian_sums(self, t: int, s: int) -> Tensor:
        """With expected probabilities if the features are Gaussian: from the sums alone, without photos.

        With scores a = f·w + b, Stein's lemma gives E f σ(a) = μ E σ(a) + Σw E σ'(a).
        """
        n = self.sums.count(s)
        mean = self.sums.mean(s)
        weight = self.weight[self.sums.columns(t)]
        products = self.sums.covariance(s) @ weight.T  # Σw, [D, K]
        deviation = (products * weight.T).sum(dim=0).clamp(min=0).sqrt()
        nodes, node_weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(NODES))
        probabilities = (self.logits(t, mean)[:, None] + deviation[:, None] * nodes).sigmoid()  # [K, nodes]
        share = probabilities @ node_weights / node_weights.sum()
        slope = (probabilities * (1 - probabilities)) @ node_weights / node_weights.sum()
        return n * torch.cat([share[None], torch.outer(mean, share) + products * slope])


def _label_sums(features: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([labels.sum(dim=0)[None], features.T @ labels])


def measure(experiences: Sequence[Photos], held_out: Photos) -> Iterator[dict[str, Any]]:
    """One row for each kind of labels, share of photos that get them, and γ."""

    def row(labels: str, photos: str, gamma: float, scores: Tensor) -> dict[str, Any]:
        score = 100 * mean_average_precision(scores, held_out.labels)
        return {"labels": labels, "photos": photos, "gamma": gamma, "mAP": score}

    n_classes = held_out.labels.shape[1]
    joined = Photos(*(torch.cat(parts) for parts in zip(*experiences, strict=True)))
    bound = solve_ridge(collect([joined], [n_classes]))
    yield row("all labels (Multi-Task, ridge)", "all", 1.0, bound.scores(held_out.features))
    stream = Stream(experiences)
    for gamma in (0.1, 0.2, *GAMMAS):
        solution = solve_ridge(stream.sums, gamma=gamma)
        refine = make_refinement(solution, estimate_relations(stream.sums, solution), 0.2).double()
        weight, bias = solution.calibrated()
        yield row("none", "none", gamma, solution.scores(held_out.features))
        yield row(
            "none; label relations (StreamingRidge)",
            "none",
            gamma,
            refine(held_out.features @ weight.T + bias),
        )
    kinds: dict[str, Callable[[int, int], Tensor]] = {
        "true labels": stream.true_sums,
        "probabilities": stream.probability_sums,
        "probabilities, Gaussian features": stream.gaussian_sums,
        "predictions above 0.5": partial(stream.prediction_sums, threshold=0.5),
        "predictions above 0.8": partial(stream.prediction_sums, threshold=0.8),
    }
    for labels, label_sums in kinds.items():
        for later in (True, False):
            for gamma in GAMMAS:
                scores = stream.solve(gamma, label_sums, later=later).scores(held_out.features)
                yield row(labels, "later" if later else "all other", gamma, scores)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from rows import frozen_entry
    from split_coco.declaration import base_settings
    from split_coco.page import MISSING_LABELS, missing_labels_table

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="ROOT", help="folder with COCO's folders")
    parser.add_argument("--split-lists", required=True, metavar="DIR", help="published lists of Split-COCO")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen backbone")
    arguments = parser.parse_args()
    base = base_settings(
        dataset_root=arguments.data, split_lists=arguments.split_lists, cache=arguments.cache
    )
    settings = change_settings(base, **frozen_entry("streaming_ridge").settings)
    found = list(measure(*split_photos(settings)))
    write_json(MISSING_LABELS, found)
    print(missing_labels_table(found).markdown())
