import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, split_online_stream, with_classes_timeline
from avalanche.benchmarks.scenarios.online import split_continuous_linear_decay_stream
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.models.growing import count_seen


@pytest.fixture
def benchmark():
    """Three experiences of two classes; every test image shows every class."""
    train, test = TensorDataset(torch.rand(24, 3)), TensorDataset(torch.rand(5, 3))
    train.targets, test.targets = torch.eye(6).long().repeat(4, 1), torch.ones(5, 6).long()
    return multilabel_benchmark(train, test, n_experiences=3)


def test_experiences_tell_the_classes_seen_by_then(benchmark):
    for stream in (benchmark.train_stream, benchmark.test_stream):
        assert [count_seen(experience) for experience in stream] == [2, 4, 6]


def test_parts_of_an_experience_have_seen_what_it_has(benchmark):
    online = list(split_online_stream(benchmark.train_stream, experience_size=3))
    assert [count_seen(part) for part in online] == [2, 2, 2, 4, 4, 4, 6, 6, 6]


def test_other_labels_of_test_images_do_not_count_as_seen(benchmark):
    timeline = with_classes_timeline(benchmark)
    assert timeline.test_stream[0].classes_seen_so_far == set(range(6))
    for stream in (timeline.train_stream, timeline.test_stream):
        assert [count_seen(experience) for experience in stream] == [2, 4, 6]


def test_classes_found_by_avalanche_are_counted(benchmark):
    plain = benchmark_from_datasets(train=[experience.dataset for experience in benchmark.train_stream])
    assert [count_seen(experience) for experience in with_classes_timeline(plain).train_stream] == [2, 4, 6]


def linear_decay(benchmark):
    return split_continuous_linear_decay_stream(
        benchmark.train_stream, experience_size=4, iters_per_virtual_epoch=2, beta=0.5, shuffle=False
    )


def without_classes(benchmark):
    return benchmark_from_datasets(train=[benchmark.train_stream[0].dataset]).train_stream


@pytest.mark.parametrize("make", [linear_decay, without_classes])
def test_experience_that_does_not_tell_its_classes_is_refused_with_the_fix(benchmark, make):
    experience = next(iter(make(benchmark)))
    with pytest.raises(
        ValueError,
        match=r"no `classes_seen_so_far`; make .* multilabel_benchmark\(\.\.\.\), or .*with_classes_timeline",
    ):
        count_seen(experience)


def test_classes_that_are_no_prefix_of_the_columns_are_refused(benchmark):
    late = benchmark_from_datasets(train=[benchmark.train_stream[1].dataset])
    with pytest.raises(ValueError, match=r"columns \[2, 3\], but they must be the first 2 columns"):
        count_seen(with_classes_timeline(late).train_stream[0])
