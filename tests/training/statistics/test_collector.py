"""Sums of features, and the expected loss of negatives from them."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import split_online_stream
from avalanche.training.plugins import ReplayPlugin
from sklearn.cluster import AgglomerativeClustering

from avalanche_agcn.models import Backbone, MultiLabelClassifier
from avalanche_agcn.training import AGCN, EWC, LwF, StreamingRidge
from avalanche_agcn.training.memory import OnlineReplayPlugin
from avalanche_agcn.training.plugins import ACMPlugin
from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
from avalanche_agcn.training.statistics.negatives import (
    StatisticalNegativesPlugin,
    group_by_means,
    statistical_negative_loss,
)
from avalanche_agcn.training.storage_policy import ReservoirBuffer


def frozen_model():
    """A classifier whose features do not change in training."""
    torch.manual_seed(0)
    backbone = Backbone(torch.nn.Conv2d(3, 5, 3), num_features=5, pool="avg").requires_grad_(False)
    return MultiLabelClassifier(backbone, 6)


def online_replay(**settings):
    return OnlineReplayPlugin(ReservoirBuffer(9), **settings)


@pytest.mark.parametrize("kind", [FeatureStatisticsPlugin, StatisticalNegativesPlugin])
@pytest.mark.parametrize(
    ("stream", "plugins", "settings"),
    [
        ("benchmark", [], {"train_epochs": 3, "train_mb_size": 5}),
        ("benchmark", [ReplayPlugin(mem_size=20)], {}),
        ("benchmark", [online_replay(views=2)], {}),
        ("benchmark", [online_replay(newer_as_negative=True)], {"kind": LwF}),
        ("benchmark", [], {"kind": EWC}),
        ("zeros", [online_replay()], {}),
    ],
)
def test_every_image_of_the_stream_counts_once(kind, request, train, sums_of, stream, plugins, settings):
    stream, model = request.getfixturevalue(stream).train_stream, frozen_model()
    collector, expected = kind(), sums_of(stream, model.backbone)
    train(*copy.deepcopy(plugins), collector, model=model, stream=stream, **settings)
    for t in range(3):
        torch.testing.assert_close(collector.statistics.moments(t), expected.moments(t), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", [ACMPlugin, FeatureStatisticsPlugin])
def test_avalanches_replay_of_an_online_stream_is_rejected(kind, benchmark, train):
    pieces = split_online_stream(benchmark.train_stream, experience_size=7)
    with pytest.raises(ValueError, match=r"ReplayPlugin would be counted .* pieces of an online stream have"):
        train(ReplayPlugin(mem_size=20), kind(), model=frozen_model(), stream=pieces)


def test_state_continues_within_an_experience_to_the_last_bit(train, watch):
    whole, resumed = FeatureStatisticsPlugin(), FeatureStatisticsPlugin()
    states = watch(after_training_iteration=lambda strategy: copy.deepcopy(whole.state_dict()))
    train(whole, states, model=frozen_model())
    # After the last batch, before the experience ends:
    resumed.load_state_dict(states.seen["after_training_iteration"][-1])
    assert torch.equal(resumed.statistics.moments(2), whole.statistics.moments(2))
    resumed.load_state_dict(whole.state_dict())
    train(resumed, model=frozen_model())  # all of it is counted already
    assert torch.equal(resumed.statistics.moments(2), whole.statistics.moments(2))


@pytest.fixture
def watch_loss(train, watch):
    """Train with a plugin, and return each step's loss before it and after it, with the classifiers."""

    def run(plugin, n=2, **settings):
        def look(strategy):
            return strategy.loss.item(), copy.deepcopy(strategy.model).classifiers()

        before, after = watch(before_backward=look), watch(before_backward=look)
        train(before, plugin, after, n=n, **settings)
        steps = zip(before.seen["before_backward"], after.seen["before_backward"], strict=True)
        return [(loss, total, classifiers) for (loss, classifiers), (total, _) in steps]

    return run


