"""Builders and checks that several test files share."""

import pytest

from avalanche_agcn.benchmarks.image_files import find_normalisation


@pytest.fixture
def write_lists(tmp_path):
    """Writes csv files, name → rows, into a folder; as the published ones, with Windows line ends."""

    def write(lists, folder="lists"):
        for name, rows in lists.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("\r\n".join(rows).encode())
        return tmp_path / folder

    return write


@pytest.fixture
def assert_b_protocol(files_of):
    """Compares streams with a reading of the data: by file the names it shows, and those it has as labels."""

    def targets_of(experience):
        files = files_of(experience.dataset)
        assert len(set(files)) == len(files)
        return dict(zip(files, experience.dataset.targets.data.tolist(), strict=True))

    def expected(data, names, relevant, labelled):
        data = {file: labels & labelled for file, (shown, labels) in data.items() if shown & relevant}
        return {file: [float(name in labels) for name in names] for file, labels in data.items()}

    def check(benchmark, names, sizes, train, test):
        assert benchmark.class_names == names
        assert benchmark.classes_per_experience == sizes
        nested = {}
        for t, (own, added) in enumerate(zip(benchmark.train_stream, benchmark.test_stream, strict=True)):
            first, end = sum(sizes[:t]), sum(sizes[: t + 1])
            classes, seen = set(names[first:end]), set(names[:end])
            assert targets_of(own) == expected(train, names, classes, classes)
            nested |= targets_of(added)
            assert nested == expected(test, names, seen, set(names))

    return check


@pytest.fixture
def assert_arguments_arrive():
    """Checks that a benchmark of image files follows the arguments that all such benchmarks share."""

    def transform(image):
        return image

    def check(make, n_classes):
        conventions = {
            "classes_per_experience": (n_classes - 1, 1),
            "class_order": "shuffled-1",
            "repeat_images": True,
            "assignment": "random",
            "unlabelled_as_negative": True,
            "test_images": "all",
            "image_size": 24,
            "flip": False,
        }
        benchmark = make(n_classes=n_classes, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), **conventions)
        assert {name: getattr(benchmark.protocol, name) for name in conventions} == conventions
        for used in (benchmark.plan.train_transform, benchmark.plan.eval_transform):
            step = find_normalisation(used)
            assert (tuple(step.mean), tuple(step.std)) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
            assert "size=[24, 24]" in repr(used)
            assert "Flip" not in repr(used)
        sizes = {"n_classes": n_classes, "n_experiences": 1}
        limited = make(**sizes, limit=1, truncated="error", train_transform=transform)
        assert [len(stream[0].dataset) for stream in limited.streams.values()] == [1, 1]
        assert limited.plan.train.source.truncated == "error"
        assert limited.plan.train_transform is transform
        assert limited.plan.eval_transform is not transform
        assert make(**sizes, eval_transform=transform).plan.eval_transform is transform

    return check
