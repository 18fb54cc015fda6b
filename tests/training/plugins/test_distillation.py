"""Plugins with a teacher: LwF, CSC's losses and pseudo-labels."""

import pytest
import torch
import torch.nn.functional as F
from avalanche.core import SupervisedPlugin

from avalanche_agcn.benchmarks.multilabel import assemble, make_plan
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.training.plugins import (
    ConfidencePenaltyPlugin,
    LwFPlugin,
    OnlineReplayPlugin,
    PseudoLabelPlugin,
)
from avalanche_agcn.training.storage_policy import ReservoirBuffer


def train(strategy, stream, n=2):
    for experience in stream[:n]:
        strategy.train(experience, eval_streams=[])
    return strategy


def images_of(experience):
    return torch.stack([experience.dataset[i][0] for i in range(10)])


PLUGINS = [
    lambda: LwFPlugin(alpha=3.0),
    lambda: ConfidencePenaltyPlugin(alpha=0.3),
    lambda: PseudoLabelPlugin(threshold=0.4),
]


@pytest.mark.parametrize("make_plugin", PLUGINS)
def test_teacher_is_the_model_before_the_experience(benchmark, make_strategy, make_plugin):
    plugin = make_plugin()
    strategy = train(make_strategy(plugin), benchmark.train_stream, 1)
    assert plugin.teacher.model is None
    before = {name: tensor.clone() for name, tensor in strategy.model.named_parameters()}
    strategy.train(benchmark.train_stream[1], eval_streams=[])
    assert plugin.teacher.n_old == 2
    for name, parameter in plugin.teacher.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert not parameter.requires_grad
        assert not torch.equal(parameter, dict(strategy.model.named_parameters())[name])


@pytest.mark.parametrize("make_plugin", PLUGINS)
def test_state_resumes_in_the_midst_of_an_experience(benchmark, make_strategy, tmp_path, make_plugin):
    plugin, again = make_plugin(), make_plugin()
    strategy = train(make_strategy(plugin, seed=0), benchmark.train_stream)
    torch.save([plugin.state_dict(), strategy.model.state_dict()], tmp_path / "state.pt")
    resumed = make_strategy(again, seed=0)
    of_plugin, of_model = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(of_plugin)
    resumed.model.load_state_dict(of_model)
    for one in (strategy, resumed):
        one.train(benchmark.train_stream[1], eval_streams=[])
    assert torch.equal(resumed.model.classifier.weight, strategy.model.classifier.weight)
    assert again.state_dict().keys() == plugin.state_dict().keys()


@pytest.mark.parametrize("kind", [ConfidencePenaltyPlugin, PseudoLabelPlugin])
def test_shared_teacher_is_neither_copied_nor_saved_twice(benchmark, make_strategy, kind):
    lwf = LwFPlugin()
    plugin = kind(teacher=lwf.teacher)
    train(make_strategy(lwf, plugin), benchmark.train_stream)
    assert plugin.teacher is lwf.teacher
    assert plugin.teacher.n_old == 2
    assert plugin.state_dict() == {}


def test_distillation_keeps_old_logits_nearer(benchmark, make_strategy):
    x, moved = images_of(benchmark.test_stream[0]), []
    for weight in (0.0, 5.0):
        plugin = LwFPlugin(alpha=weight)
        strategy = train(make_strategy(plugin, lr=0.3, train_epochs=8), benchmark.train_stream)
        with torch.no_grad():
            moved.append((strategy.model(x)[:, :2] - plugin.teacher.model(x)[:, :2]).abs().mean())
    assert moved[1] < 0.5 * moved[0]


