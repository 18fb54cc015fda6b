import json
from collections import Counter

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, split_online_stream, with_classes_timeline
from avalanche.benchmarks.scenarios.online import split_continuous_linear_decay_stream
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.storage_policy import ClassBalancedBuffer
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, multiprocessing, nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.experience import (
    MultiLabelAttribute,
    check_whole_experience,
    count_seen,
    encode,
    origin_of,
)
from avalanche_agcn.training import PartialBCEWithLogitsLoss

NAN = float("nan")


@st.composite
def partial_targets(draw, width=None):
    rows = draw(st.integers(0, 6))
    columns = width or draw(st.integers(1, 5))
    cells = draw(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(cells).reshape(rows, columns)


@given(partial_targets())
def test_class_statistics_equal_loops_over_the_cells(targets):
    attribute = MultiLabelAttribute(targets)
    expected = {}
    for row, column in (targets == 1).nonzero().tolist():
        expected.setdefault(column, []).append(row)
    assert attribute.val_to_idx == expected
    assert attribute.uniques == set(expected)
    assert attribute.count == {column: len(rows) for column, rows in expected.items()}


@given(partial_targets(), st.data())
def test_subset_and_concat_equal_tensor_indexing(targets, data):
    position = st.integers(0, max(len(targets) - 1, 0))
    chosen = data.draw(st.lists(position, max_size=8 if len(targets) else 0))
    other = data.draw(partial_targets(width=targets.shape[1]))
    subset = MultiLabelAttribute(targets).subset(chosen)
    both = subset.concat(MultiLabelAttribute(other))
    assert type(subset) is type(both) is MultiLabelAttribute
    expected = torch.cat([targets[torch.tensor(chosen, dtype=torch.long)], other])
    torch.testing.assert_close(both.data, expected, rtol=0, atol=0, equal_nan=True)
    assert both.val_to_idx == MultiLabelAttribute(expected).val_to_idx


@given(partial_targets())
def test_iterating_gives_rows_whose_int_is_their_rarest_class(targets):
    counts = (targets == 1).sum(0).tolist()
    rows = list(MultiLabelAttribute(targets))
    assert len(rows) == len(targets)
    for row, expected in zip(rows, targets, strict=True):
        torch.testing.assert_close(row.as_subclass(torch.Tensor), expected, rtol=0, atol=0, equal_nan=True)
        classes = (expected == 1).nonzero().flatten().tolist()
        assert int(row) == min(classes, key=lambda column: (counts[column], column), default=-1)
        assert int(row.nansum()) == len(classes)  # a result is an ordinary tensor


def test_avalanches_class_balanced_buffer_groups_images_by_their_rarest_class():
    data = TensorDataset(torch.arange(12.0)[:, None])
    data.targets = torch.zeros(12, 4, dtype=torch.int)
    data.targets[:, 0] = 1  # all have the frequent class 0, half of them another one
    for image, column in ((1, 1), (3, 1), (5, 2), (7, 2), (9, 3), (11, 3)):
        data.targets[image, column] = 1
    dataset = multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset
    buffer = ClassBalancedBuffer(8)
    buffer.update_from_dataset(dataset)
    kept = {
        column: sorted(int(x) for x, *_ in group.buffer) for column, group in buffer.buffer_groups.items()
    }
    assert {column: kept[column] for column in (1, 2, 3)} == {1: [1, 3], 2: [5, 7], 3: [9, 11]}
    assert len(kept[0]) == 2
    assert all(image % 2 == 0 for image in kept[0])
    assert len(buffer.buffer) == 8


class Sparse:
    """Like a sparse matrix of SciPy."""

    def __init__(self, matrix):
        self.toarray = matrix.numpy


def test_targets_and_indices_of_any_type_are_taken_and_values_are_read_as_float_in_every_way():
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64):
        targets = torch.eye(3).to(dtype)
        attribute = MultiLabelAttribute(targets)
        assert attribute.data.tolist() == targets.tolist() == torch.eye(3).tolist()
        assert attribute.codes.dtype == torch.int8
    eye = torch.eye(3)
    for targets in (eye.to_sparse(), eye.to_sparse_csr(), list(eye), tuple(eye), eye.tolist(), Sparse(eye)):
        assert MultiLabelAttribute(targets).data.tolist() == eye.tolist()
    attribute = MultiLabelAttribute(torch.tensor([[1, 0, NAN], [0, 1, 0], [0, 0, 1]]))
    expected = torch.tensor([[0, 0, 1], [1, 0, NAN]])
    numbers = [[2, 0], (2, 0), torch.tensor([2, 0]), np.array([2, 0]), range(2, -1, -2), [torch.tensor(2), 0]]
    for part in map(attribute.subset, numbers):
        for read in (part.data, part[:], torch.stack(list(part)), torch.tensor(np.asarray(part))):
            torch.testing.assert_close(read, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("targets", "name", "message"),
    [
        (torch.tensor([0, 2, 1]), "targets", r"2-D.*shape \(3,\).*one_hot"),
        (torch.tensor([[0, 1], [2, 0]]), "targets", "are 2 for image 1, class 0"),
        (torch.eye(2).log(), "targets", "are -inf for image 0, class 1"),
        (None, "targets", r"not None \(.*\): set targets\[image, class\] = 1"),
        ((row for row in torch.eye(2)), "targets", r"not a generator \(.*\): set"),
        ([{0}, {0, 1}], "targets", r"not lists of labels such as \[0\] \(.*\): set"),
        ([[0], [0, 1]], "targets", r"not lists of labels such as \[0\] \(.*\): set"),
        ([[], [1]], "targets", r"not lists of labels such as \[\] \(its rows have different lengths\): set"),
        ([torch.ones(2), torch.ones(3)], "targets", r"not lists of labels such as tensor\(\[1., 1.\]\) "),
        (["cat", "dog"], "targets", r"not lists of labels such as 'cat'"),
        (torch.ones(2, 3, 4, 4).bool(), "targets", r"2-D.*shape \(2, 3, 4, 4\)"),
        (np.ma.masked_array(np.eye(2), np.eye(2)), "targets", "not a MaskedArray, whose mask would be lost"),
        (torch.eye(3), "targets", r"'targets', 3 samples, 3 classes\) to .*: give both the same type, name"),
        (torch.eye(2), "other", r"'other', 2 samples, 2 classes\) to .*: give both the same type, name and"),
    ],
)
def test_targets_that_do_not_fit_are_rejected(targets, name, message):
    with pytest.raises(ValueError, match=message):
        MultiLabelAttribute(torch.eye(2)).concat(MultiLabelAttribute(targets, name))


