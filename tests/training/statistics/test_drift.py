"""Training the network beside sums of its features: decoupled, with the sums moved along."""

import pytest
import torch

from avalanche_agcn.models import AGCNModel, Backbone, MultiLabelClassifier
from avalanche_agcn.training import AGCN, StreamingRidge
from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
from avalanche_agcn.training.statistics.drift import DecoupledTrainingPlugin, DriftCompensationPlugin
from avalanche_agcn.training.statistics.negatives import StatisticalNegativesPlugin


def make_model():
    """A small network with an auxiliary head that is not 0, so that the network moves from the first step."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 10, 3))
    model = MultiLabelClassifier(Backbone(layers, num_features=10, pool="avg"), 6, decoupled=True)
    model.auxiliary.reset_parameters()
    return model


@pytest.fixture
def train(train):
    """Train the small network."""
    return lambda *plugins, **settings: train(*plugins, **{"model": make_model(), "lr": 0.05} | settings)


def features_of(model, experience):
    with torch.no_grad():
        return model.features(torch.stack([row[0] for row in experience.dataset])).double()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_classifiers_do_not_train_the_network(train):
    """With the auxiliary head's learning switched off, the network does not change."""
    model, before = make_model(), make_model()
    model.auxiliary.requires_grad_(False).weight.zero_()
    train(DecoupledTrainingPlugin(distillation=0.0), model=model, n=1)
    assert same(model.backbone, before.backbone)
    assert not same(model.classifier, before.classifier)


def test_auxiliary_head_trains_the_network_as_a_coupled_head_would(train):
    coupled = make_model()
    auxiliary, coupled.auxiliary = coupled.auxiliary, None
    coupled.classifier.load_state_dict(auxiliary.state_dict())
    train(model=coupled)
    decoupled = train(DecoupledTrainingPlugin(distillation=0.0)).model
    for a, b in zip(decoupled.backbone.parameters(), coupled.backbone.parameters()):
        torch.testing.assert_close(a, b)


def test_distillation_keeps_features_near_those_at_the_start_of_the_experience(benchmark, train):
    first, moved = benchmark.train_stream[0], []
    for distillation in (0.0, 6.0):
        model = train(DecoupledTrainingPlugin(distillation=distillation), n=1, train_epochs=5).model
        moved.append((features_of(model, first) - features_of(make_model(), first)).norm())
    assert moved[1] < 0.8 * moved[0]


@pytest.fixture
def collect(train):
    """Train with and without compensation, and return the sums and the model of each."""

    def run(compensated, distillation=0.1, n_images=10, ridge=1000.0, **settings):
        collector, plugin = FeatureStatisticsPlugin(), DecoupledTrainingPlugin(distillation=distillation)
        drift = DriftCompensationPlugin(n_images=n_images, ridge=ridge, teacher=plugin.teacher)
        model = train(collector, plugin, *([drift] if compensated else []), **settings).model
        return collector.statistics, model

    return run


def test_sums_follow_the_network(benchmark, collect):
    """Means of old experiences under the final network: nearer with compensation, and with held images."""

    def error(compensated, n_images=0):
        statistics, model = collect(compensated, n_images=n_images, ridge=1.0, train_epochs=8)
        means = [features_of(model, experience).mean(0) for experience in benchmark.train_stream]
        return sum((statistics.mean(t) - mean).norm().item() for t, mean in enumerate(means))

    plain, steps, some, all_images = error(False), error(True), error(True, 20), error(True, 1000)
    assert max(steps, some, all_images) < 0.6 * plain
    assert max(some, all_images) < 0.5 * steps


def test_frozen_network_needs_no_compensation(collect):
    plain, compensated = (collect(compensated, lr=0.0)[0] for compensated in (False, True))
    for t in range(3):
        torch.testing.assert_close(plain.moments(t), compensated.moments(t), rtol=1e-5, atol=1e-5)


def test_teacher_is_asked_once_per_batch(benchmark, make_strategy, watch):
    """Also when AGCN, distillation, drift and statistics all need it."""
    calls = []

    def count(strategy):
        strategy.agcn.teacher.model.backbone.register_forward_hook(lambda *_: calls.append(1))

    model = AGCNModel(make_model().backbone, torch.randn(6, 5), hidden_features=12, decoupled=True)
    strategy = make_strategy(kind=AGCN, model=model, lr=0.01)
    teacher, at = strategy.agcn.teacher, strategy.plugins.index(strategy.acm) + 1
    strategy.plugins[at:at] = [
        StatisticalNegativesPlugin(),
        DecoupledTrainingPlugin(teacher=teacher),
        DriftCompensationPlugin(n_images=0, teacher=teacher),
        watch(before_training_exp=count),
    ]
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    assert len(calls) == sum(-(-len(experience.dataset) // 8) for experience in benchmark.train_stream)


def test_ridge_over_a_trained_network(benchmark, train):
    plugin = DecoupledTrainingPlugin()
    drift = DriftCompensationPlugin(n_images=30, teacher=plugin.teacher)
    strategy = train(plugin, drift, kind=StreamingRidge)
    assert not same(strategy.model.backbone, make_model().backbone)
    images, targets, _ = zip(*benchmark.train_stream[2].dataset)
    with torch.no_grad():
        found = strategy.model.eval()(torch.stack(images))[:, 4:] > 0
    assert (found == torch.stack(targets)[:, 4:].bool()).float().mean() > 0.7
    with pytest.raises(ValueError, match="network was trained"):
        strategy.forget(benchmark.train_stream[0].dataset)


def test_evaluation_after_each_epoch_does_not_change_the_solution(benchmark, make_strategy):
    models = []
    for every in (-1, 1):
        plugin = DecoupledTrainingPlugin()
        plugins = plugin, DriftCompensationPlugin(n_images=9, teacher=plugin.teacher)
        settings = {"model": make_model(), "lr": 0.05, "seed": 0, "eval_every": every}
        strategy = make_strategy(*plugins, kind=StreamingRidge, **settings)
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[benchmark.test_stream])
        models.append(strategy.model)
    assert same(*models)


def test_missing_parts_and_an_experience_that_is_trained_on_twice_are_named(benchmark, train):
    with pytest.raises(ValueError, match="collects no feature statistics"):
        train(DecoupledTrainingPlugin(), DriftCompensationPlugin())
    first = benchmark.train_stream[0]
    with pytest.raises(ValueError, match=r"Experience 0 was trained on before, .* use train_epochs"):
        train(DriftCompensationPlugin(n_images=0), kind=StreamingRidge, stream=[first, first])
    model = make_model()
    model.auxiliary = None
    with pytest.raises(TypeError, match="decoupled=True"):
        train(DecoupledTrainingPlugin(), model=model)
    with pytest.raises(ValueError, match="only its auxiliary head trains the network, but no plugin trains"):
        train()
    with pytest.raises(ValueError, match="needs an optimizer"):
        StreamingRidge(model=model, plugins=[DecoupledTrainingPlugin()])
    with pytest.raises(KeyError, match="offset"):  # the state of another plugin
        DriftCompensationPlugin().load_state_dict({"offset": torch.zeros(())})
