import pytest
import torch
from torch import nn

from avalanche_agcn.training.losses import MultiLabelContrastiveLoss
from avalanche_agcn.training.plugins.replay import ContrastivePlugin


def contrast(strategy, experience):
    dataset = experience.dataset
    x = torch.stack([dataset[i][0] for i in range(len(dataset))])
    with torch.no_grad():
        return MultiLabelContrastiveLoss()(strategy.model.features(x), dataset.targets[:])


def test_loss_lowers_the_contrast_and_the_model_is_left_as_it_was(benchmark, make_strategy):
    experience = benchmark.train_stream[0]
    plain, contrasted = make_strategy(lr=0.5), make_strategy(ContrastivePlugin(weight=1.0), lr=0.5)
    for strategy in (plain, contrasted):
        strategy.train(experience, eval_streams=[])
    assert contrast(contrasted, experience) < contrast(plain, experience)
    assert len(contrasted.model.backbone._forward_hooks) == 0


def test_weight_of_0_changes_nothing(benchmark, make_strategy):
    weights = []
    for plugins in ([], [ContrastivePlugin(weight=0.0)]):
        strategy = make_strategy(*plugins)
        strategy.train(benchmark.train_stream[0], eval_streams=[])
        weights.append(strategy.model.classifier.weight)
    assert torch.equal(*weights)


def test_no_image_goes_through_the_network_twice(benchmark, make_strategy):
    strategy = make_strategy(ContrastivePlugin())
    seen = []
    strategy.model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert sum(seen) == len(benchmark.train_stream[0].dataset)


def test_model_without_backbone_is_rejected(benchmark, make_strategy):
    strategy = make_strategy(ContrastivePlugin(), model=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)))
    with pytest.raises(TypeError, match="no backbone"):
        strategy.train(benchmark.train_stream[0], eval_streams=[])
