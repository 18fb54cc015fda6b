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


def steps_of(optimizer):
    """How many steps Adam's moments are of."""
    return max(int(state["step"]) for state in optimizer.state.values())


class Watch(SupervisedPlugin):
    """Calls a function after each step and keeps what it returns."""

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, []

    def after_update(self, strategy, **kwargs):
        self.seen.append(self.look(strategy))


def test_default_metrics_are_not_accuracy(make_model):
    model = make_model()
    strategy = MultiLabelTemplate(model=model, optimizer=SGD(model.parameters(), lr=0.1))
    names = [str(metric) for metric in strategy.evaluator.metrics]
    assert any("mAP" in name or "Nested" in name for name in names)
    assert not any(isinstance(getattr(m, "_metric", m), Accuracy) for m in strategy.evaluator.metrics)


def test_default_criterion_is_made_for_each_strategy(make_model):
    model = make_model()
    made = [
        MultiLabelTemplate(model=model, optimizer=SGD(model.parameters(), lr=0.1))._criterion
        for _ in range(2)
    ]
    assert all(isinstance(criterion, PartialBCEWithLogitsLoss) for criterion in made)
    assert made[0] is not made[1]


def test_bfloat16_reaches_the_backbone_and_stays_near_full_precision(benchmark, make_model):
    types = Watch(lambda strategy: strategy.model.backbone.seen)
    half, full = make_model(), make_model()
    half.backbone.register_forward_hook(lambda m, x, y: setattr(m, "seen", y.dtype))
    train(benchmark, half, amp=torch.bfloat16, plugins=[types])
    train(benchmark, full)
    assert set(types.seen) == {torch.bfloat16}
    assert not torch.equal(half.gcn.first.weight, full.gcn.first.weight)
    torch.testing.assert_close(half.gcn.first.weight, full.gcn.first.weight, rtol=0, atol=0.05)


def test_float16_gradients_are_scaled_and_unscaled(benchmark, make_model):
    scales = Watch(lambda strategy: strategy.scaler.get_scale())
    half, full = make_model(), make_model()
    train(benchmark, half, amp=torch.float16, plugins=[scales])
    train(benchmark, full)
    assert scales.seen[0] > 1
    torch.testing.assert_close(half.gcn.first.weight, full.gcn.first.weight, rtol=0, atol=0.05)


def test_gradient_is_clipped(benchmark, make_model):
    def norm(strategy):
        return torch.stack([p.grad.norm() for p in strategy.model.parameters()]).norm().item()

    for limit in (1e-3, None):
        watch = Watch(norm)
        train(benchmark, make_model(), clip_grad_norm=limit, plugins=[watch])
        assert (max(watch.seen) < 1.01e-3) == (limit is not None)


def test_optimizer_forgets_its_moments_with_each_experience(benchmark, make_model):
    def steps(strategy):
        return int(next(iter(strategy.optimizer.state.values()))["step"])

    for reset in (True, False):
        watch = Watch(steps)
        train(benchmark, make_model(), reset_optimizer_state=reset, plugins=[watch])
        n = len(watch.seen)
        assert (watch.seen == list(range(1, n + 1))) == (not reset)
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


def test_online_streams_are_trained_on(benchmark, make_model):
    model = make_model()
    optimizer = Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.01))
    watch = Watch(lambda strategy: (model.n_seen, steps_of(optimizer)))
    strategy = MultiLabelTemplate(
        model=model, optimizer=optimizer, plugins=[watch], evaluator=EvaluationPlugin()
    )
    sizes = [len(experience.dataset) for experience in benchmark.train_stream[:2]]
    for experience in split_online_stream(benchmark.train_stream[:2], experience_size=8):
        strategy.train(experience)
    # Adam's moments are forgotten when an experience begins, not at each of its pieces.
    expected = [
        (seen, k) for seen, n in zip((2, 4), sizes, strict=True) for k in range(1, math.ceil(n / 8) + 1)
    ]
    assert watch.seen == expected


def test_moments_are_forgotten_at_each_experience_even_if_it_is_the_same(benchmark, make_model):
    model = make_model()
    optimizer = Adam(model.parameter_groups(lr_backbone=0.01, lr_gcn=0.01))
    strategy = MultiLabelTemplate(
        model=model, optimizer=optimizer, train_mb_size=100, evaluator=EvaluationPlugin()
    )
    first = benchmark.train_stream[0]
    for settings, steps in (({}, 1), ({}, 1), ({"reset_optimizer_state": False}, 2)):
        strategy.train(first, **settings)
        assert steps_of(optimizer) == steps
