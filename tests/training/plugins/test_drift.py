import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.models import AGCNModel, Backbone, MultiLabelClassifier
from avalanche_agcn.training import AGCN, FineTuning, StreamingRidge
from avalanche_agcn.training.plugins import (
    DecoupledTrainingPlugin,
    DriftCompensationPlugin,
    FeatureStatisticsPlugin,
    StatisticalNegativesPlugin,
)


@pytest.fixture
def make_decoupled(benchmark):
    """A small trained network under a strategy with the given plugins."""

    def make(*plugins, strategy_class=FineTuning, lr=0.05, **settings):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 10, 3))
        backbone = Backbone(layers, num_features=10, pool="avg")
        model = MultiLabelClassifier(backbone, benchmark.n_classes, decoupled=True)
        model.auxiliary.reset_parameters()  # not 0, so that the network moves from the first step
        optimizer = torch.optim.SGD(model.parameters(), lr)
        return strategy_class(
            model=model,
            optimizer=optimizer,
            plugins=plugins,
            evaluator=EvaluationPlugin(),
            seed=0,
            **settings,
        )

    return make


def train(strategy, benchmark, n=3):
    for experience in benchmark.train_stream[:n]:
        strategy.train(experience, eval_streams=[])
    return strategy


def features_of(model, experience):
    images = torch.stack([row[0] for row in experience.dataset])
    with torch.no_grad():
        return model.features(images).double()


def test_classifiers_do_not_train_the_network(benchmark, make_decoupled):
    """With the auxiliary head's learning switched off, the network stays as it is."""
    strategy = make_decoupled(DecoupledTrainingPlugin(distillation=0.0))
    strategy.model.auxiliary.weight.data.zero_()
    strategy.model.auxiliary.requires_grad_(False)
    before = [p.clone() for p in strategy.model.backbone.parameters()]
    classifier = strategy.model.classifier.weight.clone()
    train(strategy, benchmark, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, strategy.model.backbone.parameters()))
    assert not torch.equal(classifier, strategy.model.classifier.weight)


def test_auxiliary_head_trains_the_network_as_a_coupled_head_would(benchmark, make_decoupled):
    decoupled = train(make_decoupled(DecoupledTrainingPlugin(distillation=0.0)), benchmark)
    coupled = make_decoupled()
    auxiliary, coupled.model.auxiliary = coupled.model.auxiliary, None
    coupled.model.classifier.load_state_dict(auxiliary.state_dict())
    train(coupled, benchmark)
    for a, b in zip(decoupled.model.backbone.parameters(), coupled.model.backbone.parameters()):
        torch.testing.assert_close(a, b)


def test_distillation_keeps_features_near_those_at_the_start_of_the_experience(benchmark, make_decoupled):
    moved = []
    for distillation in (0.0, 6.0):
        strategy = make_decoupled(DecoupledTrainingPlugin(distillation=distillation), train_epochs=5)
        before = features_of(strategy.model, benchmark.train_stream[0])
        train(strategy, benchmark, 1)
        moved.append((features_of(strategy.model, benchmark.train_stream[0]) - before).norm())
    assert moved[1] < 0.8 * moved[0]


@pytest.mark.parametrize("n_images", [0, 20, 1000])
def test_sums_follow_the_network(benchmark, make_decoupled, n_images):
    """Means of old experiences under the final network: nearer with compensation than without."""
    errors = {}
    for compensated in (False, True):
        collector, plugin = FeatureStatisticsPlugin(), DecoupledTrainingPlugin(distillation=0.1)
        drift = DriftCompensationPlugin(n_images=n_images, ridge=1.0, teacher=plugin.teacher)
        strategy = make_decoupled(collector, plugin, *([drift] if compensated else []), train_epochs=8)
        train(strategy, benchmark)
        errors[compensated] = sum(
            (collector.statistics.mean(t) - features_of(strategy.model, experience).mean(0)).norm().item()
            for t, experience in enumerate(benchmark.train_stream)
        )
    assert errors[True] < 0.6 * errors[False]


