"""Each baseline is Fine-Tuning with its plugins, and Fine-Tuning is Naive with the partial loss."""

import pytest
import torch
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn import training
from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import (
    AGEM,
    ER,
    EWC,
    OCDM,
    PRS,
    SCR,
    FineTuning,
    LwF,
    MultiTask,
    PartialBCEWithLogitsLoss,
    strategies,
)
from avalanche_agcn.training.plugins import (
    AGEMPlugin,
    ContrastivePlugin,
    EWCPlugin,
    LwFPlugin,
    OnlineReplayPlugin,
)
from avalanche_agcn.training.storage_policy import (
    ExperienceReservoirBuffer,
    OCDMBuffer,
    PRSBuffer,
    ReservoirBuffer,
)
from avalanche_agcn.training.strategies import Replay

BASELINES = {
    "agem": (
        AGEM,
        {"mem_size": 12, "sample_size": 5},
        lambda: [AGEMPlugin(ExperienceReservoirBuffer(12, seed=1), sample_size=5)],
    ),
    "er": (
        ER,
        {"mem_size": 12, "batch_size_mem": 5},
        lambda: [OnlineReplayPlugin(ReservoirBuffer(12, seed=1), batch_size_mem=5)],
    ),
    "ewc": (
        EWC,
        {"ewc_lambda": 3.0, "fisher_images": 5},
        lambda: [EWCPlugin(ewc_lambda=3.0, fisher_images=5, seed=1)],
    ),
    "lwf": (LwF, {"alpha": 2.0, "temperature": 3.0}, lambda: [LwFPlugin(alpha=2.0, temperature=3.0)]),
    "ocdm": (
        OCDM,
        {"mem_size": 12, "rho": 0.5, "newer_as_negative": True},
        lambda: [OnlineReplayPlugin(OCDMBuffer(12, rho=0.5, seed=1), newer_as_negative=True)],
    ),
    "prs": (PRS, {"mem_size": 12, "rho": 0.5}, lambda: [OnlineReplayPlugin(PRSBuffer(12, rho=0.5, seed=1))]),
    "scr": (
        SCR,
        {"mem_size": 12, "batch_size_mem": 6, "contrast_weight": 0.5},
        lambda: [
            ContrastivePlugin(weight=0.5),
            OnlineReplayPlugin(ReservoirBuffer(12, seed=1), batch_size_mem=6, views=2),
        ],
    ),
}


@pytest.mark.parametrize("name", BASELINES)
def test_baseline_is_fine_tuning_with_its_plugins(name, run_stream, same_weights):
    strategy, settings, make_plugins = BASELINES[name]
    ours = run_stream(strategy, seed=1, **settings)
    assert same_weights(ours, run_stream(FineTuning, seed=1, plugins=make_plugins()))
    assert not same_weights(ours, run_stream(FineTuning, seed=1))


@pytest.mark.parametrize("name", [n for n in strategies.__all__ if isinstance(getattr(training, n, 0), type)])
def test_the_callers_plugins_are_used_and_their_list_is_not_changed(name, make_model):
    kind, graph, plugin = getattr(training, name), make_model(), LwFPlugin()
    model = graph if name in ("AGCN", "CSC") else MultiLabelClassifier(graph.backbone, 6)
    plugins, optimizer = [plugin], torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = kind(model=model, optimizer=optimizer, plugins=plugins, evaluator=EvaluationPlugin())
    assert plugins == [plugin]
    assert plugin in strategy.plugins
    assert kind in (FineTuning, MultiTask) or len(strategy.plugins) > 2  # its own, and the evaluator


def test_fine_tuning_is_naive_training_with_the_partial_loss(run_stream, same_weights):
    ours = run_stream(FineTuning, shuffle=False)
    naive = run_stream(Naive, shuffle=False, criterion=PartialBCEWithLogitsLoss())
    assert same_weights(ours, naive)


def test_fine_tuning_learns_the_last_experience_best(benchmark, run_stream):
    model = run_stream(FineTuning, train_epochs=5).model
    images, targets, _ = zip(*benchmark.train_stream[2].dataset, strict=True)
    images, targets = torch.stack(images), torch.stack(targets)
    found = (model(images)[:, 4:] > 0) == targets[:, 4:].bool()
    assert found.float().mean() > 0.8


@pytest.mark.parametrize(("mem_size", "train_mb_size"), [(10, 8), (1, 1)])
def test_replay_takes_any_memory_and_any_model(mem_size, train_mb_size, benchmark, make_model, run_stream):
    """AGCN's model without AGCN's losses; also with batches and a memory of one image."""
    strategy = run_stream(
        Replay, model=make_model(), storage_policy=PRSBuffer(mem_size), train_mb_size=train_mb_size
    )
    assert len(strategy.replay.storage_policy) == mem_size
    assert strategy.model(torch.zeros(2, 3, 8, 8)).shape == (2, 6)
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())
