"""Streams of labels alone, for the memories."""

import pytest
import torch
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark


@pytest.fixture(scope="session")
def dataset_of():
    """One experience of labels."""

    def make(labels):
        data = TensorDataset(torch.zeros(len(labels), 1))
        data.targets = labels.int()
        return multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset

    return make


@pytest.fixture(scope="session")
def fill(dataset_of):
    """Let streams of labels, one experience each, flow into a memory."""

    def run(buffer, *streams, batch_size=8):
        for experience, labels in enumerate(streams):
            buffer.open(experience, dataset_of(labels))
            for batch in torch.arange(len(labels)).split(batch_size):
                buffer.observe(experience, batch)
        return buffer

    return run


@pytest.fixture(scope="session")
def long_tailed():
    """Labels whose classes become ever rarer, one to three an image."""

    def draw(n, n_classes, seed, decay=0.7):
        generator = torch.Generator().manual_seed(seed)
        weights = (decay ** torch.arange(n_classes)).expand(n, n_classes)
        k = min(3, n_classes)
        chosen = torch.multinomial(weights, k, generator=generator)  # [n, k], most likely ones first
        n_labels = torch.randint(1, k + 1, (n, 1), generator=generator)
        labels = torch.zeros(n, n_classes, dtype=torch.float64)
        labels.scatter_(1, chosen, (torch.arange(k) < n_labels).double())
        labels[torch.arange(n_classes), torch.arange(n_classes)] = 1  # every class at least once
        return labels

    return draw
