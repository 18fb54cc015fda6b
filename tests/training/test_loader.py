import itertools
import os
import random
import signal
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from avalanche_agcn.benchmarks import MultiLabelAttribute
from avalanche_agcn.training import loader as loaders
from avalanche_agcn.training.plugins import OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer


class Listed(torch.utils.data.Dataset):
    """Samples that say which image they are and what their augmentation drew."""

    def __init__(self, experience, n):
        self.experience, self.n = experience, n
        self.targets = MultiLabelAttribute(torch.ones(n, 2))

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        drawn = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
        return torch.tensor([self.experience, index, drawn]), torch.tensor([0.0, 1.0])

    collate_fn = staticmethod(torch.utils.data.default_collate)


def make_memory(mem_size=6, n_stream=11):
    """A memory with images of experience 0, and experience 1 open."""
    memory = ReservoirBuffer(mem_size, seed=3)
    memory.open(0, Listed(0, 20))
    memory.observe(0, torch.arange(20))
    memory.open(1, Listed(1, n_stream))
    return memory


def sample(n=11, *, memory=True, **changes):
    options = {"experience": 1, "batch_size": 4, "seed": 7, **changes}
    if memory:
        options = {"memory": make_memory(n_stream=n), "batch_size_mem": 3, "observe": True, **options}
    return loaders.StreamSampler(n, **options)


sizes = {
    "n": st.integers(1, 23),
    "batch_size": st.integers(1, 9),
    "batch_size_mem": st.sampled_from([None, 0, 1, 3, 50]),
    "views": st.integers(1, 3),
    "drop_last": st.booleans(),
    "shuffle": st.booleans(),
    "seed": st.integers(0, 2**40),
}


