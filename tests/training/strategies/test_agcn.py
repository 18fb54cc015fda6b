import math

import pytest
import torch
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from avalanche_agcn.evaluation import f1_metrics, mean_average_precision_metrics, multilabel_evaluator
from avalanche_agcn.training import AGCN, PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer


def make_optimizer(model):
    return Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.01))


def make_strategy(model, **settings):
    defaults = {"optimizer": make_optimizer(model), "train_mb_size": 8, "lambda_gph": 10.0}
    return AGCN(model=model, **{**defaults, "evaluator": EvaluationPlugin(), **settings})


def train(strategy, benchmark, **settings):
    torch.manual_seed(0)
    for experience in benchmark.train_stream:
        strategy.train(experience, **settings)


def assert_same(model, other):
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_agcn_is_naive_with_its_two_plugins(benchmark, make_model, preset):
    ours, theirs = make_model(), make_model()
    train(make_strategy(ours, preset=preset), benchmark, shuffle=False)
    naive = Naive(
        model=theirs,
        optimizer=make_optimizer(theirs),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=8,
        plugins=[AGCNPlugin(lambda_gph=10.0), ACMPlugin(preset=preset)],
        evaluator=EvaluationPlugin(),
    )
    train(naive, benchmark, reset_optimizer_state=True, shuffle=False)
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("name", "buffer"), [("er", ReservoirBuffer), ("prs", PRSBuffer), ("ocdm", OCDMBuffer)]
)
def test_a_memory_by_name_is_the_replay_plugin_behind_agcns_own(benchmark, make_model, name, buffer):
    by_name, by_plugin = make_model(), make_model()
    memory = {"batch_size_mem": 3, "newer_as_negative": True}
    train(make_strategy(by_name, mem_size=6, storage_policy=name, seed=4, **memory), benchmark)
    plugin = OnlineReplayPlugin(buffer(6, seed=4), **memory)
    train(make_strategy(by_plugin, plugins=[plugin], seed=4), benchmark)
    assert_same(by_name, by_plugin)


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
        {"cross_blocks": False},
        {"neighbour_weight": 0.5},
        {"q_counts": "stream"},
        {"preset": "official", "new_threshold": 0.99},
        {"preset": "official", "cross_threshold": 0.01},
    ],
    ids=str,
)
def test_every_setting_changes_what_is_learned(benchmark, make_model, settings):
    default, changed = make_model(), make_model()
    preset = {"preset": settings["preset"]} if len(settings) > 1 else {}
    train(make_strategy(default, **preset), benchmark)
    train(make_strategy(changed, **settings), benchmark)
    assert not torch.equal(default.gcn.first.weight, changed.gcn.first.weight)


def test_old_classes_are_forgotten_less_than_without_the_teacher(benchmark, make_model):
    images, targets, _ = zip(*benchmark.train_stream[0].dataset, strict=True)
    images, targets = torch.stack(images), torch.stack(targets)

    def loss(**settings):
        model = make_model()
        train(make_strategy(model, train_epochs=5, **settings), benchmark)
        return PartialBCEWithLogitsLoss()(model.eval()(images), targets)

    assert loss() < 0.8 * loss(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0)


def test_everything_at_once(benchmark, make_model):
    model = make_model(channels_last=True, freeze_batchnorm=True, frozen=["0"])
    model.backbone.layers.insert(1, nn.BatchNorm2d(8))
    optimizer = make_optimizer(model)
    replay = ReplayPlugin(mem_size=10, storage_policy=ReservoirSamplingBuffer(max_size=10))
    strategy = make_strategy(
        model,
        optimizer=optimizer,
        train_epochs=2,
        amp=torch.bfloat16,
        clip_grad_norm=1.0,
        eval_every=1,
        plugins=[replay, LRSchedulerPlugin(ExponentialLR(optimizer, gamma=0.9), reset_lr=False)],
    )
    frozen = model.backbone.layers[0].weight.clone()
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
def test_compiled_backbone_learns_the_same(benchmark, make_model):
    compiled, plain = make_model(compile=True), make_model()
    for model in (compiled, plain):
        strategy = make_strategy(model, optimizer=SGD(model.parameters(), lr=0.05))
        train(strategy, benchmark)
    for a, b in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert compiled.backbone.layers._compiled_call_impl is not None


def test_evaluation_before_any_training_has_no_scores(benchmark, make_model):
    more = [mean_average_precision_metrics(stream=True), f1_metrics(stream=True)]
    strategy = make_strategy(make_model(), evaluator=multilabel_evaluator(*more, loggers=[]))
    found = strategy.eval(benchmark.test_stream[:1])
    assert "mAP_Stream/eval_phase/test_stream" not in found
    assert math.isnan(found["mAP_Nested/eval_phase/test_stream/Exp000"])
    strategy.train(benchmark.train_stream[0])
    assert strategy.eval(benchmark.test_stream[:1])["mAP_Stream/eval_phase/test_stream"] > 0


def test_other_models_are_rejected():
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="AGCNModel"):
        AGCN(model=model, optimizer=SGD(model.parameters(), lr=0.1), evaluator=EvaluationPlugin())
