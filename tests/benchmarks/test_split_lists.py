import shutil
import tracemalloc
import zipfile
from itertools import accumulate

import pytest

from avalanche_agcn.benchmarks.split_lists import MAX_LISTS_BYTES, read_split_lists

LISTS = {
    "Split/task0/train.csv": ["a.jpg,1,0", "b.jpg,0,1"],
    "Split/task0/test.csv": ["x.jpg,1,0"],
    "Split/task1/train.csv": ["c.jpg,1", ""],
    "Split/task1/test.csv": ["x.jpg,1,0,1", "y.jpg,0,0,1"],
}


def test_rows_become_tasks_with_their_labels_from_a_folder_or_a_zip(write_lists, tmp_path):
    folder = write_lists(LISTS)
    lists = read_split_lists(folder)
    assert lists.classes_per_experience == [2, 1]
    assert [(images, labels.tolist()) for images, labels in lists.train] == [
        (["a.jpg", "b.jpg"], [[1, 0], [0, 1]]),
        (["c.jpg"], [[1]]),
    ]
    assert [(images, labels.tolist()) for images, labels in lists.test] == [
        (["x.jpg"], [[1, 0, 1]]),  # with its label of the later task
        (["y.jpg"], [[0, 0, 1]]),
    ]
    with zipfile.ZipFile(tmp_path / "lists.zip", "w") as archive:
        for path in sorted(folder.rglob("*.csv")):
            archive.write(path, path.relative_to(folder))
            archive.writestr(f"__MACOSX/{path.relative_to(folder)}", b"\xff not a list")
    assert str(read_split_lists(tmp_path / "lists.zip")) == str(lists)
    rows = [*LISTS["Split/task1/test.csv"], "y.jpg,0,0,1"]
    with pytest.warns(UserWarning, match=r"\['y.jpg'\] more than once; each is kept once"):
        twice = read_split_lists(write_lists(LISTS | {"Split/task1/test.csv": rows}))
    assert str(twice) == str(lists)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("task1/test.csv", None, r"lacks \['task1/test.csv'\]"),
        ("task0/train.csv", [], r"task0/train.csv is empty"),
        ("task0/train.csv", ["a.jpg,1,0", "b.jpg,1"], r"row 2: expected as many 0/1 columns"),
        ("task0/train.csv", ["a.jpg,1,2"], r"row 1: labels must be 0 or 1, got '1,2'"),
        ("task0/train.csv", ["a.jpg,1;0"], r"row 1: labels must be 0 or 1, got '1;0'"),
        ("task0/train.csv", ["a.jpg,1,é"], r"row 1: labels must be 0 or 1, got '1,é'"),
        ("task0/train.csv", ["a.jpg"], r"row 1: expected as many 0/1 columns"),
        ("task1/train.csv", ["a.jpg,1"], "1 train images are listed more than once"),
        ("task1/test.csv", ["y.jpg,0,0,1"], "must be cumulative, but x.jpg"),
        ("task1/test.csv", ["x.jpg,0,1,1"], "task0/test.csv contradicts the last task's list on x.jpg"),
        ("task1/test.csv", ["x.jpg,1,0", "y.jpg,0,1"], "task1/test.csv has 2 classes, but .* have 3"),
    ],
)
def test_malformed_lists_are_named(write_lists, name, rows, message):
    lists = LISTS | {f"Split/{name}": rows}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_split_lists(write_lists({name: rows for name, rows in lists.items() if rows is not None}))


def test_missing_lists_and_two_sets_of_lists_are_named(write_lists, tmp_path):
    for path, message in ((tmp_path, "has no split lists; expected task0"), (tmp_path / "no", "neither a f")):
        with pytest.raises(FileNotFoundError, match=message):
            read_split_lists(path)
    folder = write_lists(LISTS | {"other/task1/train.csv": ["c.jpg,1"]})
    for path in (folder, shutil.make_archive(str(tmp_path / "both"), "zip", folder)):
        with pytest.raises(ValueError, match=r"two lists of one task, Split/task1/train\.csv and other"):
            read_split_lists(path)


def write_zip(path, lists):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in lists.items():
            archive.writestr(name, text)
    return path


def test_a_small_zip_of_very_large_lists_is_rejected_before_it_is_unpacked(tmp_path):
    text = "a.jpg," + "2" * (MAX_LISTS_BYTES // 4)
    path = write_zip(tmp_path / "bomb.zip", {f"task{t}/train.csv": text for t in range(5)})
    assert path.stat().st_size < 1e6
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"bomb.zip has more than 256 MiB, the most that is read"):
            read_split_lists(path)
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "lists",
    [
        {"task0/train.csv": f"a.jpg,{LONG}", "task0/test.csv": "b.jpg,1"},
        {"task0/train.csv": f"a.jpg,1\nb.jpg,{LONG}", "task0/test.csv": "b.jpg,1"},
        {"task0/train.csv": f"a.jpg,{LONG[1:]}", "task0/test.csv": "b.jpg,1"},
        {"task9999/train.csv": "a.jpg,1"},
        {"task0/train.csv": "a.jpg,1", "task0/test.csv": f"{LONG},1", "task1/train.csv": "b.jpg,1",
         "task1/test.csv": "b.jpg,1,1"},
        {"task0/train.csv": "a.jpg,1", "task0/test.csv": f"{LONG},0", "task1/train.csv": "b.jpg,1",
         "task1/test.csv": f"{LONG},1,1"},
        {f"{LONG[:30_000]}/task0/train.csv": "a.jpg,1", f"{LONG[:30_001]}/task0/train.csv": "a.jpg,1"},
    ],
)  # fmt: skip
def test_a_message_about_lists_quotes_only_a_part_of_them(tmp_path, lists):
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        read_split_lists(write_zip(tmp_path / "lists.zip", lists))
    assert len(str(raised.value)) < 1000 + len(str(tmp_path))


def test_a_damaged_zip_is_named(tmp_path):
    path = write_zip(tmp_path / "lists.zip", {"task0/train.csv": "a.jpg,1\n" * 999})
    content = bytearray(path.read_bytes())
    content[50] ^= 0xFF  # within the compressed list
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"lists.zip: task0/train.csv cannot be read .*; download it again"):
        read_split_lists(path)


@pytest.mark.parametrize(
    ("name", "size", "train", "nested"),
    [
        ("Split-COCO", 4, "11611 6299 6227 6118 6260 6102 6134 6161 6000 4160",
         "2664 5328 7992 10580 13202 15858 18570 21279 24431 27172"),
        ("Split-WIDE", 3, "32994 20639 20723 8249 24710 23931 13612",
         "5872 11799 17642 23520 29382 35278 41146"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*'COCO_val2014_000000273855.jpg'. more than once")
def test_published_lists_have_the_known_sizes(shared_data, name, size, train, nested):
    lists = read_split_lists(shared_data / "agcn_splits" / f"{name}.zip")
    assert [len(images) for images, _ in lists.train] == [int(n) for n in train.split()]
    assert list(accumulate(len(images) for images, _ in lists.test)) == [int(n) for n in nested.split()]
    assert lists.classes_per_experience == [size] * len(lists.train)
