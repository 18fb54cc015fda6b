"""Experiences in any order, twice, interrupted, by two strategies: the numbers are those of a plain loop."""

import contextlib
import copy
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import split_online_stream
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.methods.ewc import EWCPlugin
from avalanche_agcn.methods.lwf import LwFPlugin
from avalanche_agcn.models import Backbone, MultiLabelClassifier
from avalanche_agcn.training import AGCN, ER, FineTuning, StreamingRidge
from avalanche_agcn.training.plugins import (
    ACMPlugin,
    AGCNPlugin,
    FeatureStatisticsPlugin,
    OnlineReplayPlugin,
)
from avalanche_agcn.training.storage_policy import ReservoirBuffer

# Experiences in the order of training; "!" is an interruption after the first batch.
FORWARD = ["0 1 2", "0 0 1", "0 1 0", "0 1 1 0 2", "0 1 2 1 0", "0 1! 1 2", "0! 0! 0 1", "0 1 0! 0", "0 1! 2"]
SKIPPING = ["2", "1 0", "2 0 1", "0 2", "2! 1"]


class Step(NamedTuple):
    call: int  # of `train`, from 1
    experience: Any
    images: torch.Tensor
    targets: torch.Tensor
    loss: float
    n_seen: int  # classes that the model knows
    seen: Any  # result of `look`


@pytest.fixture
def run(watch):
    """Train a strategy in an order, and return its steps."""

    def run(strategy, stream, order, look=lambda strategy: None):
        def keep(strategy):
            batch = strategy.mb_x.clone(), strategy.mb_y.clone()
            values = strategy.loss.item(), strategy.model.n_seen, look(strategy)
            steps.append(Step(len(started), strategy.experience, *batch, *values))

        def interrupt(strategy):
            if started[-1].endswith("!"):
                raise KeyboardInterrupt

        steps, started = [], []
        watcher = watch(before_backward=keep, after_training_iteration=interrupt)
        strategy.plugins.append(watcher)
        for word in order.split():
            started.append(word)
            with pytest.raises(KeyboardInterrupt) if word.endswith("!") else contextlib.nullcontext():
                strategy.train(stream[int(word[0])], eval_streams=[])
        strategy.plugins.remove(watcher)
        return steps

    return run


def is_repeated(call, order):
    """Whether a training was interrupted and then done again."""
    words = order.split()
    return words[call - 1].endswith("!") and [word[0] for word in words[call:][:1]] == [words[call - 1][0]]


def loss_of(logits, targets):
    """Mean cross-entropy over the labelled cells of the seen classes."""
    targets = targets[:, : logits.shape[1]]
    known = ~targets.isnan()
    return F.binary_cross_entropy_with_logits(logits[known], targets[known])


def plain_loop(model, steps, n_seen=0, lr=0.1):
    """SGD over given batches; returns the loss of each."""
    losses = []
    for step in steps:
        n_seen = max(n_seen, step.experience.n_classes_seen)
        logits = model.classifier(model.backbone(step.images))[:, :n_seen]
        loss = loss_of(logits, step.targets)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= lr * gradient
    return losses


