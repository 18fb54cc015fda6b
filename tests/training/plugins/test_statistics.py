"""Sums of features, and the expected loss of negatives from them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from avalanche_agcn.models import Backbone, MultiLabelClassifier
from avalanche_agcn.training import AGCN, EWC, FineTuning, LwF
from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.plugins import (
    FeatureStatisticsPlugin,
    OnlineReplayPlugin,
    StatisticalNegativesPlugin,
)
from avalanche_agcn.training.storage_policy import ReservoirBuffer


def frozen_model(benchmark, seed=0):
    """A classifier whose features do not change in training."""
    torch.manual_seed(seed)
    backbone = Backbone(torch.nn.Conv2d(3, 5, 3), num_features=5, pool="avg").requires_grad_(False)
    return MultiLabelClassifier(backbone, benchmark.n_classes)


def expected_statistics(benchmark, model):
    statistics = FeatureStatistics()
    for experience in benchmark.train_stream:
        x, y, _ = (torch.stack([torch.as_tensor(v) for v in part]) for part in zip(*experience.dataset))
        statistics.begin(2)
        statistics.update(model.backbone(x), y[:, experience.classes_in_this_experience])
    return statistics


@pytest.mark.parametrize(
    ("plugins", "settings"),
    [
        ([], {}),
        ([], {"train_epochs": 3, "train_mb_size": 5}),
        ([OnlineReplayPlugin(ReservoirBuffer(9), views=2)], {}),
    ],
)
def test_every_image_of_the_stream_counts_once(benchmark, train, plugins, settings):
    collector, model = FeatureStatisticsPlugin(), frozen_model(benchmark)
    train(*plugins, collector, model=model, **settings)
    expected = expected_statistics(benchmark, model)
    for t in range(3):
        torch.testing.assert_close(collector.statistics.moments(t), expected.moments(t), rtol=1e-6, atol=1e-5)


def test_state_continues_within_an_experience_to_the_last_bit(benchmark, train, watch):
    whole, resumed = FeatureStatisticsPlugin(), FeatureStatisticsPlugin()
    states = watch(after_training_iteration=lambda strategy: copy.deepcopy(whole.state_dict()))
    train(whole, states, model=frozen_model(benchmark))
    # After the last batch, before the experience ends:
    resumed.load_state_dict(states.seen["after_training_iteration"][-1])
    assert torch.equal(resumed.statistics.moments(2), whole.statistics.moments(2))
    resumed.load_state_dict(whole.state_dict())
    train(resumed, model=frozen_model(benchmark))  # all of it is counted already
    assert torch.equal(resumed.statistics.moments(2), whole.statistics.moments(2))


@pytest.fixture
def watch_loss(train, watch):
    """Train with a plugin, and return each step's loss before it and after it, with the classifiers."""

    def run(plugin, **settings):
        def look(strategy):
            return strategy.loss.item(), copy.deepcopy(strategy.model).classifiers()

        before, after = watch(before_backward=look), watch(before_backward=look)
        train(before, plugin, after, n=2, **settings)
        steps = zip(before.seen["before_backward"], after.seen["before_backward"], strict=True)
        return [(loss, total, classifiers) for (loss, classifiers), (total, _) in steps]

    return run


def test_added_loss_is_the_expected_negative_loss_of_new_classes(benchmark, watch_loss):
    """Against sampling from the Gaussians."""
    plugin = StatisticalNegativesPlugin(weight=2.0)
    steps = watch_loss(plugin, model=frozen_model(benchmark), lr=0.5)
    assert all(loss == total for loss, total, _ in steps[: len(steps) // 3])
    mean, covariance = plugin.statistics.mean(0), plugin.statistics.covariance(0)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(5))
    generator = torch.Generator().manual_seed(0)
    samples = mean + torch.randn(200_000, 5, generator=generator, dtype=torch.float64) @ factor.T
    loss, total, (weight, bias) = steps[-1]
    scores = samples @ weight[2:4].double().T + bias[2:4]
    assert total - loss == pytest.approx(2 * F.softplus(scores).mean().item(), rel=0.02)


def test_new_classes_score_lower_on_old_images(benchmark, train):
    old = torch.stack([row[0] for row in benchmark.train_stream[0].dataset])
    mean_scores = []
    for weight in (0.0, 1.0):
        plugin = StatisticalNegativesPlugin(weight=weight)
        strategy = train(plugin, model=frozen_model(benchmark), lr=0.5, train_epochs=10, n=2)
        with torch.no_grad():
            mean_scores.append(strategy.model(old)[:, 2:4].mean().item())
    assert mean_scores[1] < mean_scores[0] - 0.3


@pytest.mark.parametrize("strategy_class", [FineTuning, LwF, EWC])
@pytest.mark.parametrize("memory", [False, True])
def test_it_combines_with_other_strategies(benchmark, train, strategy_class, memory):
    plugins = [StatisticalNegativesPlugin()]
    if memory:
        plugins.append(OnlineReplayPlugin(ReservoirBuffer(9), newer_as_negative=True))
    model = frozen_model(benchmark)
    train(*plugins, model=model, kind=strategy_class)
    expected = expected_statistics(benchmark, model)
    assert [plugins[0].statistics.count(t) for t in range(3)] == [expected.count(t) for t in range(3)]


def test_agcns_first_weight_does_not_scale_it(make_model, watch_loss):
    added = []
    for lambda_cls in (0.1, 0.9):
        settings = {"kind": AGCN, "model": make_model(), "lambda_cls": lambda_cls, "seed": 0, "lr": 0.0}
        loss, total, _ = watch_loss(StatisticalNegativesPlugin(), **settings)[-1]
        added.append(total - loss)
    assert added[0] > 0.1
    assert added[0] == pytest.approx(added[1], rel=1e-3)


def test_model_without_classifiers_is_rejected(train):
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 6))
    with pytest.raises(TypeError, match="one weight vector per class, not Sequential"):
        train(StatisticalNegativesPlugin(), model=flat)


def test_diverging_network_stops_with_the_value(benchmark, train):
    model = frozen_model(benchmark)
    next(model.backbone.parameters()).data.fill_(math.nan)
    collector = FeatureStatisticsPlugin()
    with pytest.raises(ValueError, match="is nan: the network diverged"):
        train(collector, model=model)
    assert collector.statistics.count(0) == 0
