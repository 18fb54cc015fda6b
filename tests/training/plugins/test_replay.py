"""Replay, A-GEM's projection and the contrastive loss."""

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from torch import nn

from avalanche_agcn.training import AGCN
from avalanche_agcn.training.losses import MultiLabelContrastiveLoss
from avalanche_agcn.training.plugins.replay import AGEMPlugin, ContrastivePlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import (
    ExperienceReservoirBuffer,
    OCDMBuffer,
    PRSBuffer,
    ReservoirBuffer,
)

KINDS = [ReservoirBuffer, ExperienceReservoirBuffer, PRSBuffer, OCDMBuffer]
BUFFERS = pytest.mark.parametrize("kind", KINDS)


class Spy(SupervisedPlugin):
    """Notes the targets of each batch as the loss sees them and as they are after the step."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.targets, self.hidden, self.sizes = memory, [], [], []

    def after_forward(self, strategy, **kwargs):
        self.targets.append(strategy.mb_y.clone())

    def after_training_iteration(self, strategy, **kwargs):
        self.hidden.append(strategy.mb_y.clone())
        self.sizes.append(len(self.memory))


@pytest.fixture
def spy_on(train):
    """Train with a replay plugin, and return what a spy before it saw."""

    def run(plugin, **settings):
        spy = Spy(plugin.storage_policy)
        train(spy, plugin, **settings)
        return spy

    return run


def assert_same(one, other):
    states = one.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_memory_is_updated_batch_by_batch_and_each_batch_has_as_many_images_of_it(spy_on, benchmark):
    spy = spy_on(OnlineReplayPlugin(ReservoirBuffer(1000)), n=1)
    n = len(benchmark.train_stream[0].dataset)
    assert spy.sizes == [min(8 * k, n) for k in range(len(spy.sizes))]  # the spy looks before the update
    of_stream = [min(8, n - 8 * k) for k in range(len(spy.sizes))]
    assert [len(targets) for targets in spy.targets] == [8] + [2 * own for own in of_stream[1:]]


def test_replayed_rows_have_the_columns_of_their_own_experience(spy_on):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20)
    last = spy_on(plugin).targets[-1]
    blocks = (~last.isnan()).view(len(last), 3, 2)
    assert torch.equal(blocks.all(2), blocks.any(2))
    assert (blocks.any(2).sum(1) == 1).all()
    assert blocks[plugin.n_stream :, :2].any()


def test_targets_of_replayed_rows_are_hidden_after_the_step(spy_on):
    spy = spy_on(OnlineReplayPlugin(ReservoirBuffer(20)), n=1)
    for seen, after in zip(spy.targets[1:], spy.hidden[1:]):
        n = len(seen) // 2
        torch.testing.assert_close(after[:n], seen[:n], equal_nan=True)
        assert after[n:].isnan().all()
        assert not seen[n:, :2].isnan().any()


def test_newer_as_negative_fill_the_newer_columns_of_replayed_rows_only(spy_on):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20, newer_as_negative=True)
    stream, replayed = spy_on(plugin).targets[-1].tensor_split([plugin.n_stream])
    assert stream[:, :4].isnan().all()
    from_first = replayed[~replayed[:, 0].isnan()]
    from_second = replayed[replayed[:, 0].isnan() & ~replayed[:, 2].isnan()]
    assert min(len(from_first), len(from_second)) > 0
    assert (from_first[:, 2:] == 0).all()
    assert from_second[:, :2].isnan().all()
    assert (from_second[:, 4:] == 0).all()


@BUFFERS
def test_memory_of_none_trains_like_fine_tuning(train, kind):
    assert_same(train(OnlineReplayPlugin(kind(0))), train())
    assert_same(train(AGEMPlugin(kind(0))), train())


@BUFFERS
def test_memory_smaller_than_a_batch_and_batch_larger_than_memory(spy_on, kind):
    spy = spy_on(OnlineReplayPlugin(kind(3)), loader={"drop_last": True})
    assert len(spy.memory) == 3
    assert [len(targets) for targets in spy.targets] == [8] + [8 + 3] * (len(spy.targets) - 1)


def test_several_epochs_offer_each_image_once(train):
    plugin, once = OnlineReplayPlugin(ReservoirBuffer(1000)), OnlineReplayPlugin(ReservoirBuffer(1000))
    train(plugin, train_epochs=3)
    train(once)
    assert len(plugin.storage_policy) == len(once.storage_policy) == 90
    assert torch.equal(plugin.storage_policy.class_counts, once.storage_policy.class_counts)


@BUFFERS
def test_several_workers_train_on_the_same_batches(train, kind):
    alone, workers = OnlineReplayPlugin(kind(20)), OnlineReplayPlugin(kind(20))
    expected = train(alone, n=2)
    assert_same(expected, train(workers, n=2, loader={"num_workers": 2, "persistent_workers": True}))
    assert torch.equal(alone.storage_policy.keys, workers.storage_policy.keys)
    assert not torch.equal(expected.model.classifier.weight, train(n=2).model.classifier.weight)


@pytest.mark.parametrize("kind", [PRSBuffer, OCDMBuffer])
def test_buffers_work_in_avalanches_own_replay_plugin(spy_on, kind):
    spy = spy_on(ReplayPlugin(mem_size=12, storage_policy=kind(12)))
    assert len(spy.memory) == 12
    assert spy.sizes[0] == 0
    assert len(spy.targets[-2]) == 16
    assert (~spy.targets[-2][8:, :4].isnan()).any()


@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("kind", [ReservoirBuffer, PRSBuffer, OCDMBuffer])
def test_agcn_with_memory_counts_the_stream_as_without(benchmark, make_model, kind, negatives):
    """The teacher sees replayed rows, the ACM's hard counts are those of the stream alone."""
    counts = []
    for plugins in ([], [OnlineReplayPlugin(kind(15), newer_as_negative=negatives)]):
        model = make_model()
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameter_groups(lr_backbone=1e-3, lr_gcn=1e-3))
        strategy = AGCN(model=model, optimizer=optimizer, plugins=plugins, evaluator=EvaluationPlugin())
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[])
        counts.append([strategy.acm.acm._hard, strategy.acm.acm._old[:2, :2]])
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    torch.testing.assert_close(*counts)


