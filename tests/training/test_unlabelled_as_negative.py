"""Streams whose targets are 0, not NaN, outside of an experience's own columns (the B protocols)."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

from avalanche_agcn.benchmarks.multilabel import assemble, make_plan
from avalanche_agcn.benchmarks.protocols import resolve_protocol
from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import (
    AGCN,
    AugmentedCorrelationMatrix,
    FeatureStatistics,
    FineTuning,
    MultiTask,
    StreamingRidge,
)
from avalanche_agcn.training.plugins import ACMPlugin, FeatureStatisticsPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer


@pytest.fixture
def zeros(benchmark):
    """Three experiences of two classes, images repeated, unlabelled as 0."""
    plan = benchmark.plan
    rules = resolve_protocol("B0-C2", paper_sizes=None, without=["crowds", "difficult", "image_size", "flip"])
    sources = plan.train.source, plan.evaluation["test"].source
    return assemble(make_plan(*sources, rules, class_names=None))


def train(strategy_class, model, stream, *plugins, **settings):
    strategy = strategy_class(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        plugins=list(plugins),
        evaluator=EvaluationPlugin(),
        **settings,
    )
    for experience in stream:
        strategy.train(experience)
    return strategy


def test_statistics_count_own_columns_of_the_experience_only(zeros, make_model):
    collector, acm = FeatureStatisticsPlugin(), ACMPlugin()
    replay = OnlineReplayPlugin(ReservoirBuffer(20))
    model = MultiLabelClassifier(make_model().backbone, 6).requires_grad_(False)
    model.classifier.requires_grad_(True)
    train(FineTuning, model, zeros.train_stream, collector, acm, replay)
    labels, correlations = FeatureStatistics(), AugmentedCorrelationMatrix()
    for experience in zeros.train_stream:
        images = torch.stack([x for x, _, _ in experience.dataset])
        own = experience.dataset.targets.data[:, experience.classes_in_this_experience]
        labels.begin(2)
        labels.update(model.features(images), own)
        correlations.begin(2)
        correlations.update(own)
    for t in range(3):
        assert collector.statistics.count(t) == len(zeros.train_stream[t].dataset)  # replayed images do not
        torch.testing.assert_close(collector.statistics.moments(t), labels.moments(t))
    assert torch.equal(acm.acm.matrix(), correlations.matrix())


def test_old_classes_are_trained_as_negatives(zeros, make_model):
    model = MultiLabelClassifier(make_model().backbone, 6)
    strategy = train(FineTuning, model, zeros.train_stream[:1])
    before = model.classifier.bias.detach().clone()
    strategy.train(zeros.train_stream[1])
    moved = model.classifier.bias.detach() - before
    assert (moved[:2] < 0).all()
    assert (moved[4:] == 0).all()  # not seen yet


def test_skipped_experiences_are_noticed(zeros, make_model):
    model = make_model()
    train(FineTuning, model, zeros.train_stream[:1])
    with pytest.raises(ValueError, match=r"2 of them in this experience, but .* has counted 0"):
        train(AGCN, model, zeros.train_stream[1:2])


def test_multi_task_does_not_take_them_for_complete_labels(zeros, make_model):
    model = MultiLabelClassifier(make_model().backbone, 6)
    with pytest.raises(ValueError, match=r"needs all labels of every image"):
        train(MultiTask, model, zeros.train_stream)


def test_images_whose_experience_is_not_known_cannot_be_forgotten(zeros, make_model):
    model = MultiLabelClassifier(make_model().backbone, 6)
    strategy = train(StreamingRidge, model, zeros.train_stream)
    before = strategy.statistics.count(0)
    with pytest.raises(ValueError, match="do not tell which one an image was trained in"):
        strategy.forget(zeros.train_stream[0].dataset)
    assert strategy.statistics.count(0) == before


def test_replay_that_cannot_be_told_from_the_stream_is_rejected(zeros, benchmark, make_model):
    def run(stream, plugin):
        model, replay = MultiLabelClassifier(make_model().backbone, 6), ReplayPlugin(mem_size=20)
        return train(FineTuning, model, stream, plugin, replay)

    for plugin in (FeatureStatisticsPlugin, ACMPlugin):
        with pytest.raises(ValueError, match=r"unlabelled_as_negative=True: use OnlineReplayPlugin"):
            run(zeros.train_stream, plugin())
    counted = FeatureStatisticsPlugin()
    run(benchmark.train_stream, counted)  # where NaN tells them apart
    sizes = [len(experience.dataset) for experience in benchmark.train_stream]
    assert [counted.statistics.count(t) for t in range(3)] == sizes