class Losses(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.rows = []

    def before_backward(self, strategy, **kwargs):
        self.rows.append((strategy.loss.item(), strategy.mb_x, strategy.mb_output.detach()))


def test_loss_is_that_of_cscs_program_from_the_second_experience_on(benchmark, make_strategy):
    before, after, plugin = Losses(), Losses(), ConfidencePenaltyPlugin(beta=0.3, alpha=0.4)
    strategy = train(make_strategy(before, plugin, after), benchmark.train_stream, 1)
    assert [row[0] for row in before.rows] == [row[0] for row in after.rows]
    before.rows, after.rows = [], []
    strategy.train(benchmark.train_stream[1], eval_streams=[])
    for (classification, *_), (total, x, logits) in zip(before.rows, after.rows, strict=True):
        with torch.no_grad():
            soft_labels = plugin.teacher.model(x)[:, :2].sigmoid()
        p = logits.sigmoid()
        distillation = F.binary_cross_entropy(p[:, :2], soft_labels)
        entropy = -(p * p.log()).sum(1).mean()
        expected = 0.4 * classification + 0.6 * distillation - 0.3 * entropy
        assert total == pytest.approx(expected.item(), rel=1e-5)


def test_penalty_makes_outputs_less_confident(benchmark, make_strategy):
    x, entropies = images_of(benchmark.train_stream[1]), []
    for beta in (0.0, 2.0):
        plugin = ConfidencePenaltyPlugin(beta=beta, alpha=1.0)
        strategy = train(make_strategy(plugin, lr=0.3, train_epochs=5), benchmark.train_stream)
        with torch.no_grad():
            p = strategy.model(x).sigmoid()
        entropies.append(-(p * p.log()).sum(1).mean())
    assert entropies[1] > entropies[0] + 0.1


class Watch(SupervisedPlugin):
    """What the loss sees, and what is left after the step."""

    def __init__(self):
        super().__init__()
        self.images, self.before, self.seen, self.after = [], [], [], []

    def before_training_iteration(self, strategy, **kwargs):
        self.before.append(strategy.mb_y.clone())

    def before_backward(self, strategy, **kwargs):
        self.images.append(strategy.mb_x)
        self.seen.append(strategy.mb_y.clone())

    def after_training_iteration(self, strategy, **kwargs):
        self.after.append(strategy.mb_y.clone())


@pytest.fixture(params=["unlabelled as NaN", "unlabelled as 0"])
def stream(benchmark, request):
    plan = benchmark.plan
    rules = Protocol(n_experiences=3, unlabelled_as_negative=request.param.endswith("0"))
    sources = plan.train.source, plan.evaluation["test"].source
    return assemble(make_plan(*sources, rules, class_names=None)).train_stream


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("soft", [False, True])
def test_loss_sees_the_teachers_answer_for_old_classes(stream, make_strategy, soft):
    watch, plugin = Watch(), PseudoLabelPlugin(threshold=0.4, soft=soft)
    strategy = train(make_strategy(plugin, watch), stream, 1)
    for before, seen in zip(watch.before, watch.seen):
        assert_same(seen, before)  # no old class yet
    n, answers = len(watch.seen), []
    strategy.train(stream[1], eval_streams=[])
    steps = zip(watch.images[n:], watch.before[n:], watch.seen[n:], watch.after[n:], strict=True)
    for x, before, seen, after in steps:
        with torch.no_grad():
            p = plugin.teacher.model(x)[:, :2].sigmoid()
        answers.append(p > 0.4)
        torch.testing.assert_close(seen[:, :2], p if soft else (p > 0.4).float())
        assert_same(seen[:, 2:], before[:, 2:])
        assert_same(after, before)
    assert 0 < torch.cat(answers).float().mean() < 1  # both answers occur


def test_replayed_images_keep_their_labels(stream, make_strategy):
    watch, memory = Watch(), OnlineReplayPlugin(ReservoirBuffer(30))
    plugins = [PseudoLabelPlugin(threshold=0.0), memory, watch]  # every old class of a new image is 1
    train(make_strategy(*plugins), stream)
    before, seen, after, n = watch.before[-1], watch.seen[-1], watch.after[-1], memory.n_stream
    assert n < len(seen)
    assert_same(seen[:n, :2], torch.ones(n, 2))
    assert_same(seen[n:], before[n:])
    assert_same(after[:n], before[:n])
    assert after[n:].isnan().all()  # as the memory leaves them


def test_pseudo_labels_keep_old_classes_alive(stream, make_strategy):
    """Where unlabelled is 0, old classes are trained away without them."""
    x, moved = images_of(stream[0]), []
    for plugins in ([LwFPlugin(alpha=0.0)], [LwFPlugin(alpha=0.0), PseudoLabelPlugin(soft=True)]):
        strategy = train(make_strategy(*plugins, lr=0.3, train_epochs=8), stream)
        with torch.no_grad():
            teacher = plugins[0].teacher.model(x)[:, :2]
            moved.append((strategy.model(x)[:, :2] - teacher).abs().mean())
    assert moved[1] < 0.5 * moved[0]