def make_benchmark(n_train=24):
    """Three experiences of two classes; every test image shows every class; pixel 0 numbers the images."""
    train, test = TensorDataset(torch.rand(n_train, 3)), TensorDataset(torch.rand(5, 3))
    train.tensors[0][:, 0] = torch.arange(n_train)
    train.targets, test.targets = torch.eye(6).long()[torch.arange(n_train) % 6], torch.ones(5, 6).long()
    return multilabel_benchmark(train, test, n_experiences=3)


@pytest.fixture
def benchmark():
    return make_benchmark()


def test_columns_of_an_experience_and_of_its_online_pieces(benchmark):
    for stream in (benchmark.train_stream, benchmark.test_stream):
        experience = stream[1]
        assert (experience.previous_classes, experience.classes_in_this_experience) == ([0, 1], [2, 3])
        assert (experience.classes_seen_so_far, experience.future_classes) == ([0, 1, 2, 3], [4, 5])
        assert experience.task_labels == [0]
        assert [count_seen(experience) for experience in stream] == [2, 4, 6]
    online = list(split_online_stream(benchmark.train_stream, experience_size=3))
    assert [count_seen(piece) for piece in online] == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert [origin_of(piece).current_experience for piece in online] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    check_whole_experience(benchmark.train_stream[0], "EWC")
    with pytest.raises(ValueError, match=r"EWC .* piece of one, of 3 images"):
        check_whole_experience(online[0], "EWC")


def test_classes_that_avalanche_finds_do_not_count_as_seen_where_the_experience_knows_them(benchmark):
    timeline = with_classes_timeline(benchmark)
    assert timeline.test_stream[0].classes_seen_so_far == set(range(6))
    assert [e.classes_in_this_experience for e in timeline.train_stream] == [{0, 1}, {2, 3}, {4, 5}]
    for stream in (timeline.train_stream, timeline.test_stream):
        assert [count_seen(experience) for experience in stream] == [2, 4, 6]
    plain = benchmark_from_datasets(train=[experience.dataset for experience in benchmark.train_stream])
    assert [count_seen(experience) for experience in with_classes_timeline(plain).train_stream] == [2, 4, 6]


def test_experiences_without_classes_or_a_prefix_of_the_columns_are_rejected_with_the_fix(benchmark):
    mixing = {"iters_per_virtual_epoch": 2, "beta": 0.5, "shuffle": False}
    mixed = split_continuous_linear_decay_stream(benchmark.train_stream, experience_size=4, **mixing)
    late = benchmark_from_datasets(train=[benchmark.train_stream[1].dataset])
    for experience in (next(iter(mixed)), late.train_stream[0]):
        with pytest.raises(ValueError, match=r"no `classes_seen_so_far`; make .* multilabel_benchmark\(\.\."):
            count_seen(experience)
    with pytest.raises(ValueError, match=r"columns \[2, 3\], but they must be the first 2 columns"):
        count_seen(with_classes_timeline(late).train_stream[0])


class SeenImages(SupervisedPlugin):
    """Records which images each epoch of each experience trains on."""

    def before_training(self, strategy, **kwargs):
        self.epochs = []

    def before_training_epoch(self, strategy, **kwargs):
        self.epochs.append([])

    def before_training_iteration(self, strategy, **kwargs):
        self.epochs[-1] += strategy.mb_x[:, 0].int().tolist()


def train_naive():
    """Images of each epoch, as one process sees them under Avalanche's own strategy."""
    model, seen = nn.Linear(3, 6), SeenImages()
    settings = {"optimizer": torch.optim.SGD(model.parameters(), 0.01), "evaluator": None, "plugins": [seen]}
    settings |= {"criterion": PartialBCEWithLogitsLoss(), "train_mb_size": 4, "train_epochs": 2}
    Naive(model=model, **settings).train(make_benchmark(46).train_stream)
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
    assert len(alone) == len(ranks[0]) == len(ranks[1]) == 3 * 2  # experiences and epochs
    for whole, *parts in zip(alone, *ranks, strict=True):
        together = Counter(parts[0]) + Counter(parts[1])
        assert together.keys() == set(whole)
        # Avalanche repeats one image where their number is odd, so that both processes have equally many.
        assert together.total() - len(whole) == len(whole) % 2


def test_complex_targets_are_rejected():
    with pytest.raises(ValueError, match=r"targets must be 0 or 1 .*, not of type torch.complex64"):
        encode(torch.ones(2, 2, dtype=torch.complex64))
