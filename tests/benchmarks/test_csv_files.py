"""Own photos with labels in a CSV file."""

import csv
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from avalanche_agcn.benchmarks import multilabel_benchmark, multilabel_csv
from avalanche_agcn.benchmarks.csv_files import CSVColumns, read_csv
from avalanche_agcn.checks import same_spelling
from avalanche_agcn.experiments.settings import make_settings

FILES = ("a.jpg", "b.jpg", "c.png")


@pytest.fixture
def photos(tmp_path):
    """A folder of three photos, and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, name in enumerate(FILES):
        Image.new("RGB", (9, 7), (40 * k, 0, 0)).save(folder / name)
    (folder / "text.jpg").write_text("not an image")
    return folder


@pytest.fixture
def read(tmp_path, photos):
    """A function that reads a CSV file of the given content."""

    def read_text(content, **options):
        (tmp_path / "labels.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return multilabel_csv(tmp_path / "labels.csv", images=photos, **options)

    return read_text


ALL = [[1, 0, 1], [0, 1, 0], [0, 1, 1]]  # of the classes car, dog, person


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        ("file,labels\na.jpg,person;car\nb.jpg,dog\nc.png,dog;person\n", "classes, separated by ';'"),
        ("file,labels\na.jpg,person | car\nb.jpg,dog\nc.png,dog|person|\n", "separated by '|'"),
        ('file,labels\na.jpg,"person, car"\nb.jpg,dog\nc.png,"dog,person"\n', "separated by ','"),
        ("file,labels\na.jpg,person,car\nb.jpg,dog,\nc.png,dog,person\n", "each in a cell"),
        ("a.jpg,person;car\nb.jpg,dog\nc.png,dog;person\n", "separated by ';'"),  # no header
        (
            "file,car,dog,person\na.jpg,1,0,1\nb.jpg,0,1,0\nc.png,0,1,1\n",
            "a column of 0 and 1 for each class",
        ),
        ("car;dog;person;file\n1.0;0;1;a.jpg\r\n0;1;0;b.jpg\n\n0;true;TRUE;c.png", "a column of 0 and 1"),
        ("file,label\na.jpg,person\nb.jpg,dog\na.jpg,car\nc.png,dog\nc.png,person\na.jpg,car\n", "in 6 rows"),
        (
            "id,file,labels,width\n7,a.jpg,person;car,9\n8,b.jpg,dog,9\n9,c.png,dog;person,9\n",
            "not used: 'id'",
        ),
        ("id,file,car,dog,person\n7,a.jpg,1,0,1\n8,b.jpg,0,1,0\n9,c.png,0,1,1\n", "not used: 'id'"),
        (
            'id, file, labels\n7, a.jpg, "person;car"\n8, b.jpg, dog\n9, c.png, "dog;person"\n',
            "not used: 'id'",
        ),
        ("file;labels\ra.jpg;person,car\rb.jpg;dog\rc.png;dog,person\r", "separated by ','"),
        ("sep=;\r\nfile;labels\r\na.jpg;person|car\r\nb.jpg;dog\r\nc.png;dog|person\r\n", "separated by '|'"),
        ("\ufefffile\tcar\tdog\tperson\na.jpg\t1\t0\t1\nb.jpg\t0\t1\t0\nc.png\t0\t1\t1\n", "a column of 0"),
    ],
)
def test_each_layout_gives_the_same_labels_and_is_named_in_one_line(read, content, layout):
    lines = []
    data = read(content, log=lines.append)
    assert (data.class_names, data.targets.tolist()) == (["car", "dog", "person"], ALL)
    assert [data[k][0].getpixel((0, 0))[0] // 40 for k in range(3)] == [0, 1, 2]
    assert len(lines) == 1
    assert layout in lines[0]
    assert "3 images, 3 classes" in lines[0]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("a,b,c\nx,a.jpg,person;car\nx,b.jpg,dog\ny,c.png,dog;person\n", ["c"]),
        ("a,b,c\nx,a.jpg,person\nx,a.jpg,car\nx,b.jpg,dog\ny,c.png,dog\ny,c.png,person\n", ["c"]),
        ("c,b,e\nperson,a.jpg,car\ndog,b.jpg,\ndog,c.png,person\n", ["c", "e"]),
        ("car,b,x,person,dog\n1,a.jpg,7,1,0\n0,b.jpg,7,0,1\n0,c.png,7,1,1\n", ["car", "dog", "person"]),
    ],
)
def test_chosen_columns_are_read_and_others_ignored(read, content, columns):
    data = read(content, file_column="b", label_columns=columns)
    assert (data.class_names, data.targets.tolist()) == (["car", "dog", "person"], ALL)
    with pytest.raises(ValueError, match="row 1: there is no column 'z'; the columns are"):
        read(content, file_column="b", label_columns=["z"])


def test_a_split_is_read_by_its_name_with_the_classes_of_all(read):
    text = "id,file,labels,split\n1,a.jpg,person;car,train\n2,b.jpg,dog,test\n3,c.png,dog;person,train\n"
    train, test = (read(text, split=split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ["car", "dog", "person"]
    assert (train.targets.tolist(), test.targets.tolist()) == ([ALL[0], ALL[2]], [ALL[1]])
    with pytest.raises(ValueError, match="has no column split with train and test: leave split out"):
        read("file,labels\na.jpg,dog\n", split="train")
    with pytest.raises(ValueError, match=r"row 3: 'a.jpg' is in two splits, train and test; choose one"):
        read("file,label,split\na.jpg,dog,train\na.jpg,cat,test\n")


def test_a_space_separates_names_only_if_the_caller_says_so(read):
    text = "image,tags\na.jpg,hot dog\nb.jpg,dog\nc.png,traffic light\n"
    lines = []
    assert read(text, log=lines.append).class_names == ["dog", "hot dog", "traffic light"]
    assert "each in a cell ('hot dog' is one name: --separator \" \" would split it)" in lines[0]
    lines.clear()
    text = "image,tags\na.jpg,person car\nb.jpg,dog\nc.png,dog  person\n"
    data = read(text, separator=" ", log=lines.append)
    assert (data.class_names, data.targets.tolist()) == (["car", "dog", "person"], ALL)
    assert "separated by spaces;" in lines[0]
    assert make_settings("photos", separator=" ", dataset_root="photos", labels="a.csv").separator == " "


@pytest.mark.parametrize(
    "layout", ["file,labels\na.jpg,caf\u00e9\nb.jpg,cafe\u0301\n", "file,cafe\u0301\na.jpg,1\n"]
)
def test_both_spellings_of_an_accent_are_one_class(read, layout):
    assert read(layout).class_names == ["caf\u00e9"]
    test = read("file,labels\nc.png,cafe\u0301\n", class_names=["cafe\u0301"])
    assert (test.class_names, test.targets.tolist()) == (["caf\u00e9"], [[1]])


BAD = {
    "empty file": ("", "row 1: the file is empty"),
    "header only": ("file,labels\n", "row 1: there is a header but no image"),
    "one column": ("file\na.jpg\n", "row 1: 'file' is the only column"),
    "no header": ("a.jpg,1,0\nb.jpg,0,1\n", "row 1: there is no header"),
    "no header, files last": ("1,0,a.jpg\n0,1,b.jpg\n", "row 1: there is no header"),
    "a file twice": ("file,labels\na.jpg,dog\nb.jpg,cat\na.jpg,cat\n", "row 4: 'a.jpg' is already in row 2"),
    "a file twice, in other words": (
        "file,labels\na.jpg,dog\n./a.jpg,cat\n",
        "row 3: 'a.jpg' is already in row 2",
    ),
    "Latin-1": ("file,labels\na.jpg,dog\nb.jpg,chäise\n".encode("latin-1"), "row 3: this is not text"),
    "UTF-16": ("file,labels\na.jpg,dog\n".encode("utf-16"), "row 1: this is not text in UTF-8"),
    "NUL": ("file,labels\na.jpg,d\0og\n", "row 2: this is not text in UTF-8"),
    "an image": (b"\x89PNG\r\n\x1a\n\0\0", "row 1: this is not text in UTF-8"),
    "no labels": ("file,labels\na.jpg,dog\nb.jpg,\n", "row 3: there is no label"),
    "separators only": ("file,labels\na.jpg,dog;cat\nb.jpg, ; \n", "row 3: there is no label"),
    "an empty label": ("file,labels\na.jpg,dog;;cat\n", "row 2: '' cannot be a label"),
    "an unprintable label": ("file,labels\na.jpg,dog;c\x1b[31mat\n", r"row 2: 'c\\x1b\[31mat' cannot be"),
    "a long label": (f"file,labels\na.jpg,{'dog' * 99}\n", "row 2: 'dogdog.*…' cannot be a label"),
    "an absolute path": ("file,labels\n/etc/passwd,dog\n", "row 2: .*within the folder .* is '/etc/pas"),
    "a Windows path": ("file,labels\nC:\\a.jpg,dog\n", r"row 2: .*within the folder.*, but is 'C:\\\\a.jpg'"),
    "an escaping path": ("file,labels\na.jpg,cat\nx/../../a.jpg,dog\n", "row 3: .*, but is 'x/../../a.jpg'"),
    "an escaping path of Windows": ("file,labels\n..\\a.jpg,dog\n", "row 2: .*within the folder of images"),
    "a cell of 10 MB": (f"file,labels\na.jpg,cat\nb.jpg,{'x' * 10**7}\n", "row 3: a cell is too long"),
    "an open quotation mark": ('file,labels\na.jpg,"dog\nb.jpg,cat\n', "row 2: unexpected end of data"),
    "text after a quotation": ('file,labels\na.jpg,"dog"s\n', "row 2: .*expected after"),
    "not 0 or 1": ("file,cat,dog\na.jpg,1,0\nb.jpg,2,1\n", "row 3: expected 0 or 1 for 'cat', got '2'"),
    "an empty value": ("file,cat,dog\na.jpg,1,\n", "row 2: expected 0 or 1 for 'dog', got ''"),
    "a word for a value": ("file,cat,dog\na.jpg,1,nan\n", "row 2: expected 0 or 1 for 'dog', got 'nan'"),
    "too few cells": ("file,cat,dog\na.jpg,1,1\nb.jpg,1\n", "row 3: there are 2 cells, but the header has 3"),
    "too many cells": ("file,cat,dog\na.jpg,1,1,0\n", "row 2: there are 4 cells, but the header has 3"),
    "a column twice": (
        "file,cat,cat\na.jpg,1,0\n",
        "row 1: the column 'cat' is empty, repeated or not a name; rename",
    ),
    "a column without name": ("file,cat,\na.jpg,1,0\n", "row 1: the column '' is empty"),
    "no labels at all": ("id,file\n7,a.jpg\n", "row 1: there is no column of labels"),
    "too few cells beside an id": (
        "id,file,cat,dog\n7,a.jpg,1,1\n8,b.jpg,1\n",
        "row 3: there are 3 cells, but the header has 4",
    ),
    "no file name": ("file,labels\n,dog\n", "row 2: expected the name of an image file, got ''"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_gives_one_sentence_with_the_row(read, tmp_path, kind):
    content, message = BAD[kind]
    with pytest.raises(ValueError, match=message) as raised:
        read(content)
    text = str(raised.value)
    assert text.startswith(f"{tmp_path / 'labels.csv'}, row ")
    assert text.endswith((".", "?"))
    assert len(text) < 500
    assert "\n" not in text


@pytest.mark.parametrize("separator", [",", " ", ";"])
def test_a_separator_that_no_cell_has_is_rejected_where_another_one_is_used(read, separator):
    sign = "|" if separator == ";" else ";"
    message = f"row 3: 'dog.cat' looks like several names, .*'{separator}'; give --separator '[;|]' or leave"
    with pytest.raises(ValueError, match=message):
        read(f"file,labels\na.jpg,person\nb.jpg,dog{sign}cat\n", separator=separator)
    assert read("file,labels\na.jpg,person\nb.jpg,dog\n", separator=separator).class_names == [
        "dog",
        "person",
    ]


def test_missing_files_and_folders_are_named_and_all_images_that_cannot_be_opened(tmp_path, photos, read):
    for path in (tmp_path / "absent.csv", photos):
        with pytest.raises(FileNotFoundError, match=f"There is no file {re.escape(str(path))} with labels"):
            multilabel_csv(path, photos)
    read("file,labels\na.jpg,dog\n")
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*absent of images"):
        multilabel_csv(tmp_path / "labels.csv", tmp_path / "absent")
    text = "file,labels\na.jpg,dog\ngone.jpg,dog\ntext.jpg,cat\n"
    with pytest.raises(OSError, match="2 of 3 images cannot be opened") as raised:
        read(text)
    assert re.search(r"labels.csv, row 3: There is no image .*gone.jpg", str(raised.value))
    assert re.search(r"labels.csv, row 4: .*text.jpg is not an image that can be read", str(raised.value))
    assert len(read(text, check_images=False)) == 3


def test_test_labels_and_benchmarks_follow_the_classes_of_the_train_labels(read):
    train = read("file,labels\na.jpg,person;car\nb.jpg,dog\n")
    for text in ("file,labels\nc.png,person\n", "file,person,dog,car\nc.png,1,0,0\n"):
        assert read(text, class_names=train.class_names).targets.tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match="row 2: unknown label 'cow'; known are car, dog, person"):
        read("file,labels\nc.png,cow\n", class_names=train.class_names)
    with pytest.raises(ValueError, match="row 1: only one of train and test labels has car, cow"):
        read("file,person,dog,cow\nc.png,1,0,0\n", class_names=train.class_names)
    assert read("file,labels\na.jpg,traffic light\n", separator=";").class_names == ["traffic light"]
    data = read("file,labels\na.jpg,person;car\nb.jpg,dog\nc.png,dog;person\n")
    benchmark = multilabel_benchmark(data, data, classes_per_experience=[1, 2])
    assert benchmark.class_names == ["car", "dog", "person"]
    other = read("file,labels\na.jpg,cow\n")
    other.targets = torch.ones(1, 3)
    other.class_names = ["dog", "car", "person"]
    with pytest.raises(ValueError, match="give both the same list"):
        multilabel_benchmark(data, other, classes_per_experience=[1, 2])


NAMES = st.text(st.characters(blacklist_categories=("C", "Z"), blacklist_characters=";|,\"' \t"), min_size=1)


@given(st.lists(st.sets(NAMES, min_size=1, max_size=4), min_size=1, max_size=5), st.sampled_from(";|, "))
def test_any_names_are_read_as_they_were_written(tmp_path_factory, rows, separator):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "labels"])
        writer.writerows([f"{k}.jpg", separator.join(sorted(own))] for k, own in enumerate(rows))
    table = read_csv(path, chosen=CSVColumns(separator)).table
    found = [{table.class_names[c] for c in row.nonzero()} for row in table.labels]
    assert found == [{same_spelling(name) for name in names} for names in rows]
