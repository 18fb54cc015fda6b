"""Plugins of runs: records of each evaluation besides the metrics, and an estimate of time and disk."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.training.distributed import in_order_of_images

N_PICTURES = 6
N_WORST = 2
"""Pictures kept for each class and type of error."""
PROBABILITIES = tuple(k / 10 for k in range(1, 10))
"""Thresholds at which predicted labels are counted."""
ERRORS = ("missed", "wrong")
STATE = ("rows", "class_ap", "n_true", "counts", "errors", "numbers")


def choose_pictures(targets: Tensor, classes_per_experience: Sequence[int], n: int) -> list[int]:
    """Positions of n pictures, chosen by their labels alone: those with labels of the most experiences.

    Ties go to pictures with more labels, then to earlier ones. No two have the same labels.
    """
    labels = targets.bool()
    blocks = labels.split(list(classes_per_experience), dim=1)
    n_experiences = torch.stack([block.any(1) for block in blocks], dim=1).sum(1).tolist()
    n_labels = labels.sum(1).tolist()
    chosen: dict[tuple[bool, ...], int] = {}
    for position in sorted(range(len(labels)), key=lambda i: (-n_experiences[i], -n_labels[i], i)):
        if len(chosen) < n:
            chosen.setdefault(tuple(labels[position].tolist()), position)
    return sorted(chosen.values())


class EvaluationRecorder(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Records some pictures, the worst ones of each class, counts of predicted labels, and AP of each class.

    It uses the outputs of the evaluation. The pictures are of the first experience, which is evaluated after
    every experience, so that they show how predictions change.
    """

    def __init__(self, benchmark: MultiLabelBenchmark, *, stream: str = "test") -> None:
        super().__init__()
        self._images, self._names = benchmark.plan.evaluation[stream], benchmark.class_names
        targets = self._images.labels[self._images.positions[0]]
        self.positions = choose_pictures(targets, benchmark.classes_per_experience, N_PICTURES)
        self._rows: dict[int, Tensor] = {}  # [pictures, classes seen], by the number of the experience
        self._class_ap: dict[int, Tensor] = {}  # [classes seen], likewise
        self._experience = 0
        self._scores: list[Tensor] = []  # of the evaluated experience, batch by batch
        self._start(0)

    def _start(self, n_classes: int) -> None:
        """Reset what is recorded of the last evaluation only."""
        self._n_true = torch.zeros(n_classes, dtype=torch.int64)
        self._counts = torch.zeros(2, len(PROBABILITIES), n_classes, dtype=torch.int64)  # found, right
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
        self._scores.append(strategy.mb_output.detach().double().sigmoid().cpu())

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
        self._n_true += labels.sum(0)
        self._keep_worst(scores, labels, numbers)
        if experience.current_experience == 0:
            self._rows[self._experience] = scores[self.positions]

    def _keep_worst(self, scores: Tensor, labels: Tensor, numbers: Tensor) -> None:
        errors = torch.stack([(1 - scores).where(labels, -1.0), scores.where(~labels, -1.0)])
        errors = torch.cat([self._errors, errors], dim=1)  # [types of error, images, classes]
        numbers = torch.cat([self._numbers, numbers[None, :, None].expand_as(errors[:, N_WORST:])], dim=1)
        worst = errors.argsort(dim=1, descending=True, stable=True)[:, :N_WORST]
        self._errors, self._numbers = errors.gather(1, worst), numbers.gather(1, worst)

    def keep_class_ap(self, ap: Tensor) -> None:
        """Record the AP of each class in the last evaluation: [C], as fractions."""
        self._class_ap[self._experience] = ap

    def best_thresholds(self) -> list[float]:
        """The threshold of each class with the best F1 in the last evaluation; 0.5 in a tie."""
        found, right = self._counts  # [thresholds, classes]
        f1 = 2 * right.double() / (found + self._n_true).clamp(min=1)
        f1[PROBABILITIES.index(0.5)] += 1e-9
        return [PROBABILITIES[k] for k in f1.argmax(0).tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Everything recorded so far."""
        return {name: getattr(self, f"_{name}") for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name in STATE:
            setattr(self, f"_{name}", state[name])

    def as_results(self, root: str | None = None) -> dict[str, Any]:
        """``pictures``, ``worst``, ``decisions`` and ``class_ap``, as `Results` has them.

        Names of files are relative to the folder ``root``.
        """
        rows = _as_list(self._rows, torch.empty(len(self.positions), 0))
        pictures = []
        for k, number in enumerate(self._images.positions[0][self.positions].tolist()):
            pictures.append(self._describe(number, root) | {"probabilities": [_percent(r[k]) for r in rows]})
        found, right = self._counts.tolist()
        counts = {"true": self._n_true.tolist(), "found": found, "right": right}
        return {
            "pictures": pictures,
            "worst": list(self._worst(root)),
            "decisions": {"thresholds": list(PROBABILITIES), **counts},
            "class_ap": [_percent(row) for row in _as_list(self._class_ap, torch.empty(0))],
        }

    def _worst(self, root: str | None) -> Iterator[dict[str, Any]]:
        for c, k, place in itertools.product(range(len(self._n_true)), range(len(ERRORS)), range(N_WORST)):
            error = 100 * float(self._errors[k, place, c])
            if error >= 0:
                picture = self._describe(int(self._numbers[k, place, c]), root)
                probability = round(error if ERRORS[k] == "wrong" else 100 - error, 2)
                yield {"class": self._names[c], "error": ERRORS[k], **picture, "probability": probability}

    def _describe(self, number: int, root: str | None) -> dict[str, Any]:
        """Number of a drawn scene, or name of a file; and its labels."""
        source = self._images.source
        image = os.path.relpath(source.path(number), root) if isinstance(source, ImageFiles) else number
        return {"image": image, "labels": [self._names[c] for c in self._images.labels[number].nonzero()]}


def _as_list(rows: Mapping[int, Tensor], empty: Tensor) -> list[Tensor]:
    """Rows by experience, with ``empty`` where there was no evaluation."""
    return [rows.get(t, empty) for t in range(max(rows, default=-1) + 1)]


def _percent(fractions: Tensor) -> list[float | None]:
    return [None if math.isnan(p) else round(100 * p, 2) for p in fractions.tolist()]


def count_bytes(state: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.nbytes
    parts = state.values() if isinstance(state, dict) else state
    return sum(map(count_bytes, parts)) if isinstance(state, (dict, list, tuple)) else 0
