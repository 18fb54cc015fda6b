"""A small stream of vectors with several labels, and strategies that learn it in a moment."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from avalanche.training.supervised import Naive
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss

N_FEATURES, N_CLASSES = 8, 6
NAMES = ["cat", "dog", "car", "bus", "tree", "sea"]


def vectors(n, seed):
    """Each label depends on a direction of its own; not all images have one."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(N_FEATURES, N_CLASSES, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, N_FEATURES, generator=generator)
    noise = torch.randn(n, N_CLASSES, generator=generator)
    dataset = TensorDataset(x)
    dataset.targets = (x @ directions + noise > 2.0).long()
    return dataset


@pytest.fixture(scope="session")
def benchmark():
    """Three experiences of two classes, with odd numbers of test images."""
    return multilabel_benchmark(vectors(160, 1), vectors(151, 2), n_experiences=3, class_names=NAMES)


@pytest.fixture(scope="session")
def stream_tensors(benchmark):
    """For each experience of the test stream its inputs and targets."""
    tensors = []
    for experience in benchmark.test_stream:
        x, y, _ = zip(*(experience.dataset[i] for i in range(len(experience.dataset))))
        tensors.append((torch.stack(x), torch.stack(y)))
    return tensors


@pytest.fixture
def model():
    """Logits of all classes; the same weights each time. New classes change what old ones are scored with."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(N_FEATURES, 5), nn.Tanh(), nn.Linear(5, N_CLASSES))


@pytest.fixture
def learn(benchmark):
    """A function that trains on some experiences, evaluates after each, and returns the last metrics."""

    def learn(strategy, experiences):
        for t in experiences:
            torch.manual_seed(t)
            strategy.train(benchmark.train_stream[t])
            results = strategy.eval(benchmark.test_stream[: t + 1])
        return results

    return learn


def save_in_process(rank, folder, function, arguments):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    store = {"init_method": f"file://{folder}/store", "timeout": timedelta(minutes=10)}
    dist.init_process_group("gloo", **store, rank=rank, world_size=2)
    torch.save(function(*arguments), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture
def in_two_processes(tmp_path):
    """Results of a function in each of two processes of a group."""

    def run(function, *arguments):
        given = str(tmp_path), function, arguments
        mp.start_processes(save_in_process, args=given, nprocs=2, start_method="fork")
        return [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]

    return run


@pytest.fixture
def make_strategy(model):
    """A function that makes a strategy over `model`, with seven images per batch."""

    def make(*metrics, evaluator=None, loggers=(), learner=None, **settings):
        learner = model if learner is None else learner
        if evaluator is None:
            evaluator = multilabel_evaluator(*metrics, loggers=list(loggers))
        return Naive(
            model=learner,
            optimizer=torch.optim.SGD(learner.parameters(), lr=0.5),
            criterion=PartialBCEWithLogitsLoss(),
            train_mb_size=7,
            eval_mb_size=7,
            evaluator=evaluator,
            **settings,
        )

    return make
