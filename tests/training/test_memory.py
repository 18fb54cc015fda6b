"""Replay, A-GEM's projection and the contrastive loss."""

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.training.plugins import ReplayPlugin
from torch import nn

from avalanche_agcn.training import MultiLabelContrastiveLoss
from avalanche_agcn.training.plugins import AGEMPlugin, ContrastivePlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ExperienceReservoirBuffer, ReservoirBuffer


@pytest.fixture
def spy_on(train, watch):
    """Train with a replay plugin; return each step's targets in the loss and after it, and the memory's size.

    The memory is updated after this look at it.
    """

    def run(plugin, **settings):
        def after_step(strategy):
            return strategy.mb_y.clone(), len(plugin.storage_policy)

        spy = watch(after_forward=lambda strategy: strategy.mb_y.clone(), after_training_iteration=after_step)
        train(spy, plugin, **settings)
        seen, after = spy.seen.values()
        return [(targets, *rest) for targets, rest in zip(seen, after, strict=True)]

    return run


def test_memory_grows_by_each_batch_and_adds_as_many_rows_whose_targets_are_hidden_afterwards(
    spy_on, benchmark
):
    steps, n = spy_on(OnlineReplayPlugin(ReservoirBuffer(1000)), n=1), len(benchmark.train_stream[0].dataset)
    for k, (seen, after, size) in enumerate(steps):
        of_stream = min(8, n - 8 * k)
        assert size == 8 * k
        assert len(seen) == (2 * of_stream if k else 8)
        torch.testing.assert_close(after[:of_stream], seen[:of_stream], equal_nan=True)
        assert after[of_stream:].isnan().all()
        assert not seen[:, :2].isnan().any()


def test_replayed_rows_have_the_columns_of_their_own_experience(spy_on):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20)
    last, *_ = spy_on(plugin)[-1]
    blocks = (~last.isnan()).view(len(last), 3, 2)
    assert torch.equal(blocks.all(2), blocks.any(2))
    assert (blocks.any(2).sum(1) == 1).all()
    assert blocks[plugin.n_stream :, :2].any()


def test_newer_as_negative_fills_the_newer_columns_of_replayed_rows_only(spy_on):
    plugin = OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=20, newer_as_negative=True)
    stream, replayed = spy_on(plugin)[-1][0].tensor_split([plugin.n_stream])
    assert stream[:, :4].isnan().all()
    from_first = replayed[~replayed[:, 0].isnan()]
    from_second = replayed[replayed[:, 0].isnan() & ~replayed[:, 2].isnan()]
    assert min(len(from_first), len(from_second)) > 0
    assert (from_first[:, 2:] == 0).all()
    assert from_second[:, :2].isnan().all()
    assert (from_second[:, 4:] == 0).all()


def test_empty_memory_trains_like_fine_tuning(train, same_weights, buffer_kind):
    assert same_weights(train(OnlineReplayPlugin(buffer_kind(0))), train())
    assert same_weights(train(AGEMPlugin(buffer_kind(0))), train())


def test_memory_smaller_than_a_batch_and_batch_larger_than_memory(spy_on, buffer_kind):
    plugin = OnlineReplayPlugin(buffer_kind(3))
    sizes = [len(targets) for targets, *_ in spy_on(plugin, loader={"drop_last": True})]
    assert len(plugin.storage_policy) == 3
    assert sizes == [8] + [8 + 3] * (len(sizes) - 1)


def test_several_epochs_offer_each_image_once(train):
    plugin, once = OnlineReplayPlugin(ReservoirBuffer(1000)), OnlineReplayPlugin(ReservoirBuffer(1000))
    train(plugin, train_epochs=3)
    train(once)
    assert len(plugin.storage_policy) == len(once.storage_policy) == 90
    assert torch.equal(plugin.storage_policy.class_counts, once.storage_policy.class_counts)


def test_several_workers_train_on_the_same_batches(train, same_weights, buffer_kind):
    alone, workers = OnlineReplayPlugin(buffer_kind(20)), OnlineReplayPlugin(buffer_kind(20))
    expected = train(alone, n=2)
    loader = {"num_workers": 2, "persistent_workers": True}
    assert same_weights(expected, train(workers, n=2, loader=loader))
    assert torch.equal(alone.storage_policy.keys, workers.storage_policy.keys)
    assert not same_weights(expected, train(n=2))


