import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream, split_online_stream
from avalanche.benchmarks.utils.data_loader import ReplayDataLoader, TaskBalancedDataLoader
from avalanche.training.storage_policy import ExperienceBalancedBuffer, ReservoirSamplingBuffer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from avalanche_agcn.benchmarks import MultiLabelAttribute, multilabel_benchmark, split
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, make_plan
from avalanche_agcn.benchmarks.protocols import Protocol


class Images(Dataset):
    """Every pixel of image i is i; reading an image is recorded."""

    def __init__(self, targets):
        self.targets, self.opened = targets, []

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        self.opened.append(index)
        return torch.full((3, 4, 4), float(index)), self.targets[index]


def drawn_images(n, n_classes, seed=0, positives=0.3):
    targets = (torch.rand(n, n_classes, generator=torch.Generator().manual_seed(seed)) < positives).long()
    targets[torch.arange(n_classes), torch.arange(n_classes)] = 1  # every class is shown
    return Images(targets)


@pytest.fixture
def benchmark():
    return multilabel_benchmark(drawn_images(60, 6), drawn_images(30, 6, seed=1), n_experiences=3)


def images_of(dataset):
    return [int(dataset[i][0][0, 0, 0]) for i in range(len(dataset))]


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def draw_labels(draw, n_images, n_classes):
    cells = st.lists(st.integers(0, 1), min_size=n_images * n_classes, max_size=n_images * n_classes)
    return torch.tensor(draw(cells), dtype=torch.int8).reshape(n_images, n_classes)


