import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

from avalanche_agcn.training import AGCN
from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import (
    ExperienceReservoirBuffer,
    OCDMBuffer,
    PRSBuffer,
    ReservoirBuffer,
)

BUFFERS = [ReservoirBuffer, ExperienceReservoirBuffer, PRSBuffer, OCDMBuffer]


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
def train(benchmark, make_strategy):
    """Train over the stream, or a part of it, with given plugins."""

    def run(plugins, n_experiences=3, epochs=1, **loader):
        strategy = make_strategy(*plugins, train_epochs=epochs)
        for experience in benchmark.train_stream[:n_experiences]:
            strategy.train(experience, eval_streams=[], **loader)
        return strategy.model

    return run


def test_memory_is_updated_batch_by_batch(train, benchmark):
    plugin = OnlineReplayPlugin(ReservoirBuffer(1000))
    spy = Spy(plugin.storage_policy)
    train([spy, plugin], n_experiences=1)
    n = len(benchmark.train_stream[0].dataset)
    assert spy.sizes == [min(8 * k, n) for k in range(len(spy.sizes))]  # the spy looks before the update


def test_batch_has_as_many_replayed_as_new_images_once_memory_has_them(train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(1000))
    spy = Spy(plugin.storage_policy)
    train([spy, plugin])
    sizes = [len(targets) for targets in spy.targets]
    assert sizes[0] == 8
    assert all(size % 2 == 0 for size in sizes)
    assert sizes.count(16) > 5


def test_replayed_rows_have_the_columns_of_their_own_experience(train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20)
    spy = Spy(plugin.storage_policy)
    train([spy, plugin])
    last = spy.targets[-1]
    blocks = (~last.isnan()).view(len(last), 3, 2)
    assert torch.equal(blocks.all(2), blocks.any(2))
    assert (blocks.any(2).sum(1) == 1).all()
    assert blocks[plugin.n_stream :, :2].any()


def test_targets_of_replayed_rows_are_hidden_after_the_step(train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20))
    spy = Spy(plugin.storage_policy)
    train([spy, plugin], n_experiences=1)
    for seen, after in zip(spy.targets[1:], spy.hidden[1:]):
        n = len(seen) // 2
        torch.testing.assert_close(after[:n], seen[:n], equal_nan=True)
        assert after[n:].isnan().all()
        assert not seen[n:, :2].isnan().any()


def test_newer_as_negative_fill_the_newer_columns_of_replayed_rows_only(train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20, newer_as_negative=True)
    spy = Spy(plugin.storage_policy)
    train([spy, plugin])
    stream, replayed = spy.targets[-1][: plugin.n_stream], spy.targets[-1][plugin.n_stream :]
    assert stream[:, :4].isnan().all()
    from_first = replayed[~replayed[:, 0].isnan()]
    assert len(from_first) > 0
    assert (from_first[:, 2:] == 0).all()
    from_second = replayed[replayed[:, 0].isnan() & ~replayed[:, 2].isnan()]
    assert len(from_second) > 0
    assert from_second[:, :2].isnan().all()
    assert (from_second[:, 4:] == 0).all()


@pytest.mark.parametrize("kind", BUFFERS)
def test_memory_of_none_trains_like_no_memory(train, kind):
    plain, empty = train([]), train([OnlineReplayPlugin(kind(0))])
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, empty.state_dict()[name]), name


@pytest.mark.parametrize("kind", BUFFERS)
def test_memory_smaller_than_a_batch_and_batch_larger_than_memory(train, kind):
    plugin = OnlineReplayPlugin(kind(3))
    spy = Spy(plugin.storage_policy)
    train([spy, plugin], drop_last=True)
    assert len(plugin.storage_policy) == 3
    assert [len(targets) for targets in spy.targets] == [8] + [8 + 3] * (len(spy.targets) - 1)


