"""Which image goes where: all that a benchmark is made from, before Avalanche's objects are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from avalanche_agcn.benchmarks.datasets import MultiLabelSource, Transform


class Images(NamedTuple):
    """Images of a stream."""

    source: MultiLabelSource
    labels: Tensor
    """[N, C] bool, of all images of the source, columns in order of appearance."""
    positions: Sequence[Tensor]
    """Which images of the source each experience has."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``assemble`` makes a benchmark from.

    Attributes:
        train: Training images. Outside of an image's own experience its labels are used for the complete
            training set only.
        evaluation: The other streams by name.
        class_names: Name of each column.
        classes_per_experience: Number of columns each experience adds.
        train_transform: Applied to each training image.
        eval_transform: Applied to each image in evaluation.
        labels_complete: Whether the training labels are known outside of an image's own experience.
    """

    train: Images
    evaluation: Mapping[str, Images]
    class_names: Sequence[str]
    classes_per_experience: Sequence[int]
    train_transform: Transform | None = None
    eval_transform: Transform | None = None
    labels_complete: bool = True

    def limited(self, n: int) -> Plan:
        """The first ``n`` images of each experience only, for a quick look.

        Raises:
            ValueError: If ``n`` is not positive.
        """
        if n < 1:
            raise ValueError(f"at least one image an experience is needed, got a limit of {n}")

        def first(images: Images) -> Images:
            return images._replace(positions=[positions[:n] for positions in images.positions])

        evaluation = {name: first(images) for name, images in self.evaluation.items()}
        return replace(self, train=first(self.train), evaluation=evaluation)
