"""Avalanche datasets of images with several, partly hidden, labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from avalanche.benchmarks.utils.classification_dataset import (
    TaskAwareSupervisedClassificationDataset,
)
from avalanche.benchmarks.utils.data_attribute import TaskLabels
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from avalanche.benchmarks.utils.transform_groups import TransformGroups
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_agcn.benchmarks.attribute import UNLABELLED, MultiLabelAttribute, decode

Transform = Callable[[Any], Any]


class MultiLabelSource(Protocol):
    """What a benchmark is made from: ``source[i][0]`` is an image, ``targets`` is an N×C matrix of 0/1."""

    @property
    def targets(self) -> Tensor | np.ndarray | Sequence[Sequence[int]]:
        """Labels of all images."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, ...]: ...


class _RelabelledImages(Dataset):
    """Chosen images of a source, opened when asked for, with targets of our own."""

    def __init__(self, source: MultiLabelSource, positions: Tensor, codes: Tensor) -> None:
        self.source, self.positions, self.codes = source, positions, codes
        self._image = getattr(source, "image_alone", None)  # spares reading targets that are not used

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        position = int(self.positions[index])
        image = self.source[position][0] if self._image is None else self._image(position)
        return image, decode(self.codes[index])


def make_dataset(
    source: MultiLabelSource,
    positions: Tensor,
    codes: Tensor,
    transforms: dict[str, Transform | None],
) -> TaskAwareSupervisedClassificationDataset:
    """An Avalanche dataset of the source's images at ``positions`` with the given targets.

    Every sample has task label 0: without one, Avalanche's train loader ignores ``collate_fn`` and makes
    no ``DistributedSampler``.
    """
    return TaskAwareSupervisedClassificationDataset(
        [_RelabelledImages(source, positions, codes)],
        data_attributes=[
            MultiLabelAttribute.from_codes(codes),
            TaskLabels(ConstantSequence(0, len(positions))),
        ],
        transform_groups=TransformGroups(transforms),
    )


def mask_columns(labels: Tensor, block: range) -> Tensor:
    """Codes of ``labels`` in the block's columns, unlabelled elsewhere."""
    codes = torch.full(labels.shape, UNLABELLED, dtype=torch.int8)
    codes[:, block.start : block.stop] = labels[:, block.start : block.stop].to(torch.int8)
    return codes