def test_state_finds_the_memory_again(train, benchmark):
    plugin, again = OnlineReplayPlugin(PRSBuffer(15)), OnlineReplayPlugin(PRSBuffer(15))
    train(plugin)
    again.load_state_dict(plugin.state_dict(), benchmark.train_stream)
    assert torch.equal(again.storage_policy.keys, plugin.storage_policy.keys)


def test_pieces_of_one_online_stream_fill_the_memory(benchmark, train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(1000))
    train(plugin, stream=split_online_stream(benchmark.train_stream, experience_size=8))
    stored = plugin.storage_policy.buffer.targets[:].nan_to_num(-1).tolist()
    whole = [row for e in benchmark.train_stream for row in e.dataset.targets[:].nan_to_num(-1).tolist()]
    assert sorted(stored) == sorted(whole)


def test_pieces_of_several_online_streams_with_the_same_numbers_are_rejected(benchmark, train):
    streams = [split_online_stream([e], experience_size=8) for e in benchmark.train_stream[:2]]
    message = r"Experience 0 had 8 images and now has 8 others.*train_stream at once"
    with pytest.raises(ValueError, match=message):
        train(OnlineReplayPlugin(ReservoirBuffer(1000)), stream=streams)


def test_two_memories_and_another_plugins_loader_are_rejected(train):
    memory = OnlineReplayPlugin(ReservoirBuffer(9))
    with pytest.raises(ValueError, match="one memory only, but has OnlineReplayPlugin, OnlineReplayPlugin"):
        train(memory, OnlineReplayPlugin(ReservoirBuffer(9)))
    with pytest.raises(RuntimeError, match="another plugin has replaced it"):
        train(OnlineReplayPlugin(ReservoirBuffer(9)), ReplayPlugin(mem_size=9))


def dot(a, b):
    return sum((x.double() * y.double()).sum() for x, y in zip(a, b))


class Checker(SupervisedPlugin):
    """Stands behind A-GEM and compares the gradient with the reference: their cosine, or None."""

    def __init__(self, agem):
        super().__init__()
        self.agem, self.along, self.rows = agem, [], []

    def after_backward(self, strategy, **kwargs):
        self.rows.append(len(strategy.mb_output))
        reference, gradients = self.agem._reference, [p.grad for p in strategy.model.parameters()]
        if reference is not None:
            size = dot(gradients, gradients).sqrt() * dot(reference, reference).sqrt()
            reference = float(dot(gradients, reference) / size)
        self.along.append(reference)


def test_no_step_goes_against_a_memory_of_earlier_experiences(train, benchmark):
    checker = Checker(AGEMPlugin(ExperienceReservoirBuffer(30), sample_size=16))
    train(checker.agem, checker)
    n_first = -(-len(benchmark.train_stream[0].dataset) // 8)
    assert checker.along[:n_first] == [None] * n_first
    along = checker.along[n_first:]
    assert len(along) > 5
    assert min(along) > -1e-5
    assert any(abs(one) < 1e-5 for one in along)  # some were projected
    assert any(one > 1e-3 for one in along)  # and some left alone
    assert max(checker.rows) == 8  # the reference is not in the batch
    assert checker.agem.storage_policy.keys[:, 0].bincount().tolist() == [10, 10, 10]


def test_agem_rejects_pieces_of_an_online_stream(benchmark, train):
    pieces = split_online_stream(benchmark.train_stream, experience_size=8)
    with pytest.raises(ValueError, match=r"A-GEM sums up each experience .* piece of one, of 8 images"):
        train(AGEMPlugin(ExperienceReservoirBuffer(9)), stream=pieces)


def test_contrastive_loss_lowers_the_contrast_with_one_pass_of_each_image(benchmark, train, make_strategy):
    dataset = benchmark.train_stream[0].dataset
    x, losses = torch.stack([dataset[i][0] for i in range(len(dataset))]), []
    for plugins in ([], [ContrastivePlugin(weight=1.0)]):
        strategy, seen = make_strategy(*plugins, lr=0.5), []
        strategy.model.backbone.register_forward_hook(lambda module, x, y, seen=seen: seen.append(len(y)))
        strategy.train(benchmark.train_stream[0], eval_streams=[])
        assert sum(seen) == len(dataset)
        assert len(strategy.model.backbone._forward_hooks) == 1  # the one of this test
        with torch.no_grad():
            losses.append(MultiLabelContrastiveLoss()(strategy.model.features(x), dataset.targets[:]))
    assert losses[1] < losses[0]
    assert_same(train(ContrastivePlugin(weight=0.0)), train())


def test_contrastive_loss_needs_a_backbone(train):
    with pytest.raises(TypeError, match="no backbone"):
        train(ContrastivePlugin(), model=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)))
