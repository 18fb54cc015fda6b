import copy
import math

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.evaluation.metrics import Accuracy
from avalanche.training.plugins import LRSchedulerPlugin
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.template import MultiLabelTemplate


@pytest.fixture
def train(train, make_model):
    """Train AGCN's model without AGCN, on the first two experiences."""

    def run(*plugins, model=None, **settings):
        model = model or make_model()
        optimizer = Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.02))
        settings = {"kind": MultiLabelTemplate, "optimizer": optimizer, "n": 2} | settings
        return train(*plugins, model=model, **settings)

    return run


def steps_of(strategy):
    """Number of steps in Adam's moments."""
    return max(int(state["step"]) for state in strategy.optimizer.state.values())


def test_default_metrics_are_not_accuracy_and_the_criterion_is_made_for_each_strategy(make_model):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    one, other = (MultiLabelTemplate(model=model, optimizer=optimizer) for _ in range(2))
    metrics = one.evaluator.metrics
    assert any("mAP" in str(metric) or "Nested" in str(metric) for metric in metrics)
    assert not any(isinstance(getattr(metric, "_metric", metric), Accuracy) for metric in metrics)
    assert isinstance(one._criterion, PartialBCEWithLogitsLoss)
    assert one._criterion is not other._criterion


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_half_precision_reaches_the_backbone_and_stays_near_full_precision(make_model, train, watch, amp):
    model, full = make_model(), train().model
    types = watch(after_update=lambda strategy: (model.backbone.seen, strategy.scaler.get_scale() > 1))
    model.backbone.register_forward_hook(lambda m, x, y: setattr(m, "seen", y.dtype))
    half = train(types, model=model, amp=amp).model
    assert types.seen["after_update"][0] == (amp, amp is torch.float16)  # whose gradients are scaled
    assert not torch.equal(half.gcn.first.weight, full.gcn.first.weight)
    torch.testing.assert_close(half.gcn.first.weight, full.gcn.first.weight, rtol=0, atol=0.05)


@pytest.mark.parametrize("limit", [1e-3, None])
def test_gradient_is_clipped(train, watch, limit):
    def norm(strategy):
        return torch.stack([p.grad.norm() for p in strategy.model.parameters()]).norm().item()

    norms = watch(after_update=norm)
    train(norms, clip_grad_norm=limit)
    assert (max(norms.seen["after_update"]) < 1.01e-3) == (limit is not None)


@pytest.mark.parametrize("reset", [True, False])
def test_optimizer_resets_its_moments_with_each_experience_and_keeps_its_learning_rates(train, watch, reset):
    steps = watch(after_update=steps_of)
    optimizer = train(steps, reset_optimizer_state=reset).optimizer
    found = steps.seen["after_update"]
    assert (found == list(range(1, len(found) + 1))) == (not reset)
    assert found.count(1) == (2 if reset else 1)
    assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [(0.01, 4), (0.02, 2)]


def test_scheduler_changes_the_learning_rate_and_resets_it(make_model, train, watch):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LRSchedulerPlugin(ExponentialLR(optimizer, gamma=0.5), reset_lr=True)
    rates = watch(after_update=lambda strategy: optimizer.param_groups[0]["lr"])
    train(scheduler, rates, model=model, optimizer=optimizer, train_epochs=2)
    assert sorted(set(rates.seen["after_update"])) == [0.05, 0.1]
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("peval_mode", ["epoch", "iteration"])
def test_evaluation_while_training_changes_nothing(train, peval_mode):
    # One batch per epoch: the order of images, which evaluation's loaders change, has no influence.
    settings = {"train_mb_size": 100, "train_epochs": 3, "n": 1}
    watched, plain = train(eval_every=1, peval_mode=peval_mode, **settings), train(**settings)
    for a, b in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_pieces_of_online_streams_keep_the_moments_of_their_experience(benchmark, train, watch):
    stream = benchmark.train_stream[:2]
    steps = watch(after_update=lambda strategy: (strategy.model.n_seen, steps_of(strategy)))
    train(steps, stream=split_online_stream(stream, experience_size=8))
    n_batches = [math.ceil(len(experience.dataset) / 8) for experience in stream]
    assert steps.seen["after_update"] == [(2 * t + 2, k + 1) for t in (0, 1) for k in range(n_batches[t])]


def test_a_copy_keeps_the_moments_within_an_experience(benchmark, train, same_weights):
    pieces = list(split_online_stream(benchmark.train_stream[:1], experience_size=4))
    strategy = train(stream=pieces[:2])
    copied = copy.deepcopy(strategy)
    for one in (strategy, copied):
        one.train(pieces[2], eval_streams=[])
    assert steps_of(copied) == 3
    assert same_weights(strategy, copied)


def test_moments_are_reset_at_each_experience_even_if_it_is_the_same(benchmark, train):
    strategy = train(stream=[], train_mb_size=100)
    for settings, steps in (({}, 1), ({}, 1), ({"reset_optimizer_state": False}, 2)):
        strategy.train(benchmark.train_stream[0], **settings)
        assert steps_of(strategy) == steps
