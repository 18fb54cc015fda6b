import os
import subprocess
import sys

import pytest
import torch
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

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


def test_an_unknown_memory_is_named(make_model):
    with pytest.raises(ValueError, match=r"one of \('er', 'prs', 'ocdm'\), not 'reservoir'"):
        make_strategy(make_model(), storage_policy="reservoir")


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
    train(make_strategy(default, preset=settings.get("preset", "paper")), benchmark)
    if settings == {"preset": "official"}:
        default = make_model()
        train(make_strategy(default), benchmark)
    train(make_strategy(changed, **settings), benchmark)
    assert not torch.equal(default.gcn.first.weight, changed.gcn.first.weight)


def test_same_seed_gives_the_same_model(benchmark, make_model):
    models = [make_model(), make_model()]
    for model in models:
        train(make_strategy(model), benchmark)
    assert_same(*models)


def test_old_classes_are_forgotten_less_than_without_the_teacher(benchmark, make_model):
    images, targets, _ = zip(*benchmark.train_stream[0].dataset, strict=True)
    images, targets = torch.stack(images), torch.stack(targets)

    def loss(**settings):
        model = make_model()
        train(make_strategy(model, train_epochs=5, **settings), benchmark)
        return PartialBCEWithLogitsLoss()(model.eval()(images), targets)

    assert loss() < 0.8 * loss(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0)


def test_memory_beside_agcn_is_one_more_plugin(benchmark, make_model):
    replay = ReplayPlugin(mem_size=20, storage_policy=ReservoirSamplingBuffer(max_size=20))
    strategy = make_strategy(make_model(), plugins=[replay])
    train(strategy, benchmark)
    assert len(replay.storage_policy.buffer) == 20
    assert strategy.acm.acm.block_sizes == (2, 2, 2)


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
        plugins=[
            replay,
            LRSchedulerPlugin(ExponentialLR(optimizer, gamma=0.9), reset_lr=False),
        ],
    )
    frozen = model.backbone.layers[0].weight.clone()
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[benchmark.test_stream[: t + 1]])
    assert torch.equal(model.backbone.layers[0].weight, frozen)
    assert torch.equal(model.backbone.layers[1].running_mean, torch.zeros(8))
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


def test_callers_plugins_are_not_touched(make_model):
    plugins = []
    strategy = make_strategy(make_model(), plugins=plugins)
    assert plugins == []
    assert strategy.agcn in strategy.plugins
    assert strategy.acm in strategy.plugins


def test_other_models_are_refused():
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="AGCNModel"):
        AGCN(model=model, optimizer=SGD(model.parameters(), lr=0.1), evaluator=EvaluationPlugin())


PROCESS = """
import sys
import torch
from avalanche.distributed import DistributedHelper
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import TensorDataset
from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.models import AGCNModel, Backbone
from avalanche_agcn.training import AGCN

DistributedHelper.init_distributed(random_seed=0, backend="gloo", use_cuda=False)
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 3, 8, 8))
data.targets = torch.eye(4).repeat(16, 1).roll(1, 1) + torch.eye(4).repeat(16, 1)
benchmark = multilabel_benchmark(data, data, n_experiences=2)
backbone = Backbone(torch.nn.Conv2d(3, 4, 3), num_features=4)
model = AGCNModel(backbone, torch.randn(4, 5), hidden_features=6)
strategy = AGCN(
    model=DistributedHelper.wrap_model(model),
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    lambda_gph=1.0,
    train_mb_size=4,
    evaluator=EvaluationPlugin(),
)
torch.manual_seed(DistributedHelper.rank)  # different batches
for experience in benchmark.train_stream:
    strategy.train(experience)
parts = {"model": model, "agcn": strategy.agcn, "acm": strategy.acm}
state = {name: part.state_dict() for name, part in parts.items()}
torch.save(state, f"{sys.argv[1]}/{DistributedHelper.rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_hold_the_same_model_and_statistics(tmp_path):
    (tmp_path / "run.py").write_text(PROCESS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [str(tmp_path / "run.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, timeout=300, env=environment)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for part in ("model", "agcn", "acm"):
        for name, value in ranks[0][part].items():
            assert torch.equal(value, ranks[1][part][name]), (part, name)
    assert ranks[0]["acm"]["cross"].gt(0).all()
