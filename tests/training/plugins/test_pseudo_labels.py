import pytest
import torch
from avalanche.core import SupervisedPlugin

from avalanche_agcn.benchmarks.multilabel import assemble, make_plan
from avalanche_agcn.benchmarks.protocols import Protocol
from avalanche_agcn.training.plugins import LwFPlugin, OnlineReplayPlugin, PseudoLabelPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer


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
    strategy = make_strategy(plugin, watch)
    strategy.train(stream[0])
    for before, seen in zip(watch.before, watch.seen):
        assert_same(seen, before)  # no old class yet
    strategy.train(stream[1], eval_streams=[])
    n = len(watch.seen) - len(stream[1].dataset) // 8 - (len(stream[1].dataset) % 8 > 0)
    answers = []
    for x, before, seen, after in zip(
        watch.images[n:], watch.before[n:], watch.seen[n:], watch.after[n:], strict=True
    ):
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
    strategy = make_strategy(*plugins)
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    before, seen, after = watch.before[-1], watch.seen[-1], watch.after[-1]
    n = memory.n_stream
    assert n < len(seen)
    assert_same(seen[:n, :2], torch.ones(n, 2))
    assert_same(seen[n:], before[n:])
    assert_same(after[:n], before[:n])
    assert after[n:].isnan().all()  # as the memory leaves them


def test_pseudo_labels_keep_old_classes_alive(stream, make_strategy):
    """Where unlabelled is 0, old classes are trained away without them."""
    x = torch.stack([stream[0].dataset[i][0] for i in range(10)])
    moved = []
    for plugins in ([LwFPlugin(alpha=0.0)], [LwFPlugin(alpha=0.0), PseudoLabelPlugin(soft=True)]):
        strategy = make_strategy(*plugins, lr=0.3, train_epochs=8)
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
        with torch.no_grad():
            teacher = plugins[0].teacher.model(x)[:, :2]
            moved.append((strategy.model(x)[:, :2] - teacher).abs().mean())
    assert moved[1] < 0.5 * moved[0]


def test_shared_teacher_is_neither_copied_nor_saved_twice(stream, make_strategy):
    lwf = LwFPlugin()
    plugin = PseudoLabelPlugin(teacher=lwf.teacher)
    strategy = make_strategy(lwf, plugin)
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    assert plugin.teacher is lwf.teacher
    assert plugin.state_dict() == {}
    assert plugin.teacher.n_old == 2


def test_state_resumes_in_the_midst_of_an_experience(stream, make_strategy):
    plugin = PseudoLabelPlugin(threshold=0.4)
    strategy = make_strategy(plugin, seed=0)
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    again = PseudoLabelPlugin(threshold=0.4)
    resumed = make_strategy(again, seed=0)
    again.load_state_dict({name: tensor.clone() for name, tensor in plugin.state_dict().items()})
    resumed.model.load_state_dict(strategy.model.state_dict())
    for one in (strategy, resumed):
        one.train(stream[1], eval_streams=[])
    assert torch.equal(resumed.model.classifier.weight, strategy.model.classifier.weight)


def test_thresholds_out_of_range_are_rejected():
    with pytest.raises(ValueError, match=r"threshold must be .* at most 1, but is 1\.5"):
        PseudoLabelPlugin(threshold=1.5)
