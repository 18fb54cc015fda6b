"""Calibrated probabilities and thresholds of a run's model, chosen after each experience.

`StreamingRidge` has all that is needed in its sums. For other methods images are scored: those held out with
``calibration_size``, or else the train images, with the labels that the stream has shown. Nothing here
changes the model, its scores or the state of torch's random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.multilabel import Plan
from avalanche_agcn.evaluation.calibration import (
    LogitCalibration,
    LogitMoments,
    calibrate_logits,
    estimate_shares,
    measure_moments,
)
from avalanche_agcn.experiments.features import positions_in_source
from avalanche_agcn.methods.multi_task import TrainsJointly
from avalanche_agcn.methods.streaming_ridge import StreamingRidge
from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.models.linear import Familiarity, LogitRefinement
from avalanche_agcn.training.loader import exit_if_orphaned
from avalanche_agcn.training.statistics.ridge import sum_of_moments
from avalanche_agcn.training.template import MultiLabelTemplate

MOST_IMAGES = 2000
"""Largest number of train images to score, divided equally among experiences."""


class Calibrated(NamedTuple):
    """What a run's saved model adds to the trained model."""

    logits: LogitCalibration
    familiarity: Familiarity


def calibrate_run(
    strategy: MultiLabelTemplate,
    benchmark: MultiLabelBenchmark,
    n_experiences: int,
    *,
    count_shares: bool = True,
    num_workers: int = 0,
    unused: Tensor | None = None,
) -> Calibrated:
    """Calibration of a model that was trained on the first experiences of a benchmark; collective.

    With ``count_shares``, the share of each class is that among all train images, where their labels are
    known; else it is estimated from the logits. ``unused`` are positions of train images that are not scored:
    those of a run that is continued need not exist any more.
    """
    n_seen = unwrap(strategy.model).n_seen
    shares = counted_shares(benchmark.plan, n_experiences) if count_shares else None
    if isinstance(strategy, StreamingRidge):
        moments, familiarity = _from_sums(strategy, shares)
    else:
        moments, familiarity = _from_images(strategy, benchmark, n_experiences, num_workers, unused)
    seen_shares = None if shares is None else shares[:n_seen]
    trained_on = not isinstance(strategy, StreamingRidge) and "valid" not in benchmark.plan.evaluation
    return Calibrated(calibrate_logits(moments, seen_shares, trained_on=trained_on), familiarity)


def counted_shares(plan: Plan, n_experiences: int) -> Tensor | None:
    """Share of each class among the train images of the first experiences; None if labels are not known."""
    if not plan.labels_complete:
        return None
    used = torch.cat(list(plan.train.positions[:n_experiences])).unique()
    return plan.train.labels[used].double().mean(0)


def _from_sums(strategy: StreamingRidge, shares: Tensor | None) -> tuple[LogitMoments, Familiarity]:
    moments = LogitMoments(*(value.cpu() for value in strategy.logit_moments()))
    refinement = unwrap(strategy.model).refinement
    if refinement is not None:
        moments = _refined(moments, refinement, shares)
    total = sum_of_moments(strategy.statistics).cpu()
    n_images = total[0, 0].clamp(min=1)
    mean = total[0, 1:] / n_images
    return moments, Familiarity(mean, mean @ total[1:, 1:] @ mean / n_images)


