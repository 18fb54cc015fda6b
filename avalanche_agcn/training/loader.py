"""Training batches: one sampler for order, replay, resuming and sharding over processes."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from avalanche_agcn.training.distributed import from_first_process, is_distributed, process_rank

if TYPE_CHECKING:
    from avalanche_agcn.training.buffers import OnlineBuffer
    from avalanche_agcn.training.memory import MemoryPlugin

MAX_SEED = 2**32  # exclusive; the largest range that NumPy accepts


class Key(NamedTuple):
    """One row of a batch: an image, by its experience and its index in the dataset of that experience."""

    experience: int
    index: int  # type: ignore[assignment]  # hides a method of tuple that nothing here uses
    seed: int  # of its augmentation, so that any worker or process draws the same one
    padding: bool = False  # only fills an otherwise empty batch; its target is NaN, its task label -1


@dataclass(eq=False, repr=False)
class StreamSampler(Sampler[list[Key]]):
    """Batches of keys: images of the stream, followed by images drawn from memory, once per view.

    The order of an epoch depends on ``(seed, experience, epoch)`` and on nothing else, so every process draws
    the same global batches, and an epoch can resume at any batch. A batch is offered to the memory before the
    next one is drawn. A loader with ``w`` workers draws up to ``2 w`` batches ahead of training: batches are
    the same, but until the epoch ends the memory is that far ahead.
    """

    n_images: int  # in the experience
    _: KW_ONLY
    experience: int  # its number
    batch_size: int  # images of the stream per batch, over all processes
    seed: int  # of order and augmentation, not negative
    memory: OnlineBuffer | None = None  # to replay from
    batch_size_mem: int | None = None  # replayed per batch, over all processes; as many as streamed if None
    views: int = 1  # how often each image appears in a batch, with its own augmentation each time
    observe: bool = False  # whether to offer the stream's images to the memory
    shuffle: bool = True
    drop_last: bool = False  # whether to drop a last batch that is not full
    rank: int = 0  # of this process
    world_size: int = 1  # number of processes
    epoch: int = field(default=0, init=False)
    first_batch: int = field(default=0, init=False)  # of the next epoch

    @property
    def n_batches(self) -> int:
        """Number of batches of a whole epoch."""
        return (self.n_images + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def set_position(self, epoch: int, batch: int = 0) -> None:
        """Start the next iteration at a batch of an epoch; the memory must be as at the epoch's start."""
        self.epoch, self.first_batch = epoch, batch

    def count_stream_rows(self, batch: int) -> int:
        """Number of leading rows of this process's batch that are first views of the stream's images."""
        n = min(self.batch_size, self.n_images - batch * self.batch_size)
        return len(range(self.rank, n, self.world_size))

    def __len__(self) -> int:
        return self.n_batches - self.first_batch

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, first_batch = self.epoch, self.first_batch
        self.set_position(epoch + 1)  # now: the loader may not iterate to the end, and the next epoch follows
        generator = make_generator(self.seed, self.experience, epoch)
        order = torch.arange(self.n_images)
        if self.shuffle:
            order = torch.randperm(self.n_images, generator=generator)
        for batch, indices in enumerate(order.split(self.batch_size)[: self.n_batches]):
            stream = [(self.experience, index) for index in indices.tolist()]
            n_replayed = len(stream) if self.batch_size_mem is None else self.batch_size_mem
            replayed = [] if self.memory is None else self.memory.draw(n_replayed)
            n_rows = len(stream) + len(replayed)
            seeds = torch.randint(MAX_SEED, (self.views, n_rows), generator=generator).tolist()
            # Resuming: batches before the first are drawn and offered to the memory too, which needs labels
            # but no image. This restores the generators and the memory as they were when training stopped.
            if batch >= first_batch:
                yield self._own_rows(stream, replayed, seeds)
            if self.observe and self.memory is not None:
                self.memory.observe(self.experience, indices)

    def _own_rows(
        self, stream: list[tuple[int, int]], replayed: list[tuple[int, int]], seeds: list[list[int]]
    ) -> list[Key]:
        """Every ``world_size``-th image of the stream, then of the memory, starting at ``rank``."""
        n_stream = len(stream)
        rows = []
        for view_seeds in seeds:
            # Stream and memory are divided separately, so that `count_stream_rows` knows this process's share
            # of the stream.
            rows += self._share(stream, view_seeds[:n_stream])
            rows += self._share(replayed, view_seeds[n_stream:])
        # Every process must make the step, because the others wait for its gradients.
        return rows or [Key(*stream[0], seeds[0][0], padding=True)]

    def _share(self, images: list[tuple[int, int]], seeds: list[int]) -> list[Key]:
        """Keys of this process's images: round-robin, so that shares differ by at most one image."""
        share = slice(self.rank, None, self.world_size)
        return [Key(*image, seed) for image, seed in zip(images[share], seeds[share], strict=True)]


