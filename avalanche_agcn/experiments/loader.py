"""Batches that are the same with any number of loader workers, and that can begin anywhere in an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from avalanche.training.templates import SupervisedTemplate
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

from avalanche_agcn.training.replay_loader import ReplayBatchSampler

SeededBatch = tuple[list[Any], int]
"""Keys of images, and the seed of what is drawn as they are opened."""

N_SEEDS = 2**32  # as many as NumPy takes


def resumable_loader(strategy: SupervisedTemplate, num_workers: int = 0) -> DataLoader:
    """A strategy's train loader anew, over `ResumableBatches` of the same images.

    Args:
        strategy: About to train on an experience; its loader may be one with a memory.
        num_workers: Processes that load images.
    """
    loader: Any = strategy.dataloader
    images: Any = strategy.adapted_dataset
    collate_fn = images.collate_fn
    batches: Sampler[Any] = BatchSampler(RandomSampler(range(len(images))), strategy.train_mb_size, False)
    if isinstance(getattr(loader, "batch_sampler", None), ReplayBatchSampler):
        images, batches = loader.dataset, loader.batch_sampler
    seeded_batches: Sampler[Any] = ResumableBatches(batches)
    return DataLoader(
        _SeededImages(images),
        batch_sampler=seeded_batches,
        collate_fn=collate_fn,
        num_workers=num_workers,
        pin_memory=strategy.device.type == "cuda",
    )


class ResumableBatches(Sampler[SeededBatch]):
    """Batches of another sampler with a seed each, from any batch on.

    An epoch draws its seeds and its order from torch's random numbers as it begins, and nothing later.

    Args:
        batches: Of the whole epoch.
    """

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self._left_out = 0
        self._then: Callable[[], None] = lambda: None

    def leave_out(self, n: int, then: Callable[[], None]) -> None:
        """Begin the next epoch with batch ``n``; ``then`` is called once the others were drawn."""
        self._left_out, self._then = n, then

    def __len__(self) -> int:
        return len(self.batches) - self._left_out

    def __iter__(self) -> Iterator[SeededBatch]:
        seeds = torch.randint(N_SEEDS, (len(self.batches),)).tolist()
        batches = zip(self.batches, seeds, strict=True)
        if self._left_out:
            for _ in islice(batches, self._left_out):
                if isinstance(self.batches, ReplayBatchSampler):
                    self.batches.next_stream_indices()
            self._left_out = 0
            self._then()
        yield from batches


class _SeededImages(Dataset[Any]):
    """Images of another dataset, a batch at a time: its seed decides about all augmentations."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __getitems__(self, batch: SeededBatch) -> list[Any]:
        keys, seed = batch
        with seeded(seed):
            return [self.images[key] for key in keys]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let Python, NumPy and torch on the CPU draw from a seed, then go on where they stood.

    Args:
        seed: Below `N_SEEDS`.

    Example:
        >>> with seeded(3):
        ...     first = torch.rand(())
        >>> with seeded(3):
        ...     bool(torch.rand(()) == first)
        True
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what transforms draw from
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also change the GPU's
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
