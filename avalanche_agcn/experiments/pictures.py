"""A few test pictures, the same throughout a run, and the probabilities that each evaluation gives them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles

N_PICTURES = 6


def choose_pictures(targets: Tensor, classes_per_experience: Sequence[int], n: int) -> list[int]:
    """Choose pictures by their labels alone: those with labels of the most experiences.

    Of equals, those with more labels are taken, then those that stand first. No two have the same labels.

    Args:
        targets: [N, C] of 0 and 1, columns in order of appearance.
        classes_per_experience: Number of columns each experience adds.
        n: How many, if there are as many.

    Returns:
        Positions, in the order in which they stand.

    Example:
        >>> targets = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 1, 1]])
        >>> choose_pictures(targets, [2, 1], 3)
        [0, 1, 4]
    """
    labels = targets.bool()
    blocks = labels.split(list(classes_per_experience), dim=1)
    n_experiences = torch.stack([block.any(1) for block in blocks], dim=1).sum(1).tolist()
    n_labels = labels.sum(1).tolist()
    rank = sorted(range(len(labels)), key=lambda i: (-n_experiences[i], -n_labels[i], i))
    chosen: dict[tuple[bool, ...], int] = {}
    for position in rank:
        if len(chosen) == n:
            break
        chosen.setdefault(tuple(labels[position].tolist()), position)
    return sorted(chosen.values())


class PictureScores(SupervisedPlugin):
    """Keeps the probabilities of some images of the first experience, as evaluation computes them.

    Nothing is computed anew. Images of the first experience are evaluated after every one, so that what is
    found in them as more is learned can be shown.

    Args:
        benchmark: Where the images are from.
        stream: Name of the stream that is evaluated.
        n: How many images; see `choose_pictures`.
    """

    def __init__(self, benchmark: MultiLabelBenchmark, *, stream: str = "test", n: int = N_PICTURES) -> None:
        super().__init__()
        self._images = benchmark.plan.evaluation[stream]
        targets = self._images.labels[self._images.positions[0]]
        self.positions = choose_pictures(targets, benchmark.classes_per_experience, n)
        self.labels = [[benchmark.class_names[c] for c in row.nonzero()] for row in targets[self.positions]]
        self._rows: dict[int, Tensor] = {}  # [images, classes seen], by the number of the experience
        self._n_evaluated = 0

    def before_eval_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count from the first image of an experience."""
        self._n_evaluated = 0

    def after_eval_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Take over what a batch has of the images."""
        experience: Any = strategy.experience
        if experience.current_experience != 0:
            return
        begin, self._n_evaluated = self._n_evaluated, self._n_evaluated + len(strategy.mb_output)
        within = [p - begin for p in self.positions if begin <= p < self._n_evaluated]
        if not within:
            return
        scores = strategy.mb_output.detach()[within].double().sigmoid().cpu()
        t = len(list(strategy.current_eval_stream)) - 1
        first = self.positions[0] >= begin
        self._rows[t] = scores if first else torch.cat([self._rows[t], scores])

    def state_dict(self) -> dict[str, Any]:
        """What was kept so far."""
        return {"rows": dict(self._rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self._rows = dict(state["rows"])

    def as_results(self, root: str | None = None) -> list[dict[str, Any]]:
        """For each image ``image``, ``labels`` and ``probabilities``, as `Results` has them.

        Args:
            root: Folder that the names of files are relative to.
        """
        rows = [self._rows.get(t) for t in range(max(self._rows, default=-1) + 1)]
        return [
            {
                "image": self._image(position, root),
                "labels": self.labels[k],
                "probabilities": [
                    [] if row is None else [round(100 * p, 2) for p in row[k].tolist()] for row in rows
                ],
            }
            for k, position in enumerate(self.positions)
        ]

    def _image(self, position: int, root: str | None) -> int | str:
        """Number of a drawn scene, or name of a file."""
        number = int(self._images.positions[0][position])
        if isinstance(self._images.source, ImageFiles):
            return os.path.relpath(self._images.source.path(number), root)
        return number