def _refined(moments: LogitMoments, refinement: LogitRefinement, shares: Tensor | None) -> LogitMoments:
    """Moments with the mean of what a refinement adds to the logits; it hardly changes their variance."""
    origin, unit = refinement.origin.double().cpu(), refinement.unit.double().cpu()
    prior = estimate_shares(moments) if shares is None else shares[: len(unit)]
    deviation = moments.variance.sqrt() / unit

    def clipped_mean(logit_mean: Tensor) -> Tensor:
        """Mean of clip(u, 0, 1) for a normal u = (logit − origin) / unit."""
        mean = (logit_mean - origin) / unit
        return _mean_above(mean, deviation) - _mean_above(mean - 1, deviation)

    n_others = moments.n_negatives + moments.n_unlabelled
    sums = moments.n_negatives * moments.negative_mean + moments.n_unlabelled * moments.unlabelled_mean
    negative_mean = sums / n_others.clamp(min=1)  # nearly: few of the unlabelled are positive
    found = torch.lerp(clipped_mean(negative_mean), clipped_mean(moments.positive_mean), prior)
    shift = unit * (refinement.gain.double().cpu() @ torch.where(unit > 0, found, 0.0))
    return moments._replace(
        positive_mean=moments.positive_mean + shift,
        negative_mean=moments.negative_mean + shift,
        unlabelled_mean=moments.unlabelled_mean + shift,
    )


def _mean_above(mean: Tensor, deviation: Tensor) -> Tensor:
    """Mean of max(x, 0) for a normal x."""
    ratio = mean / deviation
    density = (-(ratio**2) / 2).exp() / math.sqrt(2 * math.pi)
    return mean * torch.special.ndtr(ratio) + deviation * density


def _from_images(
    strategy: MultiLabelTemplate,
    benchmark: MultiLabelBenchmark,
    n_experiences: int,
    num_workers: int,
    unused: Tensor | None,
) -> tuple[LogitMoments, Familiarity]:
    """Moments and familiarity from the logits and features of scored images."""
    model = unwrap(strategy.model)
    all_logits = []
    all_targets = []
    all_features = []
    for dataset, chosen in _datasets(strategy, benchmark, n_experiences, unused):
        loader: DataLoader[Any] = DataLoader(
            Subset(dataset, chosen),
            batch_size=strategy.eval_mb_size,
            collate_fn=dataset.collate_fn,
            num_workers=num_workers,
            worker_init_fn=exit_if_orphaned,
            generator=torch.Generator(),  # torch's own must not depend on this
        )
        with torch.inference_mode(), evaluation_mode(model):
            for images, targets, *_ in loader:
                with strategy.autocast():
                    features = model.features(images.to(strategy.device))
                all_logits.append(model.logits(features).double().cpu())
                all_targets.append(targets[:, : model.n_seen])
                all_features.append(features.double().cpu())
    stacked = torch.cat(all_features)  # [N, D]
    mean = stacked.mean(0)
    mean_square = (stacked @ mean).square().mean()
    moments = measure_moments(torch.cat(all_logits), torch.cat(all_targets))
    return moments, Familiarity(mean, mean_square)


def _datasets(
    strategy: MultiLabelTemplate, benchmark: MultiLabelBenchmark, n_experiences: int, unused: Tensor | None
) -> Iterator[tuple[Any, list[int]]]:
    """Datasets, as in evaluation, and which of their images to score.

    They are those held out, or else those trained on, at most `MOST_IMAGES` of them.
    """
    none = torch.empty(0, dtype=torch.long)
    unusable = [none] * benchmark.n_experiences  # positions of images in their dataset
    if "valid" in benchmark.plan.evaluation:
        datasets = [experience.dataset for experience in benchmark.valid_stream[:n_experiences]]
    elif isinstance(strategy, TrainsJointly):
        datasets = [benchmark.complete_train_dataset]
    else:
        datasets = [experience.dataset for experience in benchmark.train_stream[:n_experiences]]
        if unused is not None:
            positions = positions_in_source(benchmark.plan.train)
            unusable = [torch.isin(part, unused).nonzero().flatten() for part in positions]
    n_used = sum(len(dataset) > 0 for dataset in datasets)  # with test_images="all" the first holds all
    most = max(1, MOST_IMAGES // max(1, n_used))
    for number, dataset in enumerate(datasets):
        every = torch.arange(len(dataset))
        usable = every[~torch.isin(every, unusable[number])]
        if not len(usable):
            continue
        chosen = torch.linspace(0, len(usable) - 1, min(most, len(usable))).round().long()
        yield dataset.eval(), usable[chosen].tolist()
