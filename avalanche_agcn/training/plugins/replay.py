"""Replay from a memory that is filled as the stream flows."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.training.replay_loader import ReplayBatchSampler, make_replay_loader
from avalanche_agcn.training.storage.base import OnlineBuffer


class MemoryPlugin(SupervisedPlugin):
    """Puts images from memory behind those of the stream in each batch.

    The base of `OnlineReplayPlugin` and `AGEMPlugin`. The first `n_stream` rows of a batch are the stream's;
    further views of stream and memory stand behind. Which images a batch has does not depend on the number of
    loader workers; see `ReplayBatchSampler`.

    Args:
        storage_policy: the memory.
        batch_size_mem: images from memory a batch; as many as of the stream if None. If there are fewer in
            memory, all of them.
        views: how often each image stands in a batch, with augmentations of its own.

    Raises:
        ValueError: if a number makes no sense.
    """

    observe_stream = False
    """Whether the memory takes in the stream batch by batch."""

    def __init__(
        self, storage_policy: OnlineBuffer, *, batch_size_mem: int | None = None, views: int = 1
    ) -> None:
        super().__init__()
        if batch_size_mem is not None and batch_size_mem < 0:
            raise ValueError(f"batch_size_mem is a number of images and cannot be {batch_size_mem}.")
        if views < 1:
            raise ValueError(f"views must be at least 1, but is {views}.")
        self.storage_policy, self.batch_size_mem, self.views = storage_policy, batch_size_mem, views
        self.n_stream = 0
        self._sampler: ReplayBatchSampler | None = None

    def before_training_exp(
        self,
        strategy: SupervisedTemplate,
        *args: Any,
        num_workers: int = 0,
        shuffle: bool = True,
        pin_memory: bool | None = None,
        persistent_workers: bool = False,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a loader of our own, with the settings that were given to ``train``."""
        experience = strategy.experience.current_experience
        self.storage_policy.open(experience, strategy.adapted_dataset)
        self._sampler = ReplayBatchSampler(
            self.storage_policy,
            experience,
            batch_size=strategy.train_mb_size,
            batch_size_mem=self.batch_size_mem,
            views=self.views,
            observe=self.observe_stream,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        strategy.dataloader = make_replay_loader(
            self._sampler,
            num_workers=num_workers,
            pin_memory=strategy.device.type == "cuda" if pin_memory is None else pin_memory,
            persistent_workers=persistent_workers and num_workers > 0,
        )

    def before_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Find out which rows of the batch are the stream's."""
        assert self._sampler is not None
        self.n_stream = len(self._sampler.next_stream_indices())

    def state_dict(self) -> dict[str, Tensor]:
        """The memory's; see `OnlineBuffer`. During an epoch it may be ahead of training."""
        return self.storage_policy.state_dict()

    def load_state_dict(self, state: dict[str, Tensor], train_stream: Any) -> None:
        """Take over a memory; its images are found in the stream."""
        self.storage_policy.load_state_dict(state, train_stream)


class OnlineReplayPlugin(MemoryPlugin):
    """Trains on the stream and on images from memory in one batch, and updates the memory batch by batch.

    The loss is that of the joint batch: `PartialBCEWithLogitsLoss` averages over its annotated cells, where a
    replayed image has those of its own experience. Once the step is taken, the targets of replayed rows
    become NaN: what counts the stream, such as the ACM or metrics of training, counts no image twice.

    Avalanche's ``ReplayPlugin`` takes the same memories, but updates them at the end of an experience only.

    Args:
        storage_policy: the memory: `ReservoirBuffer`, `PRSBuffer` or `OCDMBuffer`.
        batch_size_mem: images from memory a step; as many as of the stream if None (as in PRS).
        newer_as_negative: whether a replayed image counts as a negative of the classes of later experiences.
            It may show them all the same, but a classifier of new classes otherwise never sees an image
            without any of them. Off in the papers.
        views: see `MemoryPlugin`.

    Raises:
        ValueError: if a number makes no sense.

    Example:
        >>> from avalanche_agcn.training.storage_policy import PRSBuffer
        >>> plugin = OnlineReplayPlugin(PRSBuffer(2000))  # for AGCN(..., plugins=[plugin]) or any strategy
    """

    observe_stream = True

    def __init__(
        self,
        storage_policy: OnlineBuffer,
        *,
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        views: int = 1,
    ) -> None:
        super().__init__(storage_policy, batch_size_mem=batch_size_mem, views=views)
        self.newer_as_negative = newer_as_negative

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Say that replayed images do not show newer classes, if asked to."""
        if self.newer_as_negative:
            stream, replayed = self._split(strategy.mb_y)
            replayed = newer_as_negative(replayed, count_seen(strategy.experience))
            strategy.mbatch[1] = torch.cat([stream, replayed])

    def after_update(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Hide the targets of replayed rows."""
        stream, replayed = self._split(strategy.mb_y)
        strategy.mbatch[1] = torch.cat([stream, torch.full_like(replayed, torch.nan)])

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[: self.n_stream], rows[self.n_stream :]


def newer_as_negative(targets: Tensor, n_seen: int) -> Tensor:
    """Targets with 0 for the classes seen after those an image is annotated for.

    Args:
        targets: 0, 1 or NaN, ``[B, n_classes]``.
        n_seen: classes seen so far; later columns stay NaN.

    Example:
        >>> newer_as_negative(torch.tensor([[torch.nan, 1.0, torch.nan, torch.nan]]), n_seen=3)
        tensor([[nan, 1., 0., nan]])
    """
    columns = torch.arange(targets.shape[1], device=targets.device)
    last_annotated = columns.where(~targets.isnan(), -1).amax(dim=1, keepdim=True)  # -1: nothing is known
    newer = (columns > last_annotated) & (last_annotated >= 0) & (columns < n_seen)
    return targets.masked_fill(newer, 0.0)