def test_several_epochs_offer_each_image_once(train):
    plugin, once = OnlineReplayPlugin(ReservoirBuffer(1000)), OnlineReplayPlugin(ReservoirBuffer(1000))
    train([plugin], epochs=3)
    train([once])
    assert len(plugin.storage_policy) == len(once.storage_policy) == 90
    assert torch.equal(plugin.storage_policy.class_counts, once.storage_policy.class_counts)


@pytest.mark.parametrize("kind", BUFFERS)
def test_several_workers_train_on_the_same_batches(train, kind):
    alone, workers = OnlineReplayPlugin(kind(20)), OnlineReplayPlugin(kind(20))
    expected = train([alone], n_experiences=2)
    model = train([workers], n_experiences=2, num_workers=2, persistent_workers=True)
    assert torch.equal(alone.storage_policy.keys, workers.storage_policy.keys)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_replay_changes_what_is_learned(train):
    plain, replayed = train([]), train([OnlineReplayPlugin(ReservoirBuffer(20))])
    assert not torch.equal(plain.classifier.weight, replayed.classifier.weight)


@pytest.mark.parametrize("kind", [PRSBuffer, OCDMBuffer])
def test_buffers_work_in_avalanches_own_replay_plugin(train, kind):
    plugin = ReplayPlugin(mem_size=12, storage_policy=kind(12))
    spy = Spy(plugin.storage_policy)
    train([spy, plugin])
    assert len(plugin.storage_policy) == 12
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
    for without, with_memory in zip(*counts):
        torch.testing.assert_close(without, with_memory)


def test_state_finds_the_memory_again(train, benchmark):
    plugin, again = OnlineReplayPlugin(PRSBuffer(15)), OnlineReplayPlugin(PRSBuffer(15))
    train([plugin])
    again.load_state_dict(plugin.state_dict(), benchmark.train_stream)
    assert torch.equal(again.storage_policy.keys, plugin.storage_policy.keys)


def test_pieces_of_one_online_stream_fill_the_memory(benchmark, make_strategy):
    plugin = OnlineReplayPlugin(ReservoirBuffer(1000))
    make_strategy(plugin).train(
        split_online_stream(benchmark.train_stream, experience_size=8), eval_streams=[]
    )
    assert len(plugin.storage_policy) == sum(len(experience.dataset) for experience in benchmark.train_stream)
    stored = plugin.storage_policy.buffer.targets[:].nan_to_num(-1).tolist()
    whole = [row for e in benchmark.train_stream for row in e.dataset.targets[:].nan_to_num(-1).tolist()]
    assert sorted(stored) == sorted(whole)


def test_pieces_of_several_online_streams_with_the_same_numbers_are_rejected(benchmark, make_strategy):
    strategy = make_strategy(OnlineReplayPlugin(ReservoirBuffer(1000)))
    first, second = (split_online_stream([e], experience_size=8) for e in benchmark.train_stream[:2])
    strategy.train(first, eval_streams=[])
    with pytest.raises(
        ValueError, match=r"Experience 0 had 8 images and now has 8 others.*train_stream at once"
    ):
        strategy.train(second, eval_streams=[])


def test_two_memories_are_rejected(benchmark, make_strategy):
    plugins = [OnlineReplayPlugin(ReservoirBuffer(9)), OnlineReplayPlugin(ReservoirBuffer(9))]
    with pytest.raises(ValueError, match="one memory only, but has OnlineReplayPlugin, OnlineReplayPlugin"):
        make_strategy(*plugins).train(benchmark.train_stream[0], eval_streams=[])


def test_loader_of_another_plugin_is_rejected(benchmark, make_strategy):
    memories = [OnlineReplayPlugin(ReservoirBuffer(9)), ReplayPlugin(mem_size=9)]
    strategy = make_strategy(*memories)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    with pytest.raises(RuntimeError, match="another plugin has replaced it"):
        strategy.train(benchmark.train_stream[1], eval_streams=[])
