import warnings

import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream, split_online_stream, with_classes_timeline
from avalanche.benchmarks.utils.data_loader import ReplayDataLoader, TaskBalancedDataLoader
from avalanche.training.storage_policy import ExperienceBalancedBuffer, ReservoirSamplingBuffer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from avalanche_agcn.benchmarks import MultiLabelAttribute, multilabel_benchmark


class Images(Dataset):
    """Image i is a picture whose every pixel is i; reading one is counted."""

    def __init__(self, targets, start=0):
        self.targets, self.start, self.opened = targets, start, []

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        self.opened.append(index)
        return torch.full((3, 4, 4), float(index + self.start)), self.targets[index]


def drawn_targets(images, classes, seed=0, positives=0.3):
    targets = (torch.rand(images, classes, generator=torch.Generator().manual_seed(seed)) < positives).long()
    targets[torch.arange(classes), torch.arange(classes)] = 1  # every class is shown
    return targets


@pytest.fixture
def benchmark():
    return multilabel_benchmark(
        Images(drawn_targets(60, 6)), Images(drawn_targets(30, 6, seed=1), start=100), n_experiences=3
    )


def images_of(dataset):
    return [int(dataset[i][0][0, 0, 0]) for i in range(len(dataset))]


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@st.composite
def protocols(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    classes = sum(sizes)
    images = draw(st.integers(1, 12))
    cells = st.lists(st.integers(0, 1), min_size=images * classes, max_size=images * classes)
    train, test = (torch.tensor(draw(cells)).reshape(images, classes) for _ in range(2))
    order = draw(st.permutations(range(classes)))
    return train, test, sizes, order, draw(st.integers(0, 5)), draw(st.booleans())


@settings(deadline=None, max_examples=150)
@given(protocols())
def test_nothing_is_lost_doubled_or_mislabelled(protocol):
    train, test, sizes, order, seed, repeat = protocol
    assume(train.any(0).all())
    arguments = {"classes_per_experience": sizes, "class_order": order, "seed": seed, "repeat_images": repeat}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class may have no positive left in its own experience
        try:
            benchmark = multilabel_benchmark(Images(train), Images(test), **arguments)
        except ValueError as error:
            assume("has no training image" not in str(error))
            raise
    assert benchmark.class_names == [f"class {c}" for c in order]
    train, test, end = train[:, order], test[:, order], 0
    seen: list[int] = []
    for size, experience in zip(sizes, benchmark.train_stream, strict=True):
        start, end = end, end + size
        assert experience.classes_in_this_experience == list(range(start, end))
        assert experience.previous_classes == list(range(start))
        assert experience.classes_seen_so_far == list(range(end))
        images = images_of(experience.dataset)
        assert images
        assert train[images, start:end].any(1).all()
        if repeat:
            assert images == train[:, start:end].any(1).nonzero().flatten().tolist()
        seen += images
        for i, image in enumerate(images):
            expected = torch.full((len(order),), torch.nan)
            expected[start:end] = train[image, start:end].float()
            assert_same(experience.dataset[i][1], expected)
            assert_same(experience.dataset.targets[i], expected)
            assert experience.dataset[i][2] == 0
    labelled = train.any(1).nonzero().flatten().tolist()
    assert sorted(set(seen)) == labelled
    assert repeat or len(seen) == len(labelled)
    assert images_of(benchmark.complete_train_dataset) == labelled
    assert_same(benchmark.complete_train_dataset.targets.data, train[labelled].float())

    nested: list[int] = []
    for experience in benchmark.test_stream:
        images = images_of(experience.dataset)
        assert_same(experience.dataset.targets.data, test[images].float())
        nested += images
        seen_columns = len(experience.classes_seen_so_far)
        assert sorted(nested) == test[:, :seen_columns].any(1).nonzero().flatten().tolist()


@given(st.integers(0, 3), st.sampled_from([1, 5, 0.25]))
@settings(deadline=None, max_examples=20)
def test_validation_images_leave_training_and_are_fully_labelled(seed, size):
    targets = drawn_targets(60, 6, seed, positives=0.5)
    benchmark = multilabel_benchmark(
        Images(targets), Images(targets), n_experiences=3, validation_size=size, seed=seed
    )
    train = [i for e in benchmark.train_stream for i in images_of(e.dataset)]
    valid = [i for e in benchmark.valid_stream for i in images_of(e.dataset)]
    labelled = targets.any(1).nonzero().flatten().tolist()
    assert sorted(train + valid) == labelled
    assert len(valid) == (size if size >= 1 else round(size * len(labelled)))
    for experience in benchmark.valid_stream:
        assert_same(experience.dataset.targets.data, targets[images_of(experience.dataset)].float())
    assert images_of(benchmark.complete_train_dataset) == sorted(train)


def test_a_seed_fixes_what_is_drawn_and_another_changes_it():
    targets = drawn_targets(200, 6, positives=0.6)

    def split(seed):
        benchmark = multilabel_benchmark(
            Images(targets),
            Images(targets),
            n_experiences=3,
            assignment="random",
            validation_size=20,
            seed=seed,
        )
        return [images_of(e.dataset) for e in [*benchmark.train_stream, *benchmark.valid_stream]]

    assert split(1) == split(1) != split(2)


def test_no_image_is_opened_before_it_is_asked_for():
    train = Images(drawn_targets(40, 4))
    benchmark = multilabel_benchmark(train, train, n_experiences=2, validation_size=4)
    assert benchmark.train_stream[0].dataset.targets.count
    assert not train.opened
    benchmark.train_stream[0].dataset[0]
    assert len(train.opened) == 1


def test_transforms_follow_the_mode():
    images = Images(torch.eye(2).long())
    benchmark = multilabel_benchmark(
        images, images, n_experiences=1, train_transform=lambda x: x + 10, eval_transform=lambda x: x + 20
    )
    train, test = benchmark.train_stream[0].dataset, benchmark.test_stream[0].dataset
    assert images_of(train) == [10, 11]
    assert images_of(train.eval()) == images_of(test) == [20, 21]
    assert images_of(benchmark.complete_train_dataset) == [10, 11]
    assert images_of(train.replace_current_transform_group(lambda x: x + 30).subset([1])) == [31]


def test_with_classes_timeline_finds_the_same_classes(benchmark):
    timeline = with_classes_timeline(benchmark)
    for ours, theirs in zip(benchmark.train_stream, timeline.train_stream, strict=True):
        assert set(ours.classes_in_this_experience) == theirs.classes_in_this_experience
        assert set(ours.classes_seen_so_far) == theirs.classes_seen_so_far
        assert set(ours.future_classes) == theirs.future_classes


def test_avalanche_validation_stream_keeps_each_image_with_its_mask(benchmark):
    split = benchmark_with_validation_stream(benchmark, validation_size=0.5, shuffle=True, seed=0)
    for whole, train, valid in zip(
        benchmark.train_stream, split.train_stream, split.valid_stream, strict=True
    ):
        by_image = dict(zip(images_of(whole.dataset), whole.dataset.targets.data, strict=True))
        parts = [(i, y) for e in (train, valid) for i, y in zip(images_of(e.dataset), e.dataset.targets)]
        assert sorted(i for i, _ in parts) == sorted(by_image)
        for image, target in parts:
            assert_same(target, by_image[image])
        assert isinstance(train.dataset.targets, MultiLabelAttribute)


def test_avalanche_online_stream_passes_each_image_once(benchmark):
    online = list(split_online_stream(benchmark.train_stream, experience_size=7))
    whole = [i for e in benchmark.train_stream for i in images_of(e.dataset)]
    assert sorted(i for e in online for i in images_of(e.dataset)) == sorted(whole)
    for experience in online:
        stacked = torch.stack([experience.dataset[i][1] for i in range(len(experience.dataset))])
        assert_same(experience.dataset.targets.data, stacked)


@pytest.mark.parametrize("policy", [ReservoirSamplingBuffer, ExperienceBalancedBuffer])
def test_avalanche_buffers_keep_images_with_their_own_columns(benchmark, policy):
    buffer = policy(max_size=10)
    expected = {}
    for experience in benchmark.train_stream:
        expected |= dict(zip(images_of(experience.dataset), experience.dataset.targets.data, strict=True))
        buffer.post_adapt(None, experience)
        assert len(buffer.buffer) == 10
        assert isinstance(buffer.buffer.targets, MultiLabelAttribute)
        for i, image in enumerate(images_of(buffer.buffer)):
            assert_same(buffer.buffer.targets[i], expected[image])
            assert_same(buffer.buffer[i][1], expected[image])


@pytest.mark.parametrize("workers", [0, 1])
def test_avalanche_loaders_give_masked_batches(benchmark, workers):
    first, second = (benchmark.train_stream[t].dataset for t in (0, 1))
    batches = list(TaskBalancedDataLoader(first, batch_size=8, num_workers=workers))
    assert sum(len(x) for x, _, _ in batches) == len(first)
    for x, y, t in batches:
        assert y.shape == (len(x), 6)
        assert y[:, :2].isfinite().all()
        assert y[:, 2:].isnan().all()
        assert not t.any()
    x, y, _ = next(iter(ReplayDataLoader(second, first, batch_size=4, batch_size_mem=4)))
    assert sorted(y.isfinite().int().argmax(1).tolist()) == [0] * 4 + [2] * 4


def test_concatenated_experiences_keep_their_masks(benchmark):
    first, second = (benchmark.train_stream[t].dataset for t in (0, 1))
    both = first.concat(second)
    assert_same(both.targets.data, torch.cat([first.targets.data, second.targets.data]))
    assert_same(both[len(first)][1], second[0][1])


def test_an_experience_leads_to_the_names_of_its_classes(benchmark):
    stream = benchmark.test_stream[:1][0].origin_stream
    assert stream.benchmark.class_names == benchmark.class_names


def test_repr_says_what_there_is(benchmark):
    n_train, n_test = (
        len(benchmark.complete_train_dataset),
        sum(len(e.dataset) for e in benchmark.test_stream),
    )
    expected = f"6 classes in 3 experiences; images: {n_train} train, {n_test} test"
    assert repr(benchmark) == f"MultiLabelBenchmark({expected})"


def test_a_class_that_loses_all_its_images_is_warned_of():
    images = Images(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))  # columns b, a, c
    names = {"class_names": ["b", "a", "c"], "classes_per_experience": [1, 2]}
    with pytest.warns(UserWarning, match=r"\['a'\] have no positive in their own experience"):
        multilabel_benchmark(images, images, **names)


