"""Plugins with a teacher: LwF, CSC's losses and pseudo-labels."""

from functools import partial

import pytest
import torch
from avalanche.training import Naive
from torch import nn

from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.training.memory import OnlineReplayPlugin
from avalanche_agcn.training.plugins import ConfidencePenaltyPlugin, LwFPlugin, PseudoLabelPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer
from avalanche_agcn.training.teacher import FrozenTeacher

MADE = partial(LwFPlugin, alpha=3.0), partial(ConfidencePenaltyPlugin, alpha=0.3), PseudoLabelPlugin
PLUGINS = pytest.mark.parametrize("make_plugin", MADE)


@PLUGINS
def test_teacher_is_the_model_before_the_experience_and_is_not_trained(benchmark, train, make_plugin):
    plugin = make_plugin()
    strategy = train(plugin, n=1)
    model = strategy.model
    assert plugin.teacher.model is None
    for t, experience in enumerate(benchmark.train_stream[1:], 1):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        strategy.train(experience, eval_streams=[])
        teacher = plugin.teacher.model
        assert plugin.teacher.n_old == teacher.n_seen == 2 * t
        assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
        assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), teacher.parameters()))
    optimized = {id(p) for group in strategy.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in model.parameters()}
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert not any(module.training for module in teacher.modules())


def test_teacher_of_a_plain_model_knows_the_old_classes_only(train, watch):
    plugin = LwFPlugin()
    answers = watch(before_backward=lambda s: plugin.teacher.n_old and plugin.teacher.logits(s).shape[1])
    train(plugin, answers, kind=Naive, model=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), lr=0.01)
    assert sorted(set(answers.seen["before_backward"])) == [0, 2, 4]


@PLUGINS
def test_state_resumes_within_an_experience(
    benchmark, train, make_strategy, same_weights, tmp_path, make_plugin
):
    plugin, again = make_plugin(), make_plugin()
    strategy, resumed = train(plugin, n=2, seed=0), make_strategy(again, seed=0)
    torch.save([plugin.state_dict(), strategy.model.state_dict()], tmp_path / "state.pt")
    for part, state in zip((again, resumed.model), torch.load(tmp_path / "state.pt", weights_only=True)):
        part.load_state_dict(state)
    for one in (strategy, resumed):
        one.train(benchmark.train_stream[1], eval_streams=[])
    assert same_weights(strategy, resumed)
    assert again.state_dict().keys() == plugin.state_dict().keys()


@pytest.mark.parametrize("kind", [ConfidencePenaltyPlugin, PseudoLabelPlugin])
def test_shared_teacher_is_neither_copied_nor_saved_twice(train, kind):
    lwf = LwFPlugin()
    plugin = kind(teacher=lwf.teacher)
    train(lwf, plugin, n=2)
    assert plugin.teacher is lwf.teacher
    assert plugin.teacher.n_old == 2
    assert plugin.state_dict() == {}


def test_distillation_keeps_old_logits_nearer(benchmark, train, rows_of):
    images, moved = rows_of(benchmark.test_stream[0])[0], []
    for alpha in (0.0, 5.0):
        plugin = LwFPlugin(alpha=alpha)
        model = train(plugin, n=2, lr=0.3, train_epochs=8).model
        with torch.no_grad():
            moved.append((model(images)[:, :2] - plugin.teacher.model(images)).abs().mean())
    assert moved[1] < 0.5 * moved[0]


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def watch_targets(train, watch):
    """Train, and return each step's images, and its targets before it, in its loss and after it."""

    def run(*plugins, stream):
        def targets(strategy):
            return strategy.mb_y.clone()

        hooks = {"before_training_iteration": targets, "before_backward": targets}
        seen = watch(after_forward=lambda s: s.mb_x, **hooks, after_training_iteration=targets)
        train(*plugins, seen, stream=stream)
        return list(zip(*seen.seen.values(), strict=True))

    return run


@pytest.mark.parametrize("soft", [False, True])
def test_loss_sees_the_teachers_answer_for_old_classes(stream, watch_targets, soft):
    plugin, answers = PseudoLabelPlugin(threshold=0.5, soft=soft), []
    steps, n = watch_targets(plugin, stream=stream[:2]), -(-len(stream[0].dataset) // 8)
    for _, before, seen, after in steps[:n]:  # no old class yet
        assert_same(seen, before)
        assert_same(after, before)
    for x, before, seen, after in steps[n:]:
        with torch.no_grad():
            p = plugin.teacher.model(x)[:, :2].sigmoid()
        answers.append(p > 0.5)
        torch.testing.assert_close(seen[:, :2], p if soft else (p > 0.5).float())
        assert_same(seen[:, 2:], before[:, 2:])
        assert_same(after, before)
    assert 0 < torch.cat(answers).float().mean() < 1  # both answers occur


def test_replayed_images_keep_their_labels(stream, watch_targets):
    memory = OnlineReplayPlugin(ReservoirBuffer(30))
    plugins = PseudoLabelPlugin(threshold=0.0), memory  # every old class of a new image is 1
    _, before, seen, after = watch_targets(*plugins, stream=stream[:2])[-1]
    n = memory.n_stream
    assert n < len(seen)
    assert_same(seen[:n, :2], torch.ones(n, 2))
    assert_same(seen[n:], before[n:])
    assert_same(after[:n], before[:n])
    assert after[n:].isnan().all()  # the memory hides them


@pytest.mark.parametrize("order", [1, -1])
def test_all_views_of_an_image_have_the_same_pseudo_labels(stream, watch_targets, order):
    memory = OnlineReplayPlugin(ReservoirBuffer(30), batch_size_mem=5, views=2)
    plugins = (PseudoLabelPlugin(threshold=0.0), memory)[::order]
    _, before, seen, after = watch_targets(*plugins, stream=stream[:2])[-1]
    n, half = memory.n_stream, len(seen) // 2
    assert n < half
    for start in (0, half):
        assert_same(seen[start : start + n, :2], torch.ones(n, 2))
        assert_same(seen[start + n : start + half], before[start + n : start + half])
    assert_same(after[:n], before[:n])
    assert after[n:].isnan().all()


def test_teacher_pads_within_convolutions_and_saves_the_weights_of_the_model():
    torch.manual_seed(0)
    model = MultiLabelClassifier(create_backbone("efficientnet_lite0", pretrained=False), 2)
    teacher, resumed = FrozenTeacher(), FrozenTeacher()
    teacher._copy(model)
    state = teacher.state_dict()
    saved = {name.removeprefix("model."): value for name, value in state.items() if name != "counts"}
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.eval()(images)
        assert torch.equal(teacher.model(images), expected)
        for weight in model.parameters():
            weight.zero_()
    resumed._copy(model, saved)
    with torch.no_grad():
        assert torch.equal(resumed.model(images), expected)
    kernels = [m.kernel_size for m in resumed.model.modules() if isinstance(m, nn.Conv2d)]
    assert (4, 4) in kernels
    assert not any(weight.requires_grad for weight in resumed.model.parameters())
