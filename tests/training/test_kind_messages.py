"""What a user guesses wrong is answered at once, with the fix."""

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone
from avalanche_agcn.training import PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin

SCENES = {"n_classes": 4, "n_experiences": 2, "n_train": 24, "n_test": 8, "image_size": 32}


@pytest.fixture(scope="module")
def benchmark():
    return SplitScenes(**SCENES)


def naive(model=None, criterion=None, evaluator=None, plugins=(), **settings):
    model = MultiLabelClassifier(create_backbone("small"), 4) if model is None else model
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        criterion=PartialBCEWithLogitsLoss() if criterion is None else criterion,
        evaluator=EvaluationPlugin() if evaluator is None else evaluator,
        plugins=list(plugins),
        train_mb_size=8,
        **settings,
    )


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), nn.BCELoss()])
@pytest.mark.filterwarnings("ignore:No loggers specified")
def test_a_plain_criterion_is_rejected_under_any_strategy(benchmark, criterion):
    with pytest.raises(ValueError, match=r"Loss is .*: pass criterion=PartialBCEWithLogitsLoss\(\)"):
        naive(criterion=criterion).train(benchmark.train_stream[0])


def test_a_plain_criterion_is_fine_where_all_labels_are_known():
    benchmark = SplitScenes(**SCENES, unlabelled_as_negative=True)
    model = nn.Sequential(create_backbone("small"), nn.Linear(256, 4))
    naive(model, nn.BCEWithLogitsLoss()).train(benchmark.train_stream[0])


def test_accuracy_is_rejected_under_any_strategy(benchmark):
    accuracy = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
    with pytest.raises(ValueError, match=r"argmax of multi-hot targets.*multilabel_evaluator\(\)"):
        naive(evaluator=accuracy).train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="argmax of multi-hot targets"):
        naive(evaluator=accuracy).eval(benchmark.test_stream)


def test_agcn_without_its_graph_is_rejected(benchmark):
    model = AGCNModel(create_backbone("small"), torch.eye(4))
    with pytest.raises(ValueError, match=r"AGCNPlugin needs the label graph that ACMPlugin counts"):
        naive(model, plugins=[AGCNPlugin()]).train(benchmark.train_stream[0])
    naive(model, plugins=[AGCNPlugin(), ACMPlugin()]).train(benchmark.train_stream[0])


def test_lists_of_labels_are_not_targets():
    data = torch.utils.data.TensorDataset(torch.rand(3, 3, 8, 8))
    for targets in ([["cat"], ["dog", "cat"], ["dog"]], [[0], [1, 0], [1]]):
        data.targets = targets
        with pytest.raises(ValueError, match=r"not lists of labels such as .*multilabel_csv"):
            multilabel_benchmark(data, data, n_experiences=2)
