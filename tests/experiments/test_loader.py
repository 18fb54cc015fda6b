import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.experiments.loader import ResumableBatches, resumable_loader, seeded
from avalanche_agcn.experiments.state import random_state
from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.storage import ReservoirBuffer


def numbers():
    """One of each kind that a transform may draw."""
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_a_seed_fixes_what_is_drawn_and_leaves_the_rest_alone():
    torch.manual_seed(0)
    before = random_state()
    with seeded(2**32 - 1):
        first = numbers()
    with seeded(2**32 - 1):
        assert numbers() == first
    with seeded(1):
        assert not set(numbers()) & set(first)
    after = random_state()
    assert torch.equal(after["torch"], before["torch"])
    assert torch.equal(after["numpy"].pop(1), before["numpy"].pop(1))
    assert (after["numpy"], after["python"]) == (before["numpy"], before["python"])


@pytest.fixture
def batches():
    """Seven images in batches of two, anew with the same random numbers each time."""

    def make():
        torch.manual_seed(0)
        return ResumableBatches(BatchSampler(RandomSampler(range(7)), 2, drop_last=False))

    return make


@pytest.mark.parametrize("n", range(5))
def test_batches_after_those_left_out_are_the_same(batches, n):
    whole, rest = list(batches()), batches()
    rest.leave_out(n, lambda: None)
    assert len(rest) == 4 - n
    assert list(rest) == whole[n:]
    assert len(rest) == len(list(rest)) == 4  # the next epoch is whole


def test_random_numbers_go_on_once_batches_were_left_out(batches):
    rest = batches()
    rest.leave_out(2, lambda: torch.manual_seed(9) and None)
    next(iter(rest))
    drawn = torch.rand(3)
    torch.manual_seed(9)
    assert torch.equal(drawn, torch.rand(3))


def test_every_batch_and_every_epoch_has_seeds_of_its_own(batches):
    sampler = batches()
    seeds = [seed for _ in range(3) for _, seed in sampler]
    assert len(set(seeds)) == 12


class Trainer:
    """As much of a strategy as a loader looks at."""

    def __init__(self, experience, plugin=None):
        self.experience, self.device, self.train_mb_size = experience, torch.device("cpu"), 4
        self.adapted_dataset = experience.dataset.train()
        self.dataloader = None
        if plugin is not None:
            plugin.before_training_exp(self)


@pytest.mark.parametrize("memory", [False, True])
def test_images_and_random_numbers_are_the_same_with_any_number_of_workers(memory):
    scenes = SplitScenes(n_classes=2, n_experiences=1, n_train=20, n_test=4, image_size=16)
    epochs = []
    for num_workers in (0, 1, 2):
        plugin = OnlineReplayPlugin(ReservoirBuffer(6), batch_size_mem=3, views=2) if memory else None
        torch.manual_seed(0)
        loader = resumable_loader(Trainer(scenes.train_stream[0], plugin), num_workers)
        epochs.append([x for x, *_ in loader] + [torch.rand(3)])
    assert len(epochs[0]) == 6
    if memory:
        assert plugin.state_dict()["n_seen"] == 20
        n = len(epochs[0][1]) // 2
        assert n == 4 + 3
        assert not torch.equal(epochs[0][1][:n], epochs[0][1][n:])  # two views differ
    for epoch in epochs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(epochs[0], epoch, strict=True))
