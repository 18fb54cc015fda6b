import shutil
import zipfile
from itertools import accumulate
from pathlib import Path

import pytest

from avalanche_agcn.benchmarks.split_lists import (
    read_split_lists,
    refuse_other_sizes,
    refuse_settled_by_lists,
)

LISTS = {
    "task0/train.csv": "a.jpg,1,0\nb.jpg,0,1\n",
    "task0/test.csv": "x.jpg,1,0\n",
    "task1/train.csv": "c.jpg,1\n",
    "task1/test.csv": "x.jpg,1,0,1\ny.jpg,0,0,1\n",
}


def write(folder, lists, newline="\r\n"):
    for name, text in lists.items():
        path = folder / "Split" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", newline).encode())
    return folder


def test_rows_become_tasks_with_their_labels(tmp_path):
    lists = read_split_lists(write(tmp_path, LISTS))
    assert lists.classes_per_experience == [2, 1]
    assert [(images, labels.int().tolist()) for images, labels in lists.train] == [
        (["a.jpg", "b.jpg"], [[1, 0], [0, 1]]),
        (["c.jpg"], [[1]]),
    ]
    assert [(images, labels.int().tolist()) for images, labels in lists.test] == [
        (["x.jpg"], [[1, 0, 1]]),  # with the label it has of the later task
        (["y.jpg"], [[0, 0, 1]]),
    ]


def test_a_zip_reads_as_its_folder(tmp_path):
    folder = write(tmp_path / "folder", LISTS)
    with zipfile.ZipFile(tmp_path / "lists.zip", "w") as archive:
        for path in sorted(folder.rglob("*.csv")):
            archive.write(path, path.relative_to(folder))
            archive.writestr(f"__MACOSX/{path.relative_to(folder)}", b"\x00 not a list")
    assert str(read_split_lists(tmp_path / "lists.zip")) == str(read_split_lists(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task1/test.csv": None}, r"lacks \['task1/test.csv'\]"),
        ({"task0/train.csv": ""}, r"task0/train.csv is empty"),
        ({"task0/train.csv": "a.jpg,1,0\nb.jpg,1\n"}, r"row 2: expected as many 0/1 columns"),
        ({"task0/train.csv": "a.jpg,1,2\n"}, r"row 1: labels must be 0 or 1, got '1,2'"),
        ({"task0/train.csv": "a.jpg,1;0\n"}, r"row 1: labels must be 0 or 1, got '1;0'"),
        ({"task0/train.csv": "a.jpg\n"}, r"row 1: expected as many 0/1 columns"),
        ({"task1/train.csv": "a.jpg,1\n"}, "1 train images are listed more than once"),
        ({"task1/test.csv": "y.jpg,0,0,1\n"}, "must be cumulative, but x.jpg"),
        ({"task1/test.csv": "x.jpg,0,1,1\n"}, "task0/test.csv contradicts the last task's list on x.jpg"),
        ({"task1/test.csv": "x.jpg,1,0\ny.jpg,0,1\n"}, "task1/test.csv has 2 classes, but .* have 3"),
    ],
)
def test_malformed_lists_are_named(tmp_path, change, message):
    lists = {name: text for name, text in (LISTS | change).items() if text is not None}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_split_lists(write(tmp_path, lists))


@pytest.mark.parametrize("zipped", [False, True])
def test_two_sets_of_lists_below_one_folder_are_named(tmp_path, zipped):
    given = write(tmp_path / "both" / "one", LISTS).parent
    write(given / "other", {name: text for name, text in LISTS.items() if name == "task1/train.csv"})
    if zipped:
        given = Path(shutil.make_archive(str(tmp_path / "lists"), "zip", given))
    both = "one/Split/task1/train.csv and other/Split/task1/train.csv"
    with pytest.raises(ValueError, match=f"two lists of one task, {both}; give the folder or zip of one"):
        read_split_lists(given)


def test_no_lists_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no split lists; expected task0/train.csv"):
        read_split_lists(tmp_path)
    with pytest.raises(FileNotFoundError, match="neither a folder nor a zip"):
        read_split_lists(tmp_path / "absent.zip")


def test_a_test_image_listed_twice_is_kept_once_and_said(tmp_path):
    lists = LISTS | {"task1/test.csv": LISTS["task1/test.csv"] + "y.jpg,0,0,1\n"}
    with pytest.warns(UserWarning, match=r"\['y.jpg'\] more than once; each is kept once"):
        assert read_split_lists(write(tmp_path, lists)).test[1][0] == ["y.jpg"]


def test_options_that_contradict_lists_are_named():
    refuse_settled_by_lists(class_order=None, validation_size=0)
    with pytest.raises(ValueError, match="leave out class_order, validation_size"):
        refuse_settled_by_lists(class_order=[0], repeat_images=False, validation_size=0.1)


def test_other_sizes_than_those_of_the_lists_are_named(tmp_path):
    lists = read_split_lists(write(tmp_path, LISTS))
    refuse_other_sizes(lists, n_classes=None, n_experiences=None)
    refuse_other_sizes(lists, n_classes=3, n_experiences=2)
    with pytest.raises(ValueError, match="n_classes=2 contradicts the split lists, which have 3; leave"):
        refuse_other_sizes(lists, n_classes=2, n_experiences=2)
    with pytest.raises(ValueError, match="n_experiences=3 contradicts the split lists, which have 2; leave"):
        refuse_other_sizes(lists, n_classes=None, n_experiences=3)


def test_published_coco_lists_have_the_known_sizes(shared_data):
    with pytest.warns(UserWarning, match=r"\['COCO_val2014_000000273855.jpg'\] more than once"):
        lists = read_split_lists(shared_data / "agcn_splits" / "Split-COCO.zip")
    train = [11611, 6299, 6227, 6118, 6260, 6102, 6134, 6161, 6000, 4160]
    nested = [2664, 5328, 7992, 10580, 13202, 15858, 18570, 21279, 24431, 27172]
    assert [len(images) for images, _ in lists.train] == train
    assert list(accumulate(len(images) for images, _ in lists.test)) == nested
    assert lists.classes_per_experience == [4] * 10


def test_published_wide_lists_have_the_known_sizes(shared_data):
    lists = read_split_lists(shared_data / "agcn_splits" / "Split-WIDE.zip")
    nested = list(accumulate(len(images) for images, _ in lists.test))
    assert [len(images) for images, _ in lists.train] == [32994, 20639, 20723, 8249, 24710, 23931, 13612]
    assert nested == [5872, 11799, 17642, 23520, 29382, 35278, 41146]
    assert lists.classes_per_experience == [3] * 7