@st.composite
def cases(draw):
    """Labels, the classes that bring an image into an experience, names of columns, and settings."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    shape = draw(st.integers(1, 12)), sum(sizes)
    labels = [draw_labels(draw, *shape) for _ in range(2)]
    assume(labels[0].any(0).all())
    members = [own | draw_labels(draw, *shape) for own in labels] if draw(st.booleans()) else None
    names = draw(st.permutations("abcdefghijkl"[: shape[1]]))
    settings = {name: draw(st.booleans()) for name in ("repeat_images", "unlabelled_as_negative")}
    settings["classes_per_experience"] = sizes
    settings["class_order"] = draw(st.just("alphabetical") | st.permutations(range(shape[1])))
    settings["test_images"] = draw(st.sampled_from(["seen", "all"]))
    return labels, members, names, settings


def make(labels, members, names, settings, seed):
    data = [Images(own) for own in labels]
    if members is None:
        return multilabel_benchmark(*data, class_names=names, seed=seed, **settings)
    membership = {"train_membership": members[0], "test_membership": members[1]}
    plan = make_plan(*data, Protocol(**settings), class_names=names, seed=seed, **membership)
    return MultiLabelBenchmark(plan)


@settings(max_examples=150)
@given(cases(), st.integers(0, 5))
def test_no_image_or_label_is_lost_doubled_or_wrong(case, seed):
    labels, members, names, rules = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class may have no positive left in its own experience
        try:
            benchmark = make(*case, seed)
        except ValueError as error:
            assume("has no training image" not in str(error))
            raise
    order, n = rules["class_order"], len(names)
    order = sorted(range(n), key=names.__getitem__) if order == "alphabetical" else order
    assert benchmark.class_names == [names[c] for c in order]
    train, test = (own[:, order] for own in labels)
    train_members, test_members = (own[:, order] for own in members or labels)
    seen, end = [], 0
    for size, experience in zip(rules["classes_per_experience"], benchmark.train_stream, strict=True):
        start, end = end, end + size
        assert experience.classes_in_this_experience == list(range(start, end))
        images, relevant = images_of(experience.dataset), train_members[:, start:end].any(1)
        assert images
        assert relevant[images].all()
        assert not rules["repeat_images"] or images == relevant.nonzero().flatten().tolist()
        seen += images
        expected = torch.full((len(images), n), 0.0 if rules["unlabelled_as_negative"] else torch.nan)
        expected[:, start:end] = train[images, start:end].float()
        assert_same(experience.dataset.targets.data, expected)
        assert_same(torch.stack([experience.dataset[i][1] for i in range(len(images))]), expected)
    used = train_members.any(1).nonzero().flatten().tolist()
    assert sorted(set(seen)) == used
    assert rules["repeat_images"] or len(seen) == len(used)
    assert images_of(benchmark.complete_train_dataset) == used
    assert_same(benchmark.complete_train_dataset.targets.data, train[used].float())

    nested: list[int] = []
    for experience in benchmark.test_stream:
        images = images_of(experience.dataset)
        assert_same(experience.dataset.targets.data, test[images].float())
        nested += images
        relevant = test_members[:, : len(experience.classes_seen_so_far)].any(1)
        shown = relevant | (rules["test_images"] == "all")
        assert sorted(nested) == shown.nonzero().flatten().tolist()


@given(st.integers(0, 3), st.sampled_from([1, 5, 0.25, np.int64(5), np.float64(0.25)]))
@settings(max_examples=20)
def test_validation_images_leave_training_and_are_fully_labelled(seed, size):
    data = drawn_images(60, 6, seed, positives=0.5)
    benchmark = multilabel_benchmark(data, data, n_experiences=3, validation_size=size, seed=seed)
    train = [i for e in benchmark.train_stream for i in images_of(e.dataset)]
    valid = [i for e in benchmark.valid_stream for i in images_of(e.dataset)]
    labelled = data.targets.any(1).nonzero().flatten().tolist()
    assert sorted(train + valid) == labelled
    assert len(valid) == (size if size >= 1 else round(size * len(labelled)))
    for experience in benchmark.valid_stream:
        assert_same(experience.dataset.targets.data, data.targets[images_of(experience.dataset)].float())
    assert images_of(benchmark.complete_train_dataset) == sorted(train)


def test_validation_images_are_all_in_the_first_set_if_test_images_are():
    data = drawn_images(60, 6, 0, positives=0.5)
    benchmark = multilabel_benchmark(data, data, n_experiences=3, validation_size=20, test_images="all")
    assert [len(experience.dataset) for experience in benchmark.valid_stream] == [20, 0, 0]


def test_seed_fixes_what_is_drawn():
    data, parts = drawn_images(100, 6, positives=0.6), []
    options = {"n_experiences": 3, "assignment": "random", "validation_size": 20}
    for seed in (1, 1, 2):
        benchmark = multilabel_benchmark(data, data, seed=seed, **options)
        parts.append([images_of(e.dataset) for e in [*benchmark.train_stream, *benchmark.valid_stream]])
    assert parts[0] == parts[1] != parts[2]


def test_images_are_opened_when_they_are_read_and_transforms_follow_the_mode():
    data = Images(torch.eye(2))
    transforms = {"train_transform": lambda x: x + 10, "eval_transform": lambda x: x + 20}
    benchmark = multilabel_benchmark(data, data, n_experiences=1, **transforms)
    train, test = benchmark.train_stream[0].dataset, benchmark.test_stream[0].dataset
    assert train.targets.count
    assert not data.opened
    assert images_of(train) == images_of(benchmark.complete_train_dataset) == [10, 11]
    assert images_of(train.eval()) == images_of(test) == [20, 21]
    assert images_of(train.replace_current_transform_group(lambda x: x + 30).subset([1])) == [31]


def test_plan_makes_the_same_benchmark_or_a_part_of_it():
    data = drawn_images(60, 6)
    benchmark = multilabel_benchmark(data, data, n_experiences=2, validation_size=10)
    for n in (100, 3):
        part = MultiLabelBenchmark(benchmark.plan.limited(n))
        assert part.class_names == benchmark.class_names
        for name, stream in benchmark.streams.items():
            for whole, first in zip(stream, part.streams[name], strict=True):
                assert images_of(first.dataset) == images_of(whole.dataset)[:n]
                assert_same(first.dataset.targets.data, whole.dataset.targets[:n])
    assert len(part.complete_train_dataset) == 6
    with pytest.raises(ValueError, match="at least 1 image per experience, not 0"):
        benchmark.plan.limited(0)


def online_pieces(benchmark):
    return split_online_stream(benchmark.train_stream, experience_size=7)


def validation_streams(benchmark):
    split = benchmark_with_validation_stream(benchmark, validation_size=0.5, shuffle=True, seed=0)
    return [*split.train_stream, *split.valid_stream]


@pytest.mark.parametrize("divide", [online_pieces, validation_streams])
def test_avalanche_divides_streams_with_each_image_once_and_its_mask(benchmark, divide):
    whole = {i: y for e in benchmark.train_stream for i, y in zip(images_of(e.dataset), e.dataset.targets)}
    parts = [experience.dataset for experience in divide(benchmark)]
    assert sorted(image for part in parts for image in images_of(part)) == sorted(whole)
    for part in parts:
        assert isinstance(part.targets, MultiLabelAttribute)
        expected = torch.stack([whole[image] for image in images_of(part)])
        assert_same(part.targets.data, expected)
        assert_same(torch.stack([y for _, y, _ in part]), expected)


@pytest.mark.parametrize("policy", [ReservoirSamplingBuffer, ExperienceBalancedBuffer])
def test_avalanche_buffers_keep_images_with_their_own_columns(benchmark, policy):
    buffer = policy(max_size=10)
    expected = {}
    for experience in benchmark.train_stream:
        expected |= dict(zip(images_of(experience.dataset), experience.dataset.targets))
        buffer.post_adapt(None, experience)
        assert len(buffer.buffer) == 10
        assert isinstance(buffer.buffer.targets, MultiLabelAttribute)
        for i, image in enumerate(images_of(buffer.buffer)):
            assert_same(buffer.buffer.targets[i], expected[image])
            assert_same(buffer.buffer[i][1], expected[image])


@pytest.mark.parametrize("workers", [0, 1])
def test_avalanche_loaders_and_concatenation_keep_the_masks(benchmark, workers):
    first, second = (benchmark.train_stream[t].dataset for t in (0, 1))
    loader = TaskBalancedDataLoader(first, batch_size=8, num_workers=workers)
    x, y, t = (torch.cat(parts) for parts in zip(*loader))
    assert_same(y[x[:, 0, 0, 0].argsort()], first.targets.data)  # images are in ascending order
    assert not t.any()
    _, y, _ = next(iter(ReplayDataLoader(second, first, batch_size=4, batch_size_mem=4)))
    assert sorted(y.isfinite().int().argmax(1).tolist()) == [0] * 4 + [2] * 4
    both = first.concat(second)
    assert_same(both.targets.data, torch.cat([first.targets.data, second.targets.data]))
    assert_same(both[len(first)][1], second[0][1])


def test_experience_leads_to_the_benchmark(benchmark):
    assert benchmark.test_stream[:1][0].origin_stream.benchmark is benchmark
    assert str(benchmark.protocol).splitlines()[:2] == ["protocol: own", "n_classes: 6"]


def test_class_without_a_positive_in_its_experience_causes_a_warning():
    data = Images(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))
    names = {"class_names": ["b", "a", "c"], "classes_per_experience": [1, 2]}
    with pytest.warns(UserWarning, match=r"\['a'\] have no positive in their own experience"):
        multilabel_benchmark(data, data, **names)


class Streamed(IterableDataset):
    targets = torch.eye(3)

    def __iter__(self):
        return iter([])

    def __len__(self):
        return 3


class Unordered:
    targets = torch.eye(3)


THREE, MORE_TARGETS = Images(torch.eye(3)), TensorDataset(torch.zeros(2))
MORE_TARGETS.targets = torch.eye(3)


@pytest.mark.parametrize(
    ("train", "test", "arguments", "message"),
    [
        (THREE, Images(torch.eye(2)), {}, "train has 3 classes and test 2"),
        (Images(torch.arange(3)), THREE, {}, "2-D"),
        (THREE, Images(torch.full((3, 3), torch.nan)), {}, r"test targets have unlabelled cells \(NaN\)"),
        (Images(torch.zeros(0, 3)), THREE, {}, r"train targets are empty: their shape is \(0, 3\)"),
        (Images(torch.eye(3)[:2]), THREE, {}, r"No training image shows \['class 2'\]"),
        (Images(torch.ones(2, 3)), THREE, {}, r"Experience \d \(class \d\) has no training image; use fewer"),
        (TensorDataset(torch.zeros(2)), THREE, {}, r"train dataset \(TensorDataset\) has no `targets`"),
        (Streamed(), THREE, {}, r"train dataset \(Streamed\) cannot be indexed.*give it `__len__`"),
        (THREE, Unordered(), {}, r"test dataset \(Unordered\) cannot be indexed"),
        (None, THREE, {}, r"train dataset \(NoneType\) has no `targets`"),
        (iter([]), THREE, {}, r"train dataset \(list_iterator\) has no `targets`"),
        (MORE_TARGETS, THREE, {}, "has 2 images but 3 targets"),
        (THREE, THREE, {"validation_size": 3}, "validation_size=3"),
        (THREE, THREE, {"validation_size": -0.5}, "validation_size=-0.5"),
        (THREE, THREE, {"class_names": ["a"]}, "3 different names"),
        (THREE, THREE, {"class_names": ["a", "b", "a"]}, "3 different names"),
        (THREE, THREE, {"class_names": ["a", "b\nc", ""]}, r"printable characters; 'b\\nc', '' cannot"),
        (THREE, THREE, {"class_names": ["a", "b", "c" * 201]}, "'ccc.* cannot be used: rename these classes"),
        (THREE, THREE, {"class_order": [0, 1]}, "missing"),
    ],
)
def test_input_that_does_not_fit_is_rejected(train, test, arguments, message):
    with pytest.raises(ValueError, match=message):
        multilabel_benchmark(train, test, **{"n_experiences": 3} | arguments)


PEAK = """
import os, resource, sys
import torch
from torch.utils.data import TensorDataset
from avalanche_agcn.benchmarks import multilabel_benchmark