def test_frozen_network_needs_no_compensation(benchmark, make_decoupled):
    collectors = []
    for compensated in (False, True):
        collector, plugin = FeatureStatisticsPlugin(), DecoupledTrainingPlugin()
        drift = [DriftCompensationPlugin(n_images=10, teacher=plugin.teacher)] if compensated else []
        train(make_decoupled(collector, plugin, *drift, lr=0.0), benchmark)
        collectors.append(collector)
    for t in range(3):
        a, b = (collector.statistics.moments(t) for collector in collectors)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_teacher_is_asked_once_per_batch(benchmark, make_decoupled, make_model):
    """Also when AGCN, distillation, drift and statistics all need it."""
    calls = []

    class Count(SupervisedPlugin):
        def before_training_exp(self, strategy, **kwargs):
            strategy.agcn.teacher.model.backbone.register_forward_hook(lambda *_: calls.append(1))

    backbone = make_model().backbone
    model = AGCNModel(backbone, torch.randn(6, 5), hidden_features=12, decoupled=True)
    strategy = AGCN(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 0.01), evaluator=EvaluationPlugin()
    )
    teacher = strategy.agcn.teacher
    at = strategy.plugins.index(strategy.acm) + 1
    strategy.plugins[at:at] = [
        StatisticalNegativesPlugin(),
        DecoupledTrainingPlugin(teacher=teacher),
        DriftCompensationPlugin(n_images=0, teacher=teacher),
        Count(),
    ]
    train(strategy, benchmark)
    assert len(calls) == sum(-(-len(experience.dataset) // 8) for experience in benchmark.train_stream)


def test_ridge_over_a_trained_network(benchmark, make_decoupled):
    plugin = DecoupledTrainingPlugin()
    plugins = [plugin, DriftCompensationPlugin(n_images=30, teacher=plugin.teacher)]
    strategy = make_decoupled(*plugins, strategy_class=StreamingRidge)
    before = [p.clone() for p in strategy.model.backbone.parameters()]
    train(strategy, benchmark)
    assert not all(torch.equal(a, b) for a, b in zip(before, strategy.model.backbone.parameters()))
    images, targets, _ = zip(*benchmark.train_stream[2].dataset)
    with torch.no_grad():
        found = strategy.model.eval()(torch.stack(images))[:, 4:] > 0
    assert (found == torch.stack(targets)[:, 4:].bool()).float().mean() > 0.7
    with pytest.raises(ValueError, match="network was trained"):
        strategy.forget(benchmark.train_stream[0].dataset)


def test_an_experience_that_is_trained_on_twice_is_rejected(benchmark, make_decoupled):
    strategy = make_decoupled(DriftCompensationPlugin(n_images=0), strategy_class=StreamingRidge)
    train(strategy, benchmark, 1)
    with pytest.raises(ValueError, match=r"Experience 0 was trained on before, .* use train_epochs"):
        train(strategy, benchmark, 1)


def test_missing_parts_are_named(benchmark, make_decoupled):
    with pytest.raises(ValueError, match="collects no feature statistics"):
        train(make_decoupled(DriftCompensationPlugin()), benchmark, 1)
    strategy = make_decoupled(DecoupledTrainingPlugin())
    strategy.model.auxiliary = None
    with pytest.raises(TypeError, match="decoupled=True"):
        train(strategy, benchmark, 1)
    with pytest.raises(ValueError, match="needs an optimizer"):
        StreamingRidge(model=strategy.model, plugins=[DecoupledTrainingPlugin()])


@pytest.mark.parametrize("settings", [{"n_images": -1}, {"ridge": 0.0}])
def test_settings_out_of_range_are_rejected(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        DriftCompensationPlugin(**settings)
    with pytest.raises(ValueError, match="distillation"):
        DecoupledTrainingPlugin(distillation=-1.0)