class StreamDataset(Dataset[Any]):
    """Samples ``(image, target, …)`` of several experiences by `Key`, each augmented under its own seed."""

    def __init__(self, datasets: Mapping[int, Any]) -> None:
        self.datasets = dict(datasets)

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        with preserve_rng_state():
            return [self._load(key) for key in keys]

    def _load(self, key: Key) -> Any:
        random.seed(key.seed)
        np.random.seed(key.seed)  # noqa: NPY002 - the generator that transforms use
        torch.default_generator.manual_seed(key.seed)  # torch.manual_seed would also seed the GPU
        sample = self.datasets[key.experience][key.index]
        if isinstance(sample[0], Image.Image):
            raise TypeError(
                "The images are PIL images, of which no batch can be made: pass a train_transform and an "
                "eval_transform that make tensors to the benchmark, such as v2.Compose([v2.ToImage(), "
                "v2.ToDtype(torch.float32, scale=True)]) of torchvision.transforms."
            )
        return padding_sample(sample) if key.padding else sample


def padding_sample(sample: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sample without labels, and with the task label −1, by which `is_padding` finds it."""
    image, target, *others = sample
    unlabelled = torch.full_like(target, torch.nan)
    if not others:
        return image, unlabelled
    return image, unlabelled, *others[:-1], -1


def make_train_loader(
    strategy: Any,
    *,
    memory: MemoryPlugin | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    pin_memory: bool | None = None,
    num_workers: int = 0,
    persistent_workers: bool = False,
    **others: Any,
) -> DataLoader[Any]:
    """Make the loader of a strategy's current experience, which must be open in the memory to replay from.

    The strategy's ``seed``, or else torch's generator, decides the order. If ``pin_memory`` is None, tensors
    are pinned for CUDA devices. ``others`` are arguments of ``strategy.train`` that are not for the loader.
    """
    experience = strategy.experience.current_experience
    dataset = strategy.adapted_dataset
    seed = getattr(strategy, "seed", None)
    rank, world_size = process_rank()
    sampler = StreamSampler(
        len(dataset),
        experience=experience,
        batch_size=strategy.train_mb_size,
        seed=draw_shared_seed() if seed is None else from_first_process(seed),
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
    )
    datasets = {}
    if memory is not None:
        sampler.memory = memory.storage_policy
        sampler.batch_size_mem = memory.batch_size_mem
        sampler.views = memory.views
        sampler.observe = memory.observe_stream
        datasets = memory.storage_policy.datasets
    return DataLoader(
        StreamDataset({**datasets, experience: dataset}),
        batch_sampler=sampler,
        collate_fn=dataset.collate_fn,
        num_workers=num_workers,
        pin_memory=strategy.device.type == "cuda" if pin_memory is None else pin_memory,
        persistent_workers=persistent_workers and num_workers > 0,
        worker_init_fn=exit_if_orphaned,
        generator=torch.Generator(),  # the loader would otherwise advance torch's global generator
    )


def make_eval_loader(strategy: Any, *, num_workers: int = 0) -> DataLoader[Any]:
    """Make the loader of this process's share of an evaluated experience; each image is in one share."""
    dataset = strategy.adapted_dataset
    rank, n_processes = process_rank()
    share = dataset.subset(range(rank, len(dataset), n_processes))
    return DataLoader(
        share,
        batch_size=strategy.eval_mb_size,
        collate_fn=share.collate_fn,
        num_workers=num_workers,
        pin_memory=strategy.device.type == "cuda",
        worker_init_fn=exit_if_orphaned,
        generator=torch.Generator(),
    )


def load_batches(
    strategy: Any, dataset: Any, *, batch_size: int, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and targets of a dataset in order, batch by batch, on the strategy's device."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=dataset.collate_fn,
        num_workers=num_workers,
        worker_init_fn=exit_if_orphaned,
    )
    for images, targets, *_ in loader:
        yield images.to(strategy.device), targets.to(strategy.device)


def exit_if_orphaned(worker: int) -> None:
    """Exit a loader worker whose parent was killed while the worker started.

    Torch only checks on the parent after this point. An orphaned worker would keep the parent's connections
    open, and the other processes of its group would wait for it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # Siblings of a forked worker may keep the pipe open that `is_alive` checks.
    forked = multiprocessing.get_start_method() == "fork"
    if os.getppid() != parent.pid if forked else not parent.is_alive():
        os._exit(1)


def is_padding(batch: Sequence[Tensor]) -> bool:
    """Whether a batch is the padding of a process that has no image in a step (`Key`)."""
    return is_distributed() and len(batch) > 2 and bool((batch[-1] < 0).any())


def make_generator(*seeds: int) -> torch.Generator:
    """Make a generator seeded by several non-negative numbers; their order matters."""
    state = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def draw_shared_seed() -> int:
    """Draw a seed from torch's generator; all processes get the first one's."""
    return from_first_process(int(torch.randint(MAX_SEED, ())))


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the CPU generators of Python, NumPy and torch on exit."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
