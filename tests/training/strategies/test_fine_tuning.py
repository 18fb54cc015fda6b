import torch
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from torch.optim import SGD

from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import FineTuning, PartialBCEWithLogitsLoss


def train(strategy_class, benchmark, make_model, **settings):
    model = MultiLabelClassifier(make_model().backbone, benchmark.n_classes)
    strategy = strategy_class(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.1),
        train_mb_size=8,
        evaluator=EvaluationPlugin(),
        **settings,
    )
    torch.manual_seed(0)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return model


def test_fine_tuning_is_naive_training_with_the_partial_loss(benchmark, make_model):
    model = train(FineTuning, benchmark, make_model)
    expected = train(Naive, benchmark, make_model, criterion=PartialBCEWithLogitsLoss())
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])


def test_fine_tuning_learns_the_last_experience_best(benchmark, make_model):
    model = train(FineTuning, benchmark, make_model, train_epochs=5)
    images, targets, _ = zip(*benchmark.train_stream[2].dataset, strict=True)
    images, targets = torch.stack(images), torch.stack(targets)
    found = (model(images)[:, 4:] > 0) == targets[:, 4:].bool()
    assert found.float().mean() > 0.8
