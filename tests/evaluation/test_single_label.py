import pytest
import torch
from avalanche import training
from avalanche.training import plugins

from avalanche_agcn import training as multilabel
from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.evaluation.single_label import UNSUITABLE
from avalanche_agcn.training import PartialBCEWithLogitsLoss

pytestmark = pytest.mark.filterwarnings("ignore:No loggers")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (training.DER, {}, "Avalanche's DER adds a softmax cross-entropy.* use avalanche_agcn's ER, PRS"),
        (training.ER_ACE, {}, "Avalanche's ER_ACE adds a softmax"),
        (
            training.MIR,
            {"mem_size": 4, "subsample": 4},
            "Avalanche's MIRPlugin compares the numbers of classes",
        ),
        (training.Naive, {"plugins": [plugins.RARPlugin(2)]}, "Avalanche's RARPlugin expects the number"),
    ],
)
def test_strategies_and_plugins_for_one_label_are_rejected_before_training(kind, settings, message):
    benchmark = SplitScenes(n_classes=4, n_experiences=2, n_train=24, n_test=12, image_size=16)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16**2, 4))
    before = model[1].weight.clone()
    strategy = kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=PartialBCEWithLogitsLoss(),
        evaluator=multilabel_evaluator(loggers=[]),
        **settings,
    )
    with pytest.raises(ValueError, match=message):
        strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert torch.equal(model[1].weight, before)


def test_every_reason_names_strategies_of_this_package():
    for _, replacement in UNSUITABLE.values():
        names = replacement.replace("(", " ").replace(",", " ").split()
        assert any(name in multilabel.__all__ for name in names)
