import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from torch import nn
from torch.optim import SGD

from avalanche_agcn.benchmarks.multilabel import assemble
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin


class Recorder(SupervisedPlugin):
    """Keeps what a step computed, before the backward pass and after the step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def before_backward(self, strategy, **kwargs):
        plugin = next(p for p in strategy.plugins if isinstance(p, AGCNPlugin))
        self.steps.append(
            {
                "x": strategy.mb_x,
                "y": strategy.mb_y,
                "logits": strategy.mb_output.detach(),
                "loss": strategy.loss.detach().clone(),
                "embeddings": strategy.model.embeddings().detach(),
                "teacher": copy.deepcopy(plugin.teacher.model),
            }
        )

    def after_backward(self, strategy, **kwargs):
        self.steps[-1]["gradients"] = {name: p.grad.clone() for name, p in strategy.model.named_parameters()}


def strategy_of(model, *plugins, lr=0.1):
    return Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=lr),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=8,
        plugins=list(plugins),
        evaluator=EvaluationPlugin(),
    )


def train(benchmark, model, plugin, n_experiences, *, graph="paper", lr=0.1):
    """Records of the steps of the last experience."""
    recorder = Recorder()
    strategy = strategy_of(model, plugin, ACMPlugin(graph=graph), recorder, lr=lr)
    for experience in benchmark.train_stream[:n_experiences]:
        recorder.steps.clear()
        torch.manual_seed(0)
        strategy.train(experience)
    return recorder.steps


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gph_reduction", ["mean", "sum"])
def test_loss_is_the_weighted_sum_of_three(benchmark, make_model, reduction, gph_reduction):
    plugin = AGCNPlugin(
        lambda_cls=0.3, lambda_dst=0.5, lambda_gph=0.7, reduction=reduction, gph_reduction=gph_reduction
    )
    steps = train(benchmark, make_model(), plugin, 3, lr=0.01)
    for step in steps:
        teacher, n_old, n_new = step["teacher"], 4, 2
        cls = F.binary_cross_entropy_with_logits(step["logits"][:, 4:], step["y"][:, 4:])
        soft = teacher(step["x"]).sigmoid()
        dst = F.binary_cross_entropy_with_logits(step["logits"][:, :4], soft)
        gph = (step["embeddings"][:4] - teacher.embeddings()).pow(2).mean()
        if reduction == "sum":
            cls, dst = n_new * cls, n_old * dst
        if gph_reduction == "sum":
            gph = gph * n_old * 16
        expected = 0.3 * cls + 0.5 * dst + 0.7 * gph
        torch.testing.assert_close(step["loss"].squeeze(), expected)
    assert gph > 0


def test_sum_is_over_all_labelled_classes_if_unlabelled_is_negative(benchmark, make_model):
    plan = replace(benchmark.plan, protocol=replace(benchmark.protocol, unlabelled_as_negative=True))
    plugin = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0, reduction="sum")
    for step in train(assemble(plan), make_model(), plugin, 3):
        expected = (
            F.binary_cross_entropy_with_logits(step["logits"], step["y"], reduction="none").sum(1).mean()
        )
        torch.testing.assert_close(step["loss"].squeeze(), expected)


def test_first_experience_has_the_criterion_alone(benchmark, make_model):
    plugin = AGCNPlugin(lambda_cls=0.5, lambda_dst=100.0, lambda_gph=100.0)
    for step in train(benchmark, make_model(), plugin, 1):
        expected = F.binary_cross_entropy_with_logits(step["logits"], step["y"][:, :2])
        torch.testing.assert_close(step["loss"].squeeze(), expected)
        assert step["teacher"] is None


def test_distillation_has_no_gradient_while_the_student_is_the_teacher(benchmark, make_model):
    def gradients(graph):
        plugin = AGCNPlugin(lambda_cls=0.0, lambda_dst=1.0, lambda_gph=0.0)
        steps = train(benchmark, make_model(), plugin, 2, graph=graph)
        return [max(g.abs().max() for g in step["gradients"].values()) for step in steps]

    assert max(gradients("identity")) < 1e-6
    # As soon as they differ there is one: here by the student's graph, which changes.
    assert gradients("paper")[-1] > 1e-4


def test_relationship_loss_pulls_old_nodes_only(benchmark, make_model):
    plugin = AGCNPlugin(lambda_cls=0.0, lambda_dst=0.0, lambda_gph=10.0)
    steps = train(benchmark, make_model(), plugin, 2, graph="paper", lr=0.3)
    distances = [(step["embeddings"][:2] - step["teacher"].embeddings()).pow(2).mean() for step in steps]
    # The graph moves with every batch, so the last step is compared with no pull at all.
    free = AGCNPlugin(lambda_cls=0.0, lambda_dst=1e-12, lambda_gph=0.0)
    unpulled = train(benchmark, make_model(), free, 2, graph="paper", lr=0.3)[-1]
    distance = (unpulled["embeddings"][:2] - unpulled["teacher"].embeddings()).pow(2).mean()
    assert distances[-1] < 0.5 * distance
    for step in steps:  # images play no part in it
        for name, gradient in step["gradients"].items():
            assert name.startswith("gcn") or not gradient.any()


def test_teacher_is_the_model_of_the_previous_experience_and_rests(benchmark, make_model):
    model, plugin = make_model(), AGCNPlugin(lambda_gph=1.0)
    strategy = strategy_of(model, plugin, ACMPlugin())
    for t, experience in enumerate(benchmark.train_stream):
        previous = {name: value.clone() for name, value in model.state_dict().items()}
        strategy.train(experience)
        if t == 0:
            assert plugin.teacher.model is None
            continue
        assert plugin.teacher.model.n_seen == 2 * t
        for name, value in plugin.teacher.model.state_dict().items():
            assert torch.equal(value, previous[name])
        assert not torch.equal(model.gcn.first.weight, plugin.teacher.model.gcn.first.weight)


def test_teacher_takes_no_gradient_and_no_optimizer_step(benchmark, make_model):
    model, plugin = make_model(), AGCNPlugin(lambda_gph=1.0)
    strategy = strategy_of(model, plugin, ACMPlugin())
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    optimized = {id(p) for group in strategy.optimizer.param_groups for p in group["params"]}
    for parameter in plugin.teacher.model.parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad
        assert id(parameter) not in optimized
    assert not any(module.training for module in plugin.teacher.model.modules())
    assert optimized == {id(p) for p in model.parameters()}


def test_teacher_passes_a_batch_once_its_gcn_once_an_experience_and_the_students_once_a_step(
    benchmark, make_model
):
    calls = {"backbone": 0, "gcn": 0, "student's gcn": 0, "steps": 0}

    class Counter(SupervisedPlugin):
        def before_training_exp(self, strategy, **kwargs):
            def count(name):
                return lambda *_: calls.update({name: calls[name] + 1})

            plugin.teacher.model.backbone.register_forward_hook(count("backbone"))
            plugin.teacher.model.gcn.register_forward_hook(count("gcn"))
            model.gcn.register_forward_hook(count("student's gcn"))

        def after_training_iteration(self, strategy, **kwargs):
            calls["steps"] += 1

    model, plugin, counter = make_model(), AGCNPlugin(lambda_gph=1.0), Counter()
    strategy = strategy_of(model, plugin, ACMPlugin())
    strategy.train(benchmark.train_stream[0])
    strategy.plugins.insert(0, counter)
    strategy.train(benchmark.train_stream[1])
    assert calls["backbone"] == calls["steps"] > 1
    assert calls["gcn"] == 1
    assert calls["student's gcn"] == calls["steps"]


def test_teacher_and_student_see_the_same_batch_norm_only_if_it_is_frozen(benchmark, make_model):
    largest = {}
    for frozen in (True, False):
        model = make_model(freeze_batchnorm=frozen)
        model.backbone.layers.insert(1, nn.BatchNorm2d(8))
        plugin = AGCNPlugin(lambda_cls=0.0, lambda_dst=1.0, lambda_gph=0.0)
        first = train(benchmark, model, plugin, 2, graph="identity")[0]
        largest[frozen] = max(g.abs().max() for g in first["gradients"].values())
    assert largest[True] < 1e-7
    assert largest[False] > 1e-4


def test_a_loaded_first_experience_has_nothing_of_the_teacher_before(benchmark, make_model):
    plugin = AGCNPlugin(lambda_gph=1.0)
    train(benchmark, make_model(), plugin, 2)
    assert plugin._old_embeddings is not None
    plugin.load_state_dict(AGCNPlugin().state_dict())
    assert plugin.teacher.model is plugin._old_embeddings is None


def test_order_of_the_two_plugins_does_not_matter(benchmark, make_model):
    states = []
    for turn in (1, -1):
        model = make_model()
        plugins = [AGCNPlugin(lambda_gph=1.0), ACMPlugin()][::turn]
        strategy = strategy_of(model, *plugins)
        torch.manual_seed(0)
        for experience in benchmark.train_stream:
            strategy.train(experience)
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


def test_saved_state_goes_on_in_the_middle_of_an_experience(benchmark, make_model, tmp_path):
    class Saver(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            if strategy.clock.train_exp_iterations == 1 and model.n_seen == 4:
                state = {"model": model, "agcn": agcn, "acm": acm}
                torch.save({k: v.state_dict() for k, v in state.items()}, tmp_path / "state.pt")

    model, agcn, acm = make_model(), AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    strategy = strategy_of(model, agcn, acm, Saver())
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    state = torch.load(tmp_path / "state.pt", weights_only=True)

    resumed = make_model(seed=1), AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    for part, name in zip(resumed, ("model", "agcn", "acm"), strict=True):
        part.load_state_dict(state[name])
    assert resumed[1].state_dict().keys() == agcn.state_dict().keys()  # before training too
    strategy_of(*resumed).train(benchmark.train_stream[1])
    assert resumed[2].acm.block_sizes == (2, 2)
    for name, value in agcn.teacher.model.state_dict().items():
        assert torch.equal(resumed[1].teacher.model.state_dict()[name], value)


def test_model_without_a_graph_is_rejected(benchmark):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
    with pytest.raises(TypeError, match="AGCNModel"):
        strategy_of(model, AGCNPlugin()).train(benchmark.train_stream[0])