@pytest.mark.parametrize(
    ("train", "test", "arguments", "message"),
    [
        (torch.eye(3), torch.eye(2), {}, "train has 3 classes and test 2"),
        (torch.arange(3), torch.eye(3), {}, "2-D"),
        (torch.eye(3) * 2, torch.eye(3), {}, "0 or 1"),
        (torch.eye(3).log(), torch.eye(3), {}, "got -inf for image 0, class 1"),
        (torch.eye(3), torch.full((3, 3), torch.nan), {}, r"test targets have unlabelled cells \(NaN\)"),
        (torch.zeros(0, 3), torch.eye(3), {}, r"train targets are empty: shape \(0, 3\)"),
        (torch.eye(3)[:2], torch.eye(3), {}, r"no training image shows \['class 2'\]"),
        (torch.ones(2, 3), torch.eye(3), {}, r"experience \d \(class \d\) has no training image; use fewer"),
        (torch.eye(3), torch.eye(3), {"validation_size": 3}, "validation_size=3"),
        (torch.eye(3), torch.eye(3), {"validation_size": -0.5}, "validation_size=-0.5"),
        (torch.eye(3), torch.eye(3), {"class_names": ["a"]}, "each of the 3 columns differently"),
        (torch.eye(3), torch.eye(3), {"class_order": [0, 1]}, "missing"),
    ],
)
def test_bad_input_says_what_is_wrong(train, test, arguments, message):
    with pytest.raises(ValueError, match=message):
        multilabel_benchmark(Images(train), Images(test), **{"n_experiences": 3} | arguments)


def test_a_dataset_without_targets_says_what_to_set():
    data = torch.utils.data.TensorDataset(torch.zeros(2))
    with pytest.raises(ValueError, match=r"train dataset \(TensorDataset\) has no `targets`"):
        multilabel_benchmark(data, data, n_experiences=1)


def test_targets_of_another_length_are_refused():
    data = torch.utils.data.TensorDataset(torch.zeros(2))
    data.targets = torch.eye(3)
    with pytest.raises(ValueError, match="has 2 images but 3 targets"):
        multilabel_benchmark(data, data, n_experiences=1)