@pytest.mark.parametrize("order", FORWARD + SKIPPING)
@pytest.mark.parametrize("kind", [FineTuning, ER])
def test_training_is_a_plain_loop_over_the_same_batches(stream, make_strategy, run, kind, order):
    settings = {} if kind is FineTuning else {"mem_size": 20, "batch_size_mem": 5}
    strategy = make_strategy(kind=kind, seed=0, **settings)
    model = copy.deepcopy(strategy.model)
    steps = run(strategy, stream, order)
    assert plain_loop(model, steps) == pytest.approx([step.loss for step in steps], abs=1e-5)
    for found, expected in zip(strategy.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    # Each image, replayed or not, has the labels of one of its experiences.
    known = {}
    for experience in stream:
        for image, target, _ in experience.dataset:
            known.setdefault(image.numpy().tobytes(), []).append(target)
    for step in steps:
        for image, target in zip(step.images, step.targets, strict=True):
            labels = known[image.numpy().tobytes()]
            assert any(torch.equal(target.nan_to_num(2), own.nan_to_num(2)) for own in labels)


def test_evaluating_future_experiences_changes_nothing(benchmark, make_strategy, same_weights):
    evaluated, plain = make_strategy(seed=0), make_strategy(seed=0)
    for experience in benchmark.train_stream:
        evaluated.eval(benchmark.test_stream)
        for strategy in (evaluated, plain):
            strategy.train(experience, eval_streams=[])
    assert same_weights(evaluated, plain)


def test_two_strategies_take_turns_on_one_model(benchmark, make_strategy, run):
    first = make_strategy(seed=0)
    model = copy.deepcopy(first.model)
    second = make_strategy(model=first.model, seed=1)
    steps = []
    for strategy, order in ((first, "0"), (second, "1"), (first, "0"), (second, "2 0")):
        steps += run(strategy, benchmark.train_stream, order)
    plain_loop(model, steps)
    for found, expected in zip(first.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_two_strategies_on_one_benchmark_do_not_affect_each_other(benchmark, make_strategy, same_weights):
    stream = benchmark.train_stream
    alone, one, other = (make_strategy(kind=ER, mem_size=20, seed=0) for _ in range(3))
    for experience in stream:
        alone.train(experience, eval_streams=[])
    for experience, beside in zip(stream, reversed(stream), strict=True):
        one.train(experience, eval_streams=[])
        other.train(beside, eval_streams=[])
    assert same_weights(alone, one)


@pytest.mark.parametrize("order", FORWARD)
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_label_relations_are_those_of_a_plain_count(stream, make_strategy, make_model, run, order, preset):
    strategy = make_strategy(kind=AGCN, model=make_model(), preset=preset, lambda_gph=1.0, lr=0.01, seed=0)

    def soft_labels(strategy):
        logits = strategy.agcn.teacher_logits(strategy)
        if logits is None:
            return torch.zeros(len(strategy.mb_x), 0, dtype=torch.float64)
        return logits.double().sigmoid() if preset == "paper" else logits.double().softmax(1)

    steps = run(strategy, stream, order, soft_labels)
    matrix = torch.zeros(0, 0, dtype=torch.float64)
    hard_start, soft_start = (1e-6, 1e-10) if preset == "official" else (0.0, 0.0)
    for t in range(strategy.model.n_seen // 2):
        rows = [step for step in steps if step.experience.current_experience == t]
        rows = [step for step in rows if step.n_seen == 2 * t + 2 and not is_repeated(step.call, order)]
        y = torch.cat([step.targets for step in rows])[:, 2 * t : 2 * t + 2].double()
        z = torch.cat([step.seen for step in rows])
        n_new, n_old = y.sum(0) + hard_start, z.sum(0) + soft_start
        new = (y.T @ y / n_new).fill_diagonal_(1)
        matrix = torch.cat([torch.cat([matrix, z.T @ y / n_new], 1), torch.cat([y.T @ z / n_old, new], 1)])
    torch.testing.assert_close(strategy.acm.acm.matrix(), matrix, rtol=0, atol=1e-6)


@pytest.fixture
def frozen():
    torch.manual_seed(0)
    backbone = Backbone(torch.nn.Conv2d(3, 5, 3), num_features=5, pool="avg").requires_grad_(False)
    return MultiLabelClassifier(backbone, 6)


@pytest.mark.filterwarnings("ignore:The images of experience")
@pytest.mark.parametrize("order", FORWARD)
def test_sums_have_each_image_once(stream, make_strategy, run, frozen, rows_of, order):
    collector = FeatureStatisticsPlugin()
    steps = run(make_strategy(collector, model=frozen, seed=0), stream, order)
    for t in range(collector.statistics.n_experiences):
        images, targets = rows_of(stream[t])
        calls = [call for call, word in enumerate(order.split(), 1) if word[0] == str(t)]
        if all(order.split()[call - 1].endswith("!") for call in calls):  # nothing but its first batch
            rows = [step for step in steps if step.call == calls[-1]]
            images, targets = (torch.cat([step[k] for step in rows]) for k in (2, 3))
        with torch.no_grad():
            features = frozen.backbone(images).double()
        row = torch.cat([torch.ones(len(images), 1), features, targets[:, 2 * t : 2 * t + 2]], 1).double()
        torch.testing.assert_close(collector.statistics.moments(t), row.T @ row, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [ACMPlugin, FeatureStatisticsPlugin])
def test_an_experience_interrupted_before_another_cannot_be_completed(benchmark, make_strategy, run, kind):
    pieces = list(split_online_stream(benchmark.train_stream, experience_size=6))[:2]
    strategy = make_strategy(kind(), train_mb_size=2)
    run(strategy, pieces, "0! 1")
    with pytest.raises(ValueError, match=r"Experience 0 was interrupted.*unknown part of its images"):
        run(strategy, pieces, "0")


@pytest.mark.parametrize("kind", [ACMPlugin, FeatureStatisticsPlugin])
def test_an_interrupted_piece_is_counted_once(benchmark, make_strategy, run, frozen, kind):
    pieces = list(split_online_stream(benchmark.train_stream[:1], experience_size=6))
    sums = []
    for order in ("0 1", "0! 0 1! 1! 1"):
        plugin = kind()
        run(make_strategy(plugin, model=copy.deepcopy(frozen), train_mb_size=2), pieces, order)
        sums.append(plugin.statistics.state_dict())
    for name, value in sums[0].items():
        torch.testing.assert_close(sums[1][name], value)


@pytest.mark.parametrize("kind", [ACMPlugin, FeatureStatisticsPlugin])
def test_what_resumes_and_is_interrupted_starts_again(benchmark, make_strategy, run, frozen, kind):
    stream, whole, part = benchmark.train_stream, kind(), kind()
    run(make_strategy(whole, model=copy.deepcopy(frozen), seed=0), stream, "0 1")
    run(make_strategy(part, model=copy.deepcopy(frozen), seed=0), stream, "0 1!")
    resumed = kind()
    resumed.load_state_dict(copy.deepcopy(part.state_dict()))
    run(make_strategy(resumed, model=copy.deepcopy(frozen), seed=0), stream, "1! 1")
    for name, value in whole.statistics.state_dict().items():
        torch.testing.assert_close(resumed.statistics.state_dict()[name], value)


@pytest.fixture
def halves(benchmark):
    """Two streams, each with every second image of each experience."""
    streams = [[copy.copy(experience) for experience in benchmark.train_stream] for _ in range(2)]
    for start, stream in enumerate(streams):
        for half in stream:
            half._dataset = half.dataset.subset(range(start, len(half.dataset), 2))
    return streams


OTHER_IMAGES = [(ACMPlugin, "2"), (FeatureStatisticsPlugin, "2"), (FeatureStatisticsPlugin, "0")]


@pytest.mark.parametrize(("kind", "place"), OTHER_IMAGES)
def test_after_loading_an_interruption_removes_no_earlier_images(
    halves, make_strategy, run, frozen, kind, place
):
    def train(state, stream, order):
        plugin = kind()
        if state is not None:
            plugin.load_state_dict(copy.deepcopy(state))
        run(make_strategy(plugin, model=copy.deepcopy(frozen), train_mb_size=2, seed=0), stream, order)
        return plugin.state_dict(), plugin.statistics.state_dict()

    first, second = halves
    saved, _ = train(None, first, "0 1 2")
    (_, expected), (_, found) = (train(saved, second, order) for order in (place, f"{place}! {place}"))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    saved_within, _ = train(saved, second, f"{place}!")
    with pytest.raises(ValueError, match=f"Experience {place} was interrupted after a state.*load the state"):
        train(saved_within, second, f"{place}! {place}")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("statistics", ["exact", "compact"])
def test_images_are_known_when_classes_were_added(make_strategy, run, zeros, statistics):
    def stream_of(n_experiences):  # of 12 images and 2 classes each
        generator = torch.Generator().manual_seed(0)
        data = TensorDataset(torch.rand(36, 3, 8, 8, generator=generator)[: 12 * n_experiences])
        data.targets = torch.block_diag(*[torch.eye(2, dtype=torch.int).repeat(6, 1)] * n_experiences)
        settings = {"n_experiences": n_experiences, "unlabelled_as_negative": zeros}
        return multilabel_benchmark(data, data, **settings).train_stream

    first, second = (FeatureStatisticsPlugin(statistics=statistics) for _ in range(2))
    run(make_strategy(first), stream_of(2), "0 1")
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="images of experience 1 are in the sums already"):
        run(make_strategy(second), stream_of(3), "2 1 0")
    assert [second.statistics.count(t) for t in range(3)] == [12, 12, 12]


def test_skipped_experiences_are_named(stream, make_strategy, make_model, frozen):
    strategies = [
        make_strategy(kind=AGCN, model=make_model()),
        make_strategy(FeatureStatisticsPlugin(), model=frozen),
        StreamingRidge(model=copy.deepcopy(frozen), evaluator=EvaluationPlugin()),
    ]
    for strategy in strategies:
        with pytest.raises(ValueError, match="4 classes were seen so far, 2 of them in this experience, but"):
            strategy.train(stream[1], eval_streams=[])


PLUGINS = [
    lambda: [EWCPlugin(ewc_lambda=1.0)],
    lambda: [LwFPlugin()],
    lambda: [OnlineReplayPlugin(ReservoirBuffer(9))],
    lambda: [AGCNPlugin(lambda_gph=1.0), ACMPlugin()],
    lambda: [FeatureStatisticsPlugin()],
]


@pytest.mark.parametrize("make", PLUGINS)
def test_a_plugin_belongs_to_one_strategy(benchmark, make_strategy, make_model, same_weights, make):
    plugins = make()
    stream, settings = benchmark.train_stream, {"model": make_model(), "lr": 0.01, "seed": 0}
    strategy = make_strategy(*plugins, **settings)
    strategy.train(stream[0], eval_streams=[])
    with pytest.raises(ValueError, match=r"state of another strategy.*make a new one for each"):
        make_strategy(*plugins, model=make_model()).train(stream[0], eval_streams=[])
    copied = copy.deepcopy(strategy)
    for one in (strategy, copied):
        one.train(stream[1], eval_streams=[])
    assert same_weights(strategy, copied)
    with pytest.raises(ValueError, match="has the state of another strategy"):
        make_strategy(*copied.plugins[: len(plugins)], model=make_model()).train(stream[0], eval_streams=[])


def test_a_memory_belongs_to_one_strategy(benchmark, make_strategy):
    memory, (first, *_) = ReservoirBuffer(9), benchmark.train_stream
    make_strategy(OnlineReplayPlugin(memory)).train(first, eval_streams=[])
    with pytest.raises(ValueError, match="This ReservoirBuffer has the state of another strategy"):
        make_strategy(OnlineReplayPlugin(memory)).train(first, eval_streams=[])
