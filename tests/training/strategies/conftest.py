"""Train a strategy on the tiny stream."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.models import MultiLabelClassifier


@pytest.fixture
def run_stream(benchmark, make_model):
    """Make a strategy around the same model each time, train it on the stream and return it."""

    def run(strategy_class, *, lr=0.1, model=None, stream=None, shuffle=True, **settings):
        model = model or MultiLabelClassifier(make_model().backbone, benchmark.n_classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        settings = {"train_mb_size": 8, "evaluator": EvaluationPlugin(), **settings}
        strategy = strategy_class(model=model, optimizer=optimizer, **settings)
        torch.manual_seed(0)
        for experience in stream or benchmark.train_stream:
            strategy.train(experience, eval_streams=[], shuffle=shuffle)
        return strategy

    return run


@pytest.fixture
def same_weights():
    """Whether two strategies have learned exactly the same."""

    def compare(one, other):
        states = [strategy.model.state_dict() for strategy in (one, other)]
        return all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())

    return compare