def test_added_loss_is_the_expected_negative_loss_of_new_classes(watch_loss):
    """Against sampling from the Gaussians."""
    plugin = StatisticalNegativesPlugin(weight=2.0)
    steps = watch_loss(plugin, model=frozen_model(), lr=0.5)
    assert all(loss == total for loss, total, _ in steps[: len(steps) // 3])
    mean, covariance = plugin.statistics.mean(0), plugin.statistics.covariance(0)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(5))
    generator = torch.Generator().manual_seed(0)
    samples = mean + torch.randn(200_000, 5, generator=generator, dtype=torch.float64) @ factor.T
    loss, total, (weight, bias) = steps[-1]
    scores = samples @ weight[2:4].double().T + bias[2:4]
    assert total - loss == pytest.approx(2 * F.softplus(scores).mean().item(), rel=0.02)


def test_merged_gaussians_have_the_moments_of_their_images_together(benchmark, rows_of, watch_loss):
    model = frozen_model()
    images = [rows_of(experience)[0] for experience in benchmark.train_stream[:2]]
    with torch.no_grad():
        parts = [model.features(part).double() for part in images]
    added = {}
    for limit in (None, 2, 1):
        plugin = StatisticalNegativesPlugin(max_gaussians=limit)
        loss, total, (weight, bias) = watch_loss(plugin, n=3, model=copy.deepcopy(model))[-1]
        groups = [torch.cat(parts)] if limit == 1 else parts
        expected = statistical_negative_loss(
            weight[4:6].double(),
            bias[4:6].double(),
            torch.stack([group.mean(0) for group in groups]),
            torch.stack([group.T.cov(correction=0) for group in groups]),
            torch.tensor([len(group) for group in groups]),
        )
        added[limit] = total - loss
        assert added[limit] == pytest.approx(expected.item(), rel=1e-3)
    assert added[None] == added[2]


@pytest.mark.parametrize("n_groups", [1, 2, 4, 9])
def test_experiences_are_grouped_as_wards_method_groups_their_images(n_groups):
    """With scikit-learn, whose points are given as often as there are images."""
    generator = torch.Generator().manual_seed(0)
    means, counts = torch.randn(9, 3, generator=generator), torch.arange(9) % 4 + 1
    groups = group_by_means(means, counts, n_groups)
    points = means.repeat_interleave(counts, dim=0)
    labels = AgglomerativeClustering(n_groups, linkage="ward").fit_predict(points)
    found = labels[(counts.cumsum(0) - 1).numpy()]  # one image of each experience
    expected = sorted(np.flatnonzero(found == label).tolist() for label in range(n_groups))
    assert sorted(sorted(group) for group in groups) == expected


def test_new_classes_score_lower_on_old_images(benchmark, train, rows_of):
    old, mean_scores = rows_of(benchmark.train_stream[0])[0], []
    for weight in (0.0, 1.0):
        plugin = StatisticalNegativesPlugin(weight=weight)
        strategy = train(plugin, model=frozen_model(), lr=0.5, train_epochs=10, n=2)
        with torch.no_grad():
            mean_scores.append(strategy.model(old)[:, 2:4].mean().item())
    assert mean_scores[1] < mean_scores[0] - 0.3


def test_agcns_first_weight_does_not_scale_it(make_model, watch_loss):
    added = []
    for lambda_cls in (0.1, 0.9):
        settings = {"kind": AGCN, "model": make_model(), "lambda_cls": lambda_cls, "seed": 0, "lr": 0.0}
        loss, total, _ = watch_loss(StatisticalNegativesPlugin(), **settings)[-1]
        added.append(total - loss)
    assert added[0] > 0.1
    assert added[0] == pytest.approx(added[1], rel=1e-3)


def test_batch_normalisation_that_learns_in_a_frozen_network_is_named(train, recwarn):
    def backbone(**settings):
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5))
        return Backbone(layers, num_features=5, pool="avg", **settings)

    for fixed in (backbone(frozen="all"), backbone(freeze_batchnorm=True).requires_grad_(False), backbone()):
        train(FeatureStatisticsPlugin(), model=MultiLabelClassifier(fixed, 6), n=1)
    learning = backbone().requires_grad_(False)
    train(model=MultiLabelClassifier(copy.deepcopy(learning), 6), kind=StreamingRidge, n=1)
    assert not [warning for warning in recwarn if "batch normalisation" in str(warning.message)]
    with pytest.warns(UserWarning, match=r"batch normalisation learns from each batch.*frozen=\"all\""):
        train(FeatureStatisticsPlugin(), model=MultiLabelClassifier(learning, 6), n=1)


def test_models_without_classifiers_and_diverging_networks_are_rejected(train):
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 6))
    with pytest.raises(TypeError, match="one weight vector per class, not Sequential"):
        train(StatisticalNegativesPlugin(), model=flat)
    model, collector = frozen_model(), FeatureStatisticsPlugin()
    next(model.backbone.parameters()).data.fill_(math.nan)
    with pytest.raises(ValueError, match="is nan: the network diverged"):
        train(collector, model=model)
    assert collector.statistics.count(0) == 0