@given(**sizes)
@settings(max_examples=60)
def test_epoch_has_every_image_once_per_view_followed_by_memory(
    n, batch_size, batch_size_mem, views, **options
):
    sampler = sample(n, batch_size=batch_size, batch_size_mem=batch_size_mem, views=views, **options)
    batches = list(sampler)
    n_kept = n // batch_size * batch_size if options["drop_last"] else n
    assert len(batches) == -(-n_kept // batch_size)
    seen = []
    for number, batch in enumerate(batches):
        n_stream, n_rows = sampler.count_stream_rows(number), len(batch) // views
        seen += batch[:n_stream]
        assert n_rows - n_stream == min(n_stream if batch_size_mem is None else batch_size_mem, 6)
        images = [key[:2] for key in batch]
        assert images == images[:n_rows] * views
        assert all(key.experience == 1 for key in batch[:n_stream])
        assert len(set(images[n_stream:n_rows])) == n_rows - n_stream
    assert len({key.index for key in seen}) == len(seen) == n_kept
    assert options["shuffle"] or [key.index for key in seen] == list(range(n_kept))


@given(position=st.integers(0, 30), epoch=st.integers(0, 2), **sizes)
@settings(max_examples=60)
def test_resuming_at_any_batch_gives_the_rest_and_the_same_memory(n, position, epoch, **options):
    whole, resumed = sample(n, **options), sample(n, **options)
    for _ in range(epoch):
        list(whole), list(resumed)
    batches = list(whole)
    position = min(position, len(batches))
    resumed.set_position(epoch, position)
    assert len(resumed) == len(batches) - position
    assert list(resumed) == batches[position:]
    assert torch.equal(resumed.memory.keys, whole.memory.keys)
    assert len(resumed) == whole.n_batches  # the next epoch is whole
    assert list(resumed) == list(whole)


@given(world_size=st.integers(1, 5), memory=st.booleans(), **sizes)
@settings(max_examples=60)
def test_processes_divide_each_global_batch_exactly(n, world_size, **options):
    one = sample(n, **options)
    ranks = [sample(n, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for number, (batch, *parts) in enumerate(zip(one, *ranks, strict=True)):
        rows = [key for part in parts for key in part if not key.padding]
        assert sorted(rows) == sorted(batch)
        for rank, part in zip(ranks, parts, strict=True):
            assert part
            assert len(part) == 1 or not any(key.padding for key in part)
            n_stream = 0 if part[0].padding else rank.count_stream_rows(number)
            assert all(key.experience == 1 for key in part[:n_stream])
        assert sum(rank.count_stream_rows(number) for rank in ranks) == one.count_stream_rows(number)


def test_order_depends_on_seed_experience_and_epoch_alone():
    torch.manual_seed(0)
    orders = []
    for seed, experience, epoch in itertools.product((0, 1), repeat=3):
        sampler = loaders.StreamSampler(50, experience=experience, batch_size=8, seed=seed)
        sampler.set_position(epoch)
        orders.append([key.index for batch in sampler for key in batch])
    assert len(set(map(tuple, orders))) == 8
    torch.manual_seed(1)
    sampler = loaders.StreamSampler(50, experience=1, batch_size=3, seed=1)
    list(sampler)  # the first epoch
    assert [key.index for batch in sampler for key in batch] == orders[-1]


def test_every_row_has_a_seed_of_its_own_and_a_stopped_epoch_is_followed_by_the_next():
    sampler = sample(views=2)
    seeds = [key.seed for _ in range(3) for batch in sampler for key in batch]
    assert len(set(seeds)) == len(seeds)
    stopped, whole = sample(memory=False), sample(memory=False)
    next(iter(stopped))
    list(whole)
    assert list(stopped) == list(whole)


def test_memory_takes_in_a_batch_before_the_next_is_drawn():
    sampler = sample(11)
    counts = [int(sampler.memory.state_dict()["n_seen"]) for _ in sampler]
    assert counts == [20, 24, 28]
    assert sampler.memory.state_dict()["n_seen"] == 31
    unobserved = sample(11, observe=False)
    list(unobserved)
    assert unobserved.memory.state_dict()["n_seen"] == 20


def test_sample_depends_on_its_key_alone_leaves_generators_alone_and_has_no_label_as_padding():
    dataset = loaders.StreamDataset({1: Listed(1, 5)})
    torch.manual_seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    a, b, again = dataset.__getitems__([loaders.Key(1, 2, 10), loaders.Key(1, 2, 11), loaders.Key(1, 2, 10)])
    assert a[0][2] == again[0][2] != b[0][2]
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    image, target = dataset.__getitems__([loaders.Key(1, 3, 1, padding=True)])[0]
    assert image[1] == 3
    assert target.isnan().all()
    with pytest.raises(ValueError, match="Seed must be"):
        dataset.__getitems__([loaders.Key(1, 0, 2**32)])  # NumPy rejects it after Python was seeded
    assert random.getstate() == before[0]


def test_generators_depend_on_every_number_and_shared_seeds_on_torchs_generator():
    generators = [loaders.make_generator(*seeds) for seeds in ((1, 2), (2, 1), (1,), (12,))]
    assert len({torch.rand((), generator=generator).item() for generator in generators}) == 4
    torch.manual_seed(5)
    first = loaders.draw_shared_seed()
    assert first != loaders.draw_shared_seed()
    torch.manual_seed(5)
    assert loaders.draw_shared_seed() == first


STRATEGY = SimpleNamespace(  # the attributes that the loader reads
    device=torch.device("cpu"),
    train_mb_size=4,
    seed=5,
    experience=SimpleNamespace(current_experience=1),
    adapted_dataset=Listed(1, 11),
)


@pytest.mark.parametrize("memory", [False, True])
def test_batches_are_the_same_with_any_number_of_workers(memory):
    epochs = []
    for num_workers in (0, 1, 2):
        plugin = OnlineReplayPlugin(make_memory(), batch_size_mem=3, views=2) if memory else None
        torch.manual_seed(0)
        loader = loaders.make_train_loader(STRATEGY, memory=plugin, num_workers=num_workers)
        epochs.append([x for _ in range(2) for x, _ in loader] + [torch.rand(3)])
    assert len(epochs[0]) == 7
    for epoch in epochs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(epochs[0], epoch, strict=True))


def test_loader_honours_its_settings():
    loader = loaders.make_train_loader(
        STRATEGY, shuffle=False, drop_last=True, pin_memory=False, num_workers=1, persistent_workers=True
    )
    assert loader.persistent_workers
    assert not loader.pin_memory
    for _ in range(2):
        assert [x[:, 1].tolist() for x, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def start_slowly(worker):
    time.sleep(0.5)
    loaders.exit_if_orphaned(worker)


def start_workers_and_die():
    batches = iter(DataLoader(range(8), num_workers=2, worker_init_fn=start_slowly))
    print(*(worker.pid for worker in batches._workers))
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_exit_if_their_process_is_killed_while_they_start(fork):
    process = fork(start_workers_and_die)
    process.join()
    pids = [int(pid) for pid in process.output.readline().split()]
    assert len(pids) == 2
    workers = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    assert loaders.make_train_loader(STRATEGY, num_workers=1).worker_init_fn is loaders.exit_if_orphaned
    assert loaders.exit_if_orphaned(0) is None  # in a process that is not a worker
