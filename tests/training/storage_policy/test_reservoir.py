import torch
from scipy.stats import chi2, chisquare
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.training.storage_policy import ExperienceReservoirBuffer, ReservoirBuffer

N_STREAMS = 200


def dataset_of(n):
    data = TensorDataset(torch.zeros(n, 1))
    data.targets = torch.ones(n, 1, dtype=torch.int)
    return multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset


def test_every_item_is_in_memory_with_probability_m_over_n():
    n, m = 30, 6
    dataset, counts = dataset_of(n), torch.zeros(n)
    for seed in range(N_STREAMS):
        buffer = ReservoirBuffer(m, seed=seed)
        buffer.open(0, dataset)
        for batch in torch.arange(n).split(7):
            buffer.observe(0, batch)
        counts[buffer.keys[:, 1]] += 1
    expected = N_STREAMS * m / n
    # A stream keeps m different items, so that counts vary less than chi-square's by (n - m) / (n - 1).
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - m)
    assert 1e-3 < chi2.sf(statistic, df=n - 1) < 1 - 1e-3


def test_experiences_have_equal_shares_and_uniform_choice():
    sizes, m = [20, 8, 12], 9
    datasets = [dataset_of(n) for n in sizes]
    counts = [torch.zeros(n) for n in sizes]
    for seed in range(N_STREAMS):
        buffer = ExperienceReservoirBuffer(m, seed=seed)
        for e, dataset in enumerate(datasets):
            buffer.open(e, dataset)
            for batch in torch.arange(len(dataset)).split(7):
                buffer.observe(e, batch)
            shares = buffer.keys[:, 0].bincount()
            assert shares.max() - shares.min() <= 1
        for e, i in buffer.keys.tolist():
            counts[e][i] += 1
    for part in counts:
        assert chisquare(part).pvalue > 1e-3


def test_experience_smaller_than_its_share_leaves_room_to_others():
    buffer = ExperienceReservoirBuffer(10)
    for e, n in enumerate([2, 30]):
        buffer.open(e, dataset_of(n))
        buffer.observe(e, torch.arange(n))
    assert buffer.keys[:, 0].bincount().tolist() == [2, 8]