def make(n, n_classes):
    data = TensorDataset(torch.zeros(n, 1))
    data.targets = torch.eye(n_classes, dtype=torch.int8).repeat(n // n_classes, 1)
    return data

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def print_peak(options):
    small = make(1000, 50)
    multilabel_benchmark(small, small, n_experiences=5, **options)
    train, test = make(40_000, 1000), make(1000, 1000)
    before = peak()
    benchmark = multilabel_benchmark(train, test, n_experiences=5, **options)
    print((peak() - before) / train.targets.numel(), flush=True)

for options in eval(sys.argv[1]):
    if os.fork() == 0:  # a peak of its own, and the modules are imported once
        print_peak(options)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems measure memory in other units")
def test_making_a_benchmark_takes_at_most_three_times_the_memory_of_its_labels():
    cases = [{}, {"class_order": "shuffled-1", "validation_size": 0.2, "assignment": "random"}]
    command = [sys.executable, "-c", PEAK, repr(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = [float(line) for line in done.stdout.splitlines()]
    assert len(peaks) == len(cases), done.stderr
    assert max(peaks) < 3
    assert min(peaks) > 0.1  # a peak of this process, not of the one before it


@pytest.mark.parametrize("assignment", ["rarest", "random"])
def test_a_large_matrix_is_assigned_in_blocks_as_if_at_once(assignment, monkeypatch):
    images = drawn_images(200, 6)
    plans = []
    for n_cells in (2**20, 42):
        monkeypatch.setattr(split, "BLOCK_CELLS", n_cells)
        protocol = Protocol(n_experiences=3, assignment=assignment)
        plans.append(make_plan(images, images, protocol, class_names=None, validation_size=0.2))
    one, other = plans
    assert_same(other.train.labels, one.train.labels)
    for name in ("test", "valid"):
        for parts in zip(other.evaluation[name].positions, one.evaluation[name].positions, strict=True):
            assert_same(*parts)
    for parts in zip(other.train.positions, one.train.positions, strict=True):
        assert_same(*parts)


def test_messages_about_thousands_of_classes_are_short():
    n_classes = 3000
    data = Images(torch.eye(n_classes))
    reversed_names = [f"class {column}" for column in range(n_classes, 0, -1)]
    for train, arguments in [
        (data, {"class_order": reversed_names}),
        (data, {"class_order": ["class 0"] * n_classes}),
        (Images(torch.eye(n_classes)[:2]), {}),
    ]:
        with pytest.raises(ValueError, match=r"\d+ more") as raised:
            multilabel_benchmark(train, data, n_experiences=1, **arguments)
        assert len(str(raised.value)) < 3000
