"""What holds for every memory, and the distributions of the two reservoirs."""

import pytest
import torch
from avalanche.training.plugins import ReplayPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.training.storage_policy import ExperienceReservoirBuffer, ReservoirBuffer

N_STREAMS = 200


def make_benchmark(n=60, n_classes=6, n_experiences=3, seed=0, **settings):
    """Image k is filled with the value k, so that it can be recognised."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, n_classes, generator=generator) < 0.3).int()
    labels[torch.arange(n), torch.arange(n) % n_classes] = 1
    data = TensorDataset(torch.arange(n).float()[:, None, None, None].expand(n, 3, 2, 2))
    data.targets = labels
    return multilabel_benchmark(data, data, n_experiences=n_experiences, **settings)


def stream_into(buffer, benchmark, batch_size=4, epochs=1, replay=0):
    for t, experience in enumerate(benchmark.train_stream):
        buffer.open(t, experience.dataset)
        for batch in torch.arange(len(experience.dataset)).split(batch_size) * epochs:
            buffer.draw(replay)
            buffer.observe(t, batch)
    return buffer


@settings(max_examples=15)
@given(max_size=st.integers(0, 70), batch_size=st.integers(1, 25))
def test_memory_never_over_capacity_and_full_when_it_can_be(buffer_kind, max_size, batch_size):
    buffer = stream_into(buffer_kind(max_size), make_benchmark(), batch_size)
    assert len(buffer) == len(buffer.buffer) == min(max_size, 60)
    assert len({tuple(key) for key in buffer.keys.tolist()}) == len(buffer)
    assert buffer._n_seen == 60


def test_stored_image_keeps_its_own_target_and_columns(buffer_kind):
    benchmark = make_benchmark()
    buffer = stream_into(buffer_kind(20), benchmark)
    stored = {float(x[0, 0, 0]): (x, y) for x, y, _ in buffer.buffer}
    assert len(stored) == 20
    for (e, i), row in zip(buffer.keys.tolist(), buffer.labels):
        wanted_x, wanted_y, _ = benchmark.train_stream[e].dataset[i]
        x, y = stored[float(wanted_x[0, 0, 0])]
        torch.testing.assert_close(x, wanted_x)
        torch.testing.assert_close(y, wanted_y, equal_nan=True)
        assert y.isnan().sum() == 4
        assert torch.equal(row == 1, wanted_y == 1)


def test_augmentation_is_drawn_again_when_a_stored_image_is_opened():
    benchmark = make_benchmark(train_transform=lambda image: image + torch.rand(1))
    buffer = stream_into(ReservoirBuffer(5), benchmark)
    assert not torch.equal(buffer.buffer[0][0], buffer.buffer[0][0])


def test_image_offered_again_is_ignored(buffer_kind):
    benchmark = make_benchmark()
    once, twice = (stream_into(buffer_kind(10, seed=3), benchmark, epochs=epochs) for epochs in (1, 3))
    assert torch.equal(once.keys, twice.keys)
    assert torch.equal(once.class_counts, twice.class_counts)
    assert once._n_seen == twice._n_seen == 60
    buffer = buffer_kind(10)
    buffer.open(0, benchmark.train_stream[0].dataset)
    buffer.observe(0, torch.tensor([5, 3, 5, 1]))
    buffer.observe(0, torch.tensor([], dtype=torch.long))
    assert buffer.keys.tolist() == [[0, 5], [0, 3], [0, 1]]
    assert buffer._n_seen == 3


def test_post_adapt_takes_in_the_whole_experience_by_avalanches_own_plugin(buffer_kind):
    benchmark = make_benchmark()
    plugin = ReplayPlugin(mem_size=15, storage_policy=buffer_kind(15, seed=1))
    again = buffer_kind(15, seed=1)
    for experience in benchmark.train_stream:
        strategy = type("Strategy", (), {"experience": experience, "train_mb_size": 4})()
        plugin.after_training_exp(strategy)
        again.post_adapt(strategy, experience)
    assert len(plugin.storage_policy.buffer) == 15
    assert torch.equal(plugin.storage_policy.keys, again.keys)
    labels = torch.cat([(e.dataset.targets[:] == 1).double() for e in benchmark.train_stream])
    assert torch.equal(again.class_counts, labels.sum(0))


def test_draw_gives_different_stored_images_and_no_more_than_there_are():
    buffer = ReservoirBuffer(6, seed=0)
    assert buffer.draw(4) == []
    stream_into(buffer, make_benchmark())
    stored = {tuple(key) for key in buffer.keys.tolist()}
    assert set(buffer.draw(6)) == set(buffer.draw(100)) == stored
    assert len(set(buffer.draw(4))) == 4
    assert len({tuple(buffer.draw(3)) for _ in range(20)}) > 1


def test_seed_decides_what_is_stored_and_not_how_much_is_replayed(buffer_kind):
    benchmark = make_benchmark()
    cases = ((0, 0), (0, 3), (1, 0))
    keys, same, others = (stream_into(buffer_kind(10, seed=s), benchmark, replay=n).keys for s, n in cases)
    assert torch.equal(keys, same)
    assert not torch.equal(keys, others)


def test_loaded_state_continues_as_if_never_interrupted(buffer_kind, tmp_path):
    benchmark = make_benchmark()
    whole, first, second = buffer_kind(12), buffer_kind(12), buffer_kind(12, seed=99)
    for buffer in (whole, first):
        for t in (0, 1):
            buffer.open(t, benchmark.train_stream[t].dataset)
            buffer.observe(t, torch.arange(len(benchmark.train_stream[t].dataset) - 3))
    first.draw(5), whole.draw(5)
    torch.save(first.state_dict(), tmp_path / "memory.pt")
    second.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True), benchmark.train_stream)
    assert torch.equal(second.labels, whole.labels)
    for buffer in (whole, second):
        stream_into(buffer, benchmark)
    assert torch.equal(whole.keys, second.keys)
    assert torch.equal(whole.class_counts, second.class_counts)
    assert whole.draw(5) == second.draw(5)


def test_stored_images_are_found_by_name_where_the_data_are_in_another_order(tmp_path):
    class Named(TensorDataset):
        def image_name(self, index):
            return f"{self.tensors[0][index].flatten()[0]:.0f}.jpg"

    def benchmark(order):
        labels = torch.eye(4).repeat(6, 1)
        data = Named(torch.arange(24.0)[order][:, None, None, None].expand(24, 3, 2, 2))
        data.targets = labels[order]
        return multilabel_benchmark(data, data, n_experiences=2)

    def stored(buffer):
        return sorted(float(image[0, 0, 0]) for image, *_ in buffer.buffer)

    there, moved = benchmark(torch.arange(24)), benchmark(torch.arange(24).flip(0))
    first, second = stream_into(ReservoirBuffer(7), there), ReservoirBuffer(7)
    second.load_state_dict(first.state_dict(), moved.train_stream)
    assert stored(second) == stored(first)
    assert torch.equal(second.class_counts, first.class_counts)
    renamed = first.state_dict()
    renamed["names"][3] = "100.jpg"
    with pytest.raises(
        ValueError, match=r"holds image '100.jpg' of experience \d, which this stream does not"
    ):
        ReservoirBuffer(7).load_state_dict(renamed, there.train_stream)


def test_resize_keeps_a_part_of_what_was_stored(buffer_kind):
    buffer = stream_into(buffer_kind(20), make_benchmark())
    before = {tuple(key) for key in buffer.keys.tolist()}
    buffer.resize(None, 8)
    assert len(buffer) == buffer.max_size == 8
    assert {tuple(key) for key in buffer.keys.tolist()} < before
    buffer.resize(None, 30)
    assert len(buffer) == 8


def test_experiences_of_one_image(buffer_kind):
    buffer = stream_into(buffer_kind(5), make_benchmark(n=2, n_classes=2, n_experiences=2))
    assert sorted(buffer.keys.tolist()) == [[0, 0], [1, 0]]


def test_wrong_use_and_states_of_other_memories_are_rejected_with_a_reason():
    buffer, dataset = ReservoirBuffer(4), make_benchmark().train_stream[0].dataset
    with pytest.raises(ValueError, match="Experience 0 is not open"):
        buffer.observe(0, torch.tensor([0]))
    buffer.open(0, dataset)
    with pytest.raises(ValueError, match="must keep its dataset"):
        buffer.open(0, dataset.subset([0]))
    with pytest.raises(ValueError, match="MultiLabelAttribute"):
        buffer.open(1, TensorDataset(torch.zeros(3)))
    state = stream_into(ReservoirBuffer(12), make_benchmark()).state_dict()
    with pytest.raises(ValueError, match="12 images were saved, but this memory holds 5"):
        ReservoirBuffer(5).load_state_dict(state, make_benchmark().train_stream)
    with pytest.raises(ValueError, match="same benchmark"):
        ReservoirBuffer(12).load_state_dict(state, make_benchmark(n=30).train_stream)


def test_every_item_is_in_a_reservoir_with_probability_m_over_n(fill):
    n, m, counts = 30, 6, torch.zeros(30)
    for seed in range(N_STREAMS):
        counts[fill(ReservoirBuffer(m, seed=seed), torch.ones(n, 1), batch_size=7).keys[:, 1]] += 1
    expected = N_STREAMS * m / n
    # A stream keeps m different items, so that counts vary less than chi-square's by (n - m) / (n - 1).
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - m)
    assert 1e-3 < chi2.sf(statistic, df=n - 1) < 1 - 1e-3


def test_experiences_have_equal_shares_and_uniform_choice(dataset_of):
    datasets = [dataset_of(torch.ones(n, 1)) for n in (20, 8, 12)]
    counts = [torch.zeros(len(dataset)) for dataset in datasets]
    for seed in range(N_STREAMS):
        buffer = ExperienceReservoirBuffer(9, seed=seed)
        for e, dataset in enumerate(datasets):
            buffer.open(e, dataset)
            for batch in torch.arange(len(dataset)).split(7):
                buffer.observe(e, batch)
            shares = buffer.keys[:, 0].bincount()
            assert shares.max() - shares.min() <= 1
        for e, i in buffer.keys.tolist():
            counts[e][i] += 1
    assert all(chisquare(part).pvalue > 1e-3 for part in counts)


def test_experience_smaller_than_its_share_leaves_room_to_others(fill):
    buffer = fill(ExperienceReservoirBuffer(10), torch.ones(2, 1), torch.ones(30, 1))
    assert buffer.keys[:, 0].bincount().tolist() == [2, 8]
