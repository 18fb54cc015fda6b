"""A small classifier under a strategy, for the plugins."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_agcn.models import Backbone, MultiLabelClassifier
from avalanche_agcn.training import FineTuning


@pytest.fixture
def make_strategy():
    """A strategy with given plugins; the same weights and the same random numbers each time."""

    def make(*plugins, lr=0.1, model=None, kind=FineTuning, **settings):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        model = model or MultiLabelClassifier(Backbone(layers, num_features=8, pool="avg"), 6)
        optimizer = torch.optim.SGD(model.parameters(), lr)
        torch.manual_seed(0)
        return kind(
            model=model, optimizer=optimizer, plugins=plugins, evaluator=EvaluationPlugin(), **settings
        )

    return make


@pytest.fixture
def train(benchmark, make_strategy):
    """Train over the stream, or a part of it, with given plugins, and return the strategy."""

    def run(*plugins, stream=None, n=3, loader=None, **settings):
        strategy = make_strategy(*plugins, **settings)
        for experience in stream or benchmark.train_stream[:n]:
            strategy.train(experience, eval_streams=[], **loader or {})
        return strategy

    return run
