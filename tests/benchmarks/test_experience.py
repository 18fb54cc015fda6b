import json
from collections import Counter

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, split_online_stream, with_classes_timeline
from avalanche.benchmarks.scenarios.online import split_continuous_linear_decay_stream
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from torch import distributed, multiprocessing, nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.experience import check_whole_experience, count_seen, origin_of
from avalanche_agcn.training import PartialBCEWithLogitsLoss


def make_benchmark(n_train=24):
    """Three experiences of two classes; every test image shows every class; pixel 0 numbers the images."""
    train, test = TensorDataset(torch.rand(n_train, 3)), TensorDataset(torch.rand(5, 3))
    train.tensors[0][:, 0] = torch.arange(n_train)
    train.targets, test.targets = torch.eye(6).long()[torch.arange(n_train) % 6], torch.ones(5, 6).long()
    return multilabel_benchmark(train, test, n_experiences=3)


@pytest.fixture
def benchmark():
    return make_benchmark()


def test_columns_of_an_experience(benchmark):
    for stream in (benchmark.train_stream, benchmark.test_stream):
        experience = stream[1]
        assert experience.classes_in_this_experience == [2, 3]
        assert experience.previous_classes == [0, 1]
        assert experience.classes_seen_so_far == [0, 1, 2, 3]
        assert experience.future_classes == [4, 5]
        assert experience.task_labels == [0]
        assert [count_seen(experience) for experience in stream] == [2, 4, 6]


def test_pieces_of_an_online_stream_count_as_their_experience(benchmark):
    online = list(split_online_stream(benchmark.train_stream, experience_size=3))
    assert [count_seen(piece) for piece in online] == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert [origin_of(piece).current_experience for piece in online] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_only_whole_experiences_pass_the_check(benchmark):
    whole = benchmark.train_stream[0]
    check_whole_experience(whole, "EWC")
    piece = next(iter(split_online_stream(benchmark.train_stream, experience_size=3)))
    with pytest.raises(ValueError, match=r"EWC .* piece of one, of 3 images"):
        check_whole_experience(piece, "EWC")


def test_other_labels_of_test_images_do_not_count_as_seen(benchmark):
    timeline = with_classes_timeline(benchmark)
    assert timeline.test_stream[0].classes_seen_so_far == set(range(6))
    assert [e.classes_in_this_experience for e in timeline.train_stream] == [{0, 1}, {2, 3}, {4, 5}]
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
def test_experience_without_classes_is_rejected_with_the_fix(benchmark, make):
    experience = next(iter(make(benchmark)))
    with pytest.raises(ValueError, match=r"no `classes_seen_so_far`; make .* multilabel_benchmark\(\.\.\.\)"):
        count_seen(experience)


def test_classes_that_are_no_prefix_of_the_columns_are_rejected(benchmark):
    late = benchmark_from_datasets(train=[benchmark.train_stream[1].dataset])
    with pytest.raises(ValueError, match=r"columns \[2, 3\], but they must be the first 2 columns"):
        count_seen(with_classes_timeline(late).train_stream[0])


N_TRAIN = 46
EPOCHS = 2


class SeenImages(SupervisedPlugin):
    """Notes which images each epoch of each experience trains on."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def before_training_epoch(self, strategy, **kwargs):
        self.epochs.append([])

    def before_training_iteration(self, strategy, **kwargs):
        self.epochs[-1] += strategy.mb_x[:, 0].int().tolist()


def train_naive():
    """Images of each epoch, as one process sees them under Avalanche's own strategy."""
    model, seen = nn.Linear(3, 6), SeenImages()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=4,
        train_epochs=EPOCHS,
        plugins=[seen],
        evaluator=None,
    )
    strategy.train(make_benchmark(N_TRAIN).train_stream)
    return seen.epochs


def train_as_rank(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps(train_naive()))
    distributed.destroy_process_group()


def test_two_processes_share_the_images_that_one_process_trains_on(tmp_path):
    # Forked: a spawned process would import Avalanche once more, which takes seconds.
    multiprocessing.start_processes(train_as_rank, (tmp_path,), nprocs=2, start_method="fork")
    alone = train_naive()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert len(alone) == len(ranks[0]) == len(ranks[1]) == 3 * EPOCHS
    for whole, *parts in zip(alone, *ranks, strict=True):
        together = Counter(parts[0]) + Counter(parts[1])
        assert together.keys() == set(whole)
        # Avalanche repeats one image where their number is odd, so that both processes have equally many.
        assert together.total() - len(whole) == len(whole) % 2