def test_buffers_work_in_avalanches_own_replay_plugin(spy_on, buffer_kind):
    plugin = ReplayPlugin(mem_size=12, storage_policy=buffer_kind(12))
    steps = spy_on(plugin)
    assert len(plugin.storage_policy) == 12
    assert steps[0][-1] == 0
    assert len(steps[-2][0]) == 16
    assert (~steps[-2][0][8:, :4].isnan()).any()


def test_state_restores_the_memory(train, benchmark):
    plugin, again = OnlineReplayPlugin(ReservoirBuffer(15)), OnlineReplayPlugin(ReservoirBuffer(15))
    train(plugin)
    again.load_state_dict(plugin.state_dict(), benchmark.train_stream)
    assert torch.equal(again.storage_policy.keys, plugin.storage_policy.keys)


def test_pieces_of_one_online_stream_fill_the_memory(benchmark, train):
    plugin = OnlineReplayPlugin(ReservoirBuffer(1000))
    train(plugin, stream=split_online_stream(benchmark.train_stream, experience_size=8))
    stored = plugin.storage_policy.buffer.targets[:].nan_to_num(-1).tolist()
    whole = [row for e in benchmark.train_stream for row in e.dataset.targets[:].nan_to_num(-1).tolist()]
    assert sorted(stored) == sorted(whole)


def test_streams_and_plugins_that_a_memory_cannot_work_with_are_rejected(benchmark, train):
    first, second = (split_online_stream([e], experience_size=8) for e in benchmark.train_stream[:2])
    message = r"Experience 0 had 8 images and now has 8 others.*train_stream at once"
    with pytest.raises(ValueError, match=message):
        train(OnlineReplayPlugin(ReservoirBuffer(1000)), stream=[*first, *second])
    with pytest.raises(ValueError, match=r"A-GEM sums up each experience .* piece of one, of 8 images"):
        train(AGEMPlugin(ExperienceReservoirBuffer(9)), stream=first)
    memory = OnlineReplayPlugin(ReservoirBuffer(9))
    with pytest.raises(ValueError, match="one memory only, but has OnlineReplayPlugin, OnlineReplayPlugin"):
        train(memory, OnlineReplayPlugin(ReservoirBuffer(9)))
    with pytest.raises(RuntimeError, match="another plugin has replaced it"):
        train(OnlineReplayPlugin(ReservoirBuffer(9)), ReplayPlugin(mem_size=9))


def test_no_step_opposes_a_memory_of_earlier_experiences(train, benchmark, watch):
    agem = AGEMPlugin(ExperienceReservoirBuffer(30), sample_size=16)

    def cosine(strategy):
        """Of the gradient and the reference, if there is one."""
        if agem._reference is None:
            return None
        parts = agem._reference, [p.grad for p in strategy.model.parameters()]
        one, other = (torch.cat([g.flatten() for g in gradients]).double() for gradients in parts)
        return torch.cosine_similarity(one, other, dim=0).item()

    checker = watch(after_backward=cosine, after_forward=lambda strategy: len(strategy.mb_output))
    train(agem, checker)
    n_first = -(-len(benchmark.train_stream[0].dataset) // 8)
    cosines, rows = checker.seen.values()
    assert cosines[:n_first] == [None] * n_first
    later = cosines[n_first:]
    assert len(later) > 5
    assert min(later) > -1e-5
    assert any(abs(one) < 1e-5 for one in later)  # some were projected
    assert any(one > 1e-3 for one in later)  # and some were not
    assert max(rows) == 8  # the reference is not in the batch
    assert agem.storage_policy.keys[:, 0].bincount().tolist() == [10, 10, 10]


def test_contrastive_loss_lowers_the_contrast_with_one_pass_of_each_image(
    benchmark, train, make_strategy, same_weights
):
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
    assert same_weights(train(ContrastivePlugin(weight=0.0)), train())
    with pytest.raises(TypeError, match="no backbone"):
        train(ContrastivePlugin(), model=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)))
