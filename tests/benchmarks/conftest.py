"""Builders and checks that several test files share."""

import pytest


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
