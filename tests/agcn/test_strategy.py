import math

import pytest
import torch
from avalanche.training import Naive
from avalanche.training.plugins import LRSchedulerPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from avalanche_agcn.evaluation import f1_metrics, mean_average_precision_metrics, multilabel_evaluator
from avalanche_agcn.training import AGCN, GraphOptions, PartialBCEWithLogitsLoss, adjacency
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer


def make_optimizer(model):
    return Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.01))


@pytest.fixture
def train(train, make_model):
    """Train AGCN, or its model under another strategy."""

    def run(*plugins, model=None, kind=AGCN, **settings):
        model = model or make_model()
        own = {"lambda_gph": 10.0} if kind is AGCN else {}
        settings = {"optimizer": make_optimizer(model)} | own | settings
        return train(*plugins, kind=kind, model=model, **settings)

    return run


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_agcn_is_naive_with_its_two_plugins(train, same_weights, preset):
    plugins, loader = [AGCNPlugin(lambda_gph=10.0), ACMPlugin(preset=preset)], {"shuffle": False}
    naive = train(*plugins, kind=Naive, loader={**loader, "reset_optimizer_state": True})
    assert same_weights(train(preset=preset, loader=loader), naive)


@pytest.mark.parametrize(
    ("name", "buffer"), [("er", ReservoirBuffer), ("prs", PRSBuffer), ("ocdm", OCDMBuffer)]
)
def test_a_memory_by_name_is_the_replay_plugin_after_agcns_own(train, same_weights, name, buffer):
    memory = {"batch_size_mem": 3, "newer_as_negative": True}
    plugin = OnlineReplayPlugin(buffer(6, seed=4), **memory)
    by_name = train(mem_size=6, storage_policy=name, seed=4, **memory)
    assert same_weights(by_name, train(plugin, seed=4))


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "official"},
        {"lambda_cls": 0.5},
        {"lambda_dst": 0.1},
        {"lambda_gph": 0.0},
        {"reduction": "sum"},
        {"gph_reduction": "sum"},
        {"soft_labels": "softmax"},
        {"graph": "identity"},
        {"graph": "plain"},
        {"graph_options": GraphOptions(cross_blocks=False)},
        {"graph_options": GraphOptions(neighbour_weight=0.5)},
        {"q_counts": "stream"},
        {"preset": "official", "graph_options": GraphOptions(new_threshold=0.99)},
        {"preset": "official", "graph_options": GraphOptions(cross_threshold=0.01)},
    ],
    ids=str,
)
def test_every_setting_changes_what_is_learned_and_those_of_the_graph_reach_it(train, settings):
    preset = {"preset": settings["preset"]} if len(settings) > 1 else {}
    default, changed = train(**preset), train(**settings)
    assert not torch.equal(default.model.gcn.first.weight, changed.model.gcn.first.weight)
    graph = settings.get("graph", settings.get("preset", "paper"))
    expected = adjacency(changed.acm.acm, graph, settings.get("graph_options"))
    torch.testing.assert_close(changed.model.adjacency, expected.float())


def test_old_classes_are_forgotten_less_than_without_the_teacher(benchmark, train, rows_of):
    images, targets = rows_of(benchmark.train_stream[0])

    def loss(**settings):
        model = train(train_epochs=5, **settings).model.eval()
        return PartialBCEWithLogitsLoss()(model(images), targets)

    assert loss() < 0.8 * loss(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0)


def test_everything_at_once(benchmark, make_model, train):
    model = make_model(channels_last=True, freeze_batchnorm=True, frozen=["0"])
    model.backbone.layers.insert(1, nn.BatchNorm2d(8))
    optimizer, frozen = make_optimizer(model), model.backbone.layers[0].weight.clone()
    replay = ReplayPlugin(mem_size=10, storage_policy=ReservoirSamplingBuffer(max_size=10))
    scheduler = LRSchedulerPlugin(ExponentialLR(optimizer, gamma=0.9), reset_lr=False)
    more = {"train_epochs": 2, "amp": torch.bfloat16, "clip_grad_norm": 1.0, "eval_every": 1}
    strategy = train(replay, scheduler, model=model, optimizer=optimizer, stream=[], **more)
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[benchmark.test_stream[: t + 1]])
    assert torch.equal(model.backbone.layers[0].weight, frozen)
    assert torch.equal(model.backbone.layers[1].running_mean, torch.zeros(8))
    assert len(replay.storage_policy.buffer) == 10
    assert strategy.acm.acm.block_sizes == (2, 2, 2)
    assert strategy.agcn.teacher.model.n_seen == 4
    assert all(p.isfinite().all() for p in model.parameters())
    assert optimizer.param_groups[0]["lr"] < 0.01


@pytest.mark.slow
def test_compiled_backbone_learns_the_same(make_model, train):
    compiled, plain = make_model(compile=True), make_model()
    for model in (compiled, plain):
        train(model=model, optimizer=SGD(model.parameters(), lr=0.05))
    for a, b in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert compiled.backbone.layers._compiled_call_impl is not None


def test_evaluation_before_any_training_has_no_scores(benchmark, train):
    more = [mean_average_precision_metrics(stream=True), f1_metrics(stream=True)]
    strategy = train(stream=[], evaluator=multilabel_evaluator(*more, loggers=[]))
    found = strategy.eval(benchmark.test_stream[:1])
    assert "mAP_Stream/eval_phase/test_stream" not in found
    assert math.isnan(found["mAP_Nested/eval_phase/test_stream/Exp000"])
    strategy.train(benchmark.train_stream[0])
    assert strategy.eval(benchmark.test_stream[:1])["mAP_Stream/eval_phase/test_stream"] > 0
