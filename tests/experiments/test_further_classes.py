"""A saved strategy is trained on a further experience with new classes in another process."""

import pytest
import torch
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.experiments.checkpoint import load_strategy, save_strategy
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, Precomputed
from avalanche_agcn.training.plugins import StatisticalNegativesPlugin

WIDTH = 8
METHODS_ON_A_STREAM = [name for name in METHODS if not name.startswith("multitask")]


def make_benchmark(n_experiences):
    """The first experiences of one stream: every image has labels of one experience only."""
    generator = torch.Generator().manual_seed(0)
    n = 20 * n_experiences
    targets = torch.zeros(n, 2 * n_experiences)
    for t in range(n_experiences):
        rows = slice(20 * t, 20 * t + 20)
        targets[rows, 2 * t : 2 * t + 2] = (torch.rand(20, 2, generator=generator) < 0.5).float()
        targets[rows, 2 * t] = torch.maximum(targets[rows, 2 * t], 1 - targets[rows, 2 * t + 1])
    features = torch.stack([torch.randn(WIDTH, generator=torch.Generator().manual_seed(k)) for k in range(n)])
    data = TensorDataset(features)
    data.targets = targets.int()
    return multilabel_benchmark(data, data, n_experiences=n_experiences)


def make_strategy(name, n_classes, **settings):
    method = METHODS[name]
    torch.manual_seed(0)
    words = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))[:n_classes]
    if method.model == "agcn":
        model = AGCNModel(Precomputed(WIDTH), words, hidden_features=7)
    else:
        model = MultiLabelClassifier(Precomputed(WIDTH), n_classes)
    if "lambda_gph" in method.arguments:
        settings.setdefault("lambda_gph", 1.0)
    elif "mem_size" in method.arguments:
        settings["mem_size"] = 12
    return method.strategy_class(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        evaluator=multilabel_evaluator(loggers=[]),
        seed=3,
        **settings,
    )


def train_and_save(path, name, **settings):
    benchmark = make_benchmark(2)
    strategy = make_strategy(name, 4, **settings)
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[])
        strategy.eval(benchmark.test_stream[: t + 1])
    save_strategy(path, strategy)


def continue_on(path, name, **settings):
    benchmark = make_benchmark(3)
    strategy = make_strategy(name, 6, **settings)
    load_strategy(path, strategy, benchmark.train_stream)
    strategy.train(benchmark.train_stream[2], eval_streams=[])
    strategy.eval(benchmark.test_stream[:])
    return strategy


def logits(strategy):
    x = torch.stack([row[0] for experience in make_benchmark(3).test_stream for row in experience.dataset])
    with torch.no_grad():
        return strategy.model.eval()(x)


@pytest.mark.parametrize("name", METHODS_ON_A_STREAM)
def test_every_method_learns_further_classes(tmp_path, name):
    train_and_save(tmp_path / "strategy.bin", name)
    strategy = continue_on(tmp_path / "strategy.bin", name)
    assert logits(strategy).shape == (60, 6)
    assert logits(strategy).isfinite().all()


STATISTICS = {"preset": "statistics", "lambda_gph": 1.0}


@pytest.mark.parametrize(
    ("name", "settings"), [("streaming_ridge", {}), ("l3a", {}), ("csc", {}), ("agcn", STATISTICS)]
)
def test_closed_form_and_graph_methods_equal_an_uninterrupted_run(tmp_path, name, settings):
    train_and_save(tmp_path / "strategy.bin", name, **settings)
    whole, benchmark = make_strategy(name, 6, **settings), make_benchmark(3)
    for experience in benchmark.train_stream:
        whole.train(experience, eval_streams=[])
    continued = continue_on(tmp_path / "strategy.bin", name, **settings)
    torch.testing.assert_close(logits(continued), logits(whole), rtol=0, atol=1e-5)


def test_another_strategy_is_rejected(tmp_path):
    train_and_save(tmp_path / "strategy.bin", "finetuning")
    with pytest.raises(ValueError, match="plugins"):
        continue_on(tmp_path / "strategy.bin", "finetuning", plugins=[StatisticalNegativesPlugin()])
