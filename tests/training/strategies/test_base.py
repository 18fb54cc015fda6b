import math

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import Accuracy
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.strategies.base import MultiLabelTemplate


def train(benchmark, model, optimizer=None, n_experiences=2, **settings):
    strategy = MultiLabelTemplate(
        model=model,
        optimizer=optimizer or Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.01)),
        **{"evaluator": EvaluationPlugin(), **settings},
    )
    torch.manual_seed(0)
    for experience in benchmark.train_stream[:n_experiences]:
        strategy.train(experience)
    return strategy


def steps_of(strategy):
    """How many steps Adam's moments are of."""
    return max(int(state["step"]) for state in strategy.optimizer.state.values())


class Watch(SupervisedPlugin):
    """Calls a function after each step and keeps what it returns."""

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, []

    def after_update(self, strategy, **kwargs):
        self.seen.append(self.look(strategy))


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
def test_half_precision_reaches_the_backbone_and_stays_near_full_precision(benchmark, make_model, amp):
    watch = Watch(lambda strategy: (strategy.model.backbone.seen, strategy.scaler.get_scale() > 1))
    half, full = make_model(), make_model()
    half.backbone.register_forward_hook(lambda m, x, y: setattr(m, "seen", y.dtype))
    train(benchmark, half, amp=amp, plugins=[watch])
    train(benchmark, full)
    assert watch.seen[0] == (amp, amp is torch.float16)  # whose gradients are scaled, and unscaled
    assert not torch.equal(half.gcn.first.weight, full.gcn.first.weight)
    torch.testing.assert_close(half.gcn.first.weight, full.gcn.first.weight, rtol=0, atol=0.05)


def test_gradient_is_clipped(benchmark, make_model):
    def norm(strategy):
        return torch.stack([p.grad.norm() for p in strategy.model.parameters()]).norm().item()

    for limit in (1e-3, None):
        watch = Watch(norm)
        train(benchmark, make_model(), clip_grad_norm=limit, plugins=[watch])
        assert (max(watch.seen) < 1.01e-3) == (limit is not None)


def test_optimizer_forgets_its_moments_with_each_experience(benchmark, make_model):
    for reset in (True, False):
        watch = Watch(steps_of)
        train(benchmark, make_model(), reset_optimizer_state=reset, plugins=[watch])
        assert (watch.seen == list(range(1, len(watch.seen) + 1))) == (not reset)
        assert watch.seen.count(1) == (2 if reset else 1)


def test_learning_rates_of_the_groups_are_kept(benchmark, make_model):
    model = make_model()
    optimizer = Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.02))
    train(benchmark, model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 2]


def test_scheduler_changes_the_learning_rate_and_resets_it(benchmark, make_model):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LRSchedulerPlugin(ExponentialLR(optimizer, gamma=0.5), reset_lr=True)
    watch = Watch(lambda strategy: optimizer.param_groups[0]["lr"])
    train(benchmark, model, optimizer, train_epochs=2, plugins=[scheduler, watch])
    assert sorted(set(watch.seen)) == [0.05, 0.1]
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("peval_mode", ["epoch", "iteration"])
def test_evaluation_while_training_changes_nothing(benchmark, make_model, peval_mode):
    watched, plain = make_model(), make_model()
    # One batch an epoch: the order of images, which evaluation's loaders change, plays no part.
    settings = {"train_mb_size": 100, "train_epochs": 3, "n_experiences": 1}
    train(benchmark, plain, **settings)
    train(benchmark, watched, eval_every=1, peval_mode=peval_mode, **settings)
    for a, b in zip(watched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_pieces_of_online_streams_keep_the_moments_of_their_experience(benchmark, make_model):
    watch = Watch(lambda strategy: (strategy.model.n_seen, steps_of(strategy)))
    strategy = train(benchmark, make_model(), n_experiences=0, plugins=[watch])
    for experience in split_online_stream(benchmark.train_stream[:2], experience_size=8):
        strategy.train(experience)
    n_batches = [math.ceil(len(experience.dataset) / 8) for experience in benchmark.train_stream[:2]]
    assert watch.seen == [(2 * t + 2, k + 1) for t in (0, 1) for k in range(n_batches[t])]


def test_moments_are_forgotten_at_each_experience_even_if_it_is_the_same(benchmark, make_model):
    strategy = train(benchmark, make_model(), n_experiences=0, train_mb_size=100)
    for settings, steps in (({}, 1), ({}, 1), ({"reset_optimizer_state": False}, 2)):
        strategy.train(benchmark.train_stream[0], **settings)
        assert steps_of(strategy) == steps
