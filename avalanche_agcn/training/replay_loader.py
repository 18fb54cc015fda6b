"""Batches of the stream together with images from memory."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from avalanche_agcn.training.storage.base import Key, OnlineBuffer


class ReplayBatchSampler(Sampler[list[Key]]):
    """Keys of a batch of the stream, followed by keys drawn from memory.

    The loader's workers open memory and stream alike. Batches are the same with any number of workers: each
    is offered to the memory before the next is drawn, which takes labels but no network. Without workers that
    is after its step; a loader with w workers asks for batches up to ``2 w`` steps ahead, and the memory is
    as far ahead of training until the epoch ends.

    Args:
        buffer: the memory.
        experience: number of the experience that streams; it is open in the buffer.
        batch_size: images of the stream a batch.
        batch_size_mem: images from memory a batch; as many as of the stream if None.
        views: how often all of them stand in the batch, each time with an augmentation of its own.
        observe: whether to offer the stream's images to the memory.
        shuffle: random order of the stream, as Avalanche's own.
        drop_last: leave out a last batch that is not full.
    """

    def __init__(
        self,
        buffer: OnlineBuffer,
        experience: int,
        *,
        batch_size: int,
        batch_size_mem: int | None = None,
        views: int = 1,
        observe: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        stream = range(len(buffer.datasets[experience]))
        order = RandomSampler(stream) if shuffle else SequentialSampler(stream)
        self.batches = BatchSampler(order, batch_size, drop_last)
        self.buffer, self.experience = buffer, experience
        self.batch_size_mem, self.views, self.observe = batch_size_mem, views, observe
        self._handed_out: deque[Tensor] = deque()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        self._handed_out.clear()  # of an epoch that was stopped
        for batch in self.batches:
            indices = torch.tensor(batch)
            self._handed_out.append(indices)
            n = len(batch) if self.batch_size_mem is None else self.batch_size_mem
            keys = [(self.experience, index) for index in batch] + self.buffer.draw(n)
            yield keys * self.views
            if self.observe:
                self.buffer.observe(self.experience, indices)

    def next_stream_indices(self) -> Tensor:
        """Indices of the stream's images in the oldest batch not asked for; batches come in order.

        Raises:
            RuntimeError: if the batch is not of this sampler.
        """
        if not self._handed_out:
            raise RuntimeError(
                "The batch does not come from the memory's own loader: another plugin has put its own in "
                "place of it. Two memories beside each other cannot work; leave out one of them."
            )
        return self._handed_out.popleft()


class _Pool(Dataset[Any]):
    """Images of several experiences, asked for by their key."""

    def __init__(self, datasets: Mapping[int, Dataset[Any]]) -> None:
        self.datasets = dict(datasets)

    def __getitem__(self, key: Key) -> Any:
        experience, index = key
        return self.datasets[experience][index]


def make_replay_loader(sampler: ReplayBatchSampler, **settings: Any) -> DataLoader[Any]:
    """A loader of the sampler's batches.

    Args:
        sampler: which images.
        settings: for ``DataLoader``, such as ``num_workers``.
    """
    datasets = sampler.buffer.datasets
    collate_fn = datasets[sampler.experience].collate_fn
    return DataLoader(_Pool(datasets), batch_sampler=sampler, collate_fn=collate_fn, **settings)
