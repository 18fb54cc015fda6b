import pytest
import torch

from avalanche_agcn.training.replay_loader import ReplayBatchSampler, make_replay_loader
from avalanche_agcn.training.storage import ReservoirBuffer


@pytest.fixture
def buffer(benchmark):
    """A memory of 10 images of experience 0, with experience 1 about to stream."""
    buffer = ReservoirBuffer(10)
    for t in (0, 1):
        buffer.open(t, benchmark.train_stream[t].dataset)
    buffer.observe(0, torch.arange(11))
    return buffer


def test_batch_is_the_stream_followed_by_memory(buffer):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, shuffle=False)
    batches = list(sampler)
    n = len(buffer.datasets[1])
    assert len(batches) == len(sampler) == -(-n // 8)
    assert [key for batch in batches for key in batch[: len(batch) // 2]] == [(1, i) for i in range(n)]
    assert all(set(batch[len(batch) // 2 :]) <= set(buffer.draw(10)) for batch in batches)


@pytest.mark.parametrize(("batch_size_mem", "expected"), [(None, 8), (3, 3), (0, 0), (50, 10)])
def test_memory_part_has_the_size_asked_for_or_all_there_is(buffer, batch_size_mem, expected):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, batch_size_mem=batch_size_mem)
    assert len(next(iter(sampler))) == 8 + expected


def test_shuffled_stream_has_every_image_once_an_epoch_in_new_order(buffer):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, batch_size_mem=0)
    epochs = [[key for batch in sampler for key in batch] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [(1, i) for i in range(len(buffer.datasets[1]))]
    assert epochs[0] != epochs[1]


def test_order_of_the_stream_is_that_of_a_plain_loader(buffer):
    torch.manual_seed(5)
    loader = make_replay_loader(ReplayBatchSampler(buffer, 1, batch_size=8, batch_size_mem=0))
    ours = torch.cat([x for x, *_ in loader])
    torch.manual_seed(5)
    plain = torch.utils.data.DataLoader(buffer.datasets[1], batch_size=8, shuffle=True)
    assert torch.equal(ours, torch.cat([x for x, *_ in plain]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_belong_to_the_batch_that_came_out(buffer, num_workers):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, batch_size_mem=4)
    dataset = buffer.datasets[1]
    for x, y, _ in make_replay_loader(sampler, num_workers=num_workers):
        indices = sampler.next_stream_indices()
        assert torch.equal(x[: len(indices)], torch.stack([dataset[int(i)][0] for i in indices]))
        torch.testing.assert_close(y[: len(indices)], dataset.targets[indices], equal_nan=True)
        assert y[len(indices) :, 2:].isnan().all()  # replayed: the columns of experience 0
        assert not y[len(indices) :, :2].isnan().any()


def test_epoch_that_was_stopped_leaves_no_indices_behind(buffer):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, shuffle=False)
    for batch_number, _ in enumerate(sampler):
        if batch_number == 1:
            break
    next(iter(sampler))
    assert sampler.next_stream_indices().tolist() == list(range(8))


def test_memory_takes_in_a_batch_before_the_next_is_drawn(buffer):
    sampler = ReplayBatchSampler(buffer, 1, batch_size=8, observe=True)
    n_before, n_seen, n_stream = 11, [], []
    for _ in sampler:
        n_seen.append(int(buffer.state_dict()["n_seen"]) - n_before)
        n_stream.append(len(sampler.next_stream_indices()))
    assert n_seen == [sum(n_stream[:k]) for k in range(len(n_stream))]
    assert buffer.state_dict()["n_seen"] == n_before + sum(n_stream) == n_before + len(buffer.datasets[1])


def test_views_repeat_the_whole_batch(buffer):
    keys = next(iter(ReplayBatchSampler(buffer, 1, batch_size=4, batch_size_mem=3, views=2)))
    assert len(keys) == 14
    assert keys[:7] == keys[7:]


def test_drop_last_leaves_out_what_is_not_full(buffer):
    n = len(buffer.datasets[1])
    size = next(size for size in range(2, n) if n % size)
    sampler = ReplayBatchSampler(buffer, 1, batch_size=size, batch_size_mem=0, drop_last=True)
    assert [len(batch) for batch in sampler] == [size] * (n // size)
