"""A plugin of runs that records from each evaluation what reports show besides the metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.checks import relative_path
from avalanche_agcn.evaluation.calibration import LogitCalibration
from avalanche_agcn.models.saved import THRESHOLD
from avalanche_agcn.training.distributed import in_order_of_images

N_PICTURES = 6
N_WORST = 2
"""Pictures kept for each class and type of error."""
PROBABILITIES = tuple(k / 10 for k in range(1, 10))
"""Thresholds at which predicted labels are counted."""
N_BINS = 10
"""Bins of equal width that probabilities are compared with labels in."""
ERRORS = ("missed", "wrong")
STATE = ("rows", "class_ap", "n_true", "counts", "chosen", "bins", "sums", "errors", "numbers")


def choose_pictures(targets: Tensor, classes_per_experience: Sequence[int], n: int) -> list[int]:
    """Positions of n pictures, chosen by their labels alone: those with labels of the most experiences.

    Ties go to pictures with more labels, then to earlier ones. No two have the same labels.
    """
    labels = targets.bool()
    blocks = labels.split(list(classes_per_experience), dim=1)
    n_experiences = torch.stack([block.any(1) for block in blocks], dim=1).sum(1).tolist()
    n_labels = labels.sum(1).tolist()
    chosen: dict[tuple[bool, ...], int] = {}

    def most_experiences_first(i: int) -> tuple[int, int, int]:
        return -n_experiences[i], -n_labels[i], i

    for position in sorted(range(len(labels)), key=most_experiences_first):
        if len(chosen) < n:
            chosen.setdefault(tuple(labels[position].tolist()), position)
    return sorted(chosen.values())


class EvaluationRecorder(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Records some pictures, the worst ones of each class, counts of predicted labels, and AP of each class.

    It uses the outputs of the evaluation. The pictures are of the first experience, which is evaluated after
    every experience, so that they show how predictions change.

    Attributes:
        calibration: makes probabilities of logits, and has the threshold of each class; set it before an
            evaluation. If None, probabilities are the sigmoid of logits, and thresholds 0.5.
    """

    def __init__(self, benchmark: MultiLabelBenchmark, *, stream: str = "test") -> None:
        super().__init__()
        self._images = benchmark.plan.evaluation[stream]
        self._names = benchmark.class_names
        targets = self._images.labels[self._images.positions[0]]
        self.positions = choose_pictures(targets, benchmark.classes_per_experience, N_PICTURES)
        self._rows: dict[int, Tensor] = {}  # [pictures, classes seen], by the number of the experience
        self._class_ap: dict[int, Tensor] = {}  # [classes seen], likewise
        self.calibration: LogitCalibration | None = None
        self._experience = 0
        self._scores: list[Tensor] = []  # of the evaluated experience, batch by batch
        self._start(0)

    def _start(self, n_classes: int) -> None:
        """Reset what is recorded of the last evaluation only."""
        self._n_true = torch.zeros(n_classes, dtype=torch.int64)
        self._counts = torch.zeros(2, len(PROBABILITIES), n_classes, dtype=torch.int64)  # found, right
        self._chosen = torch.zeros(2, n_classes, dtype=torch.int64)  # the same, at the thresholds of the run
        self._bins = torch.zeros(2, N_BINS, dtype=torch.int64)  # cells in each bin, and positives among them
        self._sums = torch.zeros(N_BINS + n_classes, dtype=torch.float64)  # of p, in each bin and class
        # Largest errors of each class in descending order, and their images; -1 where there are fewer images.
        self._errors = torch.full((len(ERRORS), N_WORST, n_classes), -1.0, dtype=torch.float64)
        self._numbers = torch.full((len(ERRORS), N_WORST, n_classes), -1)

    def before_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Determine the last experience that was trained on, and start over."""
        self._experience = len(list(strategy.current_eval_stream)) - 1
        self._scores = []
        self._start(0)

    def after_eval_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Keep the outputs of a batch until the experience is evaluated."""
        logits = strategy.mb_output.detach().double().cpu()
        calibrated = logits.sigmoid() if self.calibration is None else self.calibration.probabilities(logits)
        self._scores.append(calibrated)

    def after_eval_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Record the images of the experience, those of all processes."""
        experience: Any = strategy.experience
        scores = in_order_of_images(self._scores)
        self._scores = []
        if not len(scores):
            return
        numbers = self._images.positions[experience.current_experience]
        labels = self._images.labels[numbers, : scores.shape[1]].bool()
        if not len(self._n_true):
            self._start(scores.shape[1])
        found = torch.stack([scores >= p for p in PROBABILITIES])  # [thresholds, images, classes]
        self._counts += torch.stack([found.sum(1), (found & labels).sum(1)])
        limits = torch.tensor(self.thresholds() or [THRESHOLD], dtype=torch.float64)
        is_found = scores >= limits
        self._chosen += torch.stack([is_found.sum(0), (is_found & labels).sum(0)])
        self._n_true += labels.sum(0)
        self._compare(scores, labels)
        self._keep_worst(scores, labels, numbers)
        if experience.current_experience == 0:
            self._rows[self._experience] = scores[self.positions]

    def _compare(self, scores: Tensor, labels: Tensor) -> None:
        """Count probabilities and positives in each bin, of all classes together."""
        bins = (scores * N_BINS).long().clamp(max=N_BINS - 1).flatten()
        self._bins[0] += torch.bincount(bins, minlength=N_BINS)
        self._bins[1] += torch.bincount(bins[labels.flatten()], minlength=N_BINS)
        in_bins = torch.bincount(bins, weights=scores.flatten(), minlength=N_BINS)
        self._sums += torch.cat([in_bins, scores.sum(0)])

    def _keep_worst(self, scores: Tensor, labels: Tensor, numbers: Tensor) -> None:
        """Keep the largest errors of each class among those kept so far and those of these images."""
        missed = (1 - scores).where(labels, -1.0)  # [images, classes]
        wrong = scores.where(~labels, -1.0)
        errors = torch.cat([self._errors, torch.stack([missed, wrong])], dim=1)  # [types, images, classes]
        new_numbers = numbers[:, None].expand_as(scores)
        all_numbers = torch.cat([self._numbers, torch.stack([new_numbers, new_numbers])], dim=1)
        worst = errors.argsort(dim=1, descending=True, stable=True)[:, :N_WORST]
        self._errors = errors.gather(1, worst)
        self._numbers = all_numbers.gather(1, worst)

    def keep_class_ap(self, ap: Tensor) -> None:
        """Record the AP of each class in the last evaluation: [C], as fractions."""
        self._class_ap[self._experience] = ap

    def thresholds(self) -> list[float] | None:
        """Probability at which each class counts as found; None without a calibration."""
        if self.calibration is None:
            return None
        return [round(threshold, 4) for threshold in self.calibration.thresholds.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Everything recorded so far."""
        calibration = None if self.calibration is None else self.calibration._asdict()
        return {name: getattr(self, f"_{name}") for name in STATE} | {"calibration": calibration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name in STATE:
            setattr(self, f"_{name}", state[name])
        calibration = state["calibration"]
        self.calibration = None if calibration is None else LogitCalibration(**calibration)

    def as_results(self, root: str | None = None) -> dict[str, Any]:
        """``pictures``, ``worst``, ``decisions``, ``reliability`` and ``class_ap``, as `Results` has them.

        Names of files are relative to the folder ``root``.
        """
        found, right = self._counts.tolist()  # [thresholds, classes] each
        n_cells, n_true = self._bins.tolist()
        in_bins, in_classes = self._sums.tensor_split([N_BINS])
        n_images = sum(n_cells) / max(1, len(in_classes))
        class_ap = _rows_by_experience(self._class_ap, missing=torch.empty(0))
        return {
            "pictures": self._pictures(root),
            "worst": list(self._worst(root)),
            "decisions": {
                "thresholds": list(PROBABILITIES),
                "true": self._n_true.tolist(),
                "found": found,
                "right": right,
                "chosen_found": self._chosen[0].tolist(),
                "chosen_right": self._chosen[1].tolist(),
            },
            "reliability": {
                "cells": n_cells,
                "true": n_true,
                "probability": _percent(in_bins / self._bins[0]),
                "class_probability": _percent(in_classes / n_images),
                "class_share": _percent(self._n_true / n_images),
            },
            "class_ap": [_percent(row) for row in class_ap],
        }

    def _pictures(self, root: str | None) -> list[dict[str, Any]]:
        rows = _rows_by_experience(self._rows, missing=torch.empty(len(self.positions), 0))
        pictures = []
        for k, number in enumerate(self._images.positions[0][self.positions].tolist()):
            picture = self._describe(number, root)
            picture["probabilities"] = [_percent(row[k]) for row in rows]
            pictures.append(picture)
        return pictures

    def _worst(self, root: str | None) -> Iterator[dict[str, Any]]:
        for c, name in enumerate(self._names[: len(self._n_true)]):
            for k, kind in enumerate(ERRORS):
                for place in range(N_WORST):
                    error = 100 * float(self._errors[k, place, c])
                    if error < 0:  # there are fewer images
                        continue
                    picture = self._describe(int(self._numbers[k, place, c]), root)
                    probability = round(error if kind == "wrong" else 100 - error, 2)
                    yield {"class": name, "error": kind, **picture, "probability": probability}

    def _describe(self, number: int, root: str | None) -> dict[str, Any]:
        """Number of a drawn scene, or name of a file; and its labels."""
        source = self._images.source
        image: int | str = number
        if isinstance(source, ImageFiles):
            image = relative_path(source.path(number), root)
        labels = [self._names[c] for c in self._images.labels[number].nonzero()]
        return {"image": image, "labels": labels}


def _rows_by_experience(rows: Mapping[int, Tensor], missing: Tensor) -> list[Tensor]:
    """The row of each experience up to the last, with ``missing`` where there was no evaluation."""
    return [rows.get(t, missing) for t in range(max(rows, default=-1) + 1)]


def _percent(fractions: Tensor) -> list[float | None]:
    return [None if math.isnan(p) else round(100 * p, 2) for p in fractions.tolist()]


def count_bytes(state: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(count_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(count_bytes, state))
    return 0
