"""What is found in photos and labels before training."""

import os

import numpy as np
import pytest
from PIL import Image

from avalanche_agcn.__main__ import main
from avalanche_agcn.benchmarks import SplitPhotos
from avalanche_agcn.benchmarks.photo_checks import check_photos, count_classes, similar_names

N_PHOTOS = 60


def labels_of(k):
    """Every photo shows a person, some a dog, few a car."""
    names = ["person"]
    names += ["dog"] if k % 2 else []
    names += ["car"] if k % 10 == 0 else []
    return names


@pytest.fixture
def folder(tmp_path):
    """Photos that all differ, and their labels with a column that divides them."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    rows = ["id,file,labels,split"]
    for k in range(N_PHOTOS):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k}.png")
        rows.append(f"{100 + k},{k}.png,{';'.join(labels_of(k))},{'Test' if k >= 40 else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return tmp_path


def arguments(folder, *more):
    return [
        "check",
        "photos",
        "--images",
        str(folder / "images"),
        "--labels",
        str(folder / "labels.csv"),
        *more,
    ]


def test_a_table_counts_each_class_and_marks_those_with_few_test_photos(folder, capsys):
    assert main(arguments(folder, "--n-experiences", "2", "--class-order", "alphabetical")) == 0
    printed = capsys.readouterr().out
    assert "columns not used: 'id'" in printed
    assert "By the column split, 40 photos to train on and 20 to test on." in printed
    lines = [line.split() for line in printed.splitlines()]
    # Photos with a car or dog are in the first experience, by the rule of the paper's stream.
    assert ["1", "car", "4", "4", "2", "*"] in lines
    assert ["1", "dog", "20", "20", "10"] in lines
    assert next(line for line in lines if line[:2] == ["2", "person"])[2:5:2] == ["40", "20"]
    assert "- Fewer than 10 test photos show car 2: the AP of these is noise." in printed
    assert "Wrong:" not in printed


def test_counts_are_those_of_the_streams(folder):
    benchmark = SplitPhotos(folder / "images", labels=folder / "labels.csv", n_experiences=2)
    for row in count_classes(benchmark):
        column = benchmark.class_names.index(row.name)
        train = benchmark.train_stream[row.experience - 1].dataset
        assert row.n_own == sum(int(sample[1][column] == 1) for sample in train)
        tested = [sample for experience in benchmark.test_stream for sample in experience.dataset]
        assert row.n_test == sum(int(sample[1][column] == 1) for sample in tested)


def test_everything_wrong_is_named_at_once(folder, capsys):
    images = folder / "images"
    (images / "0.png").write_bytes(b"no image")
    os.rename(images / "1.png", images / "1.jpeg")
    os.remove(images / "2.png")
    (images / "45.png").write_bytes((images / "5.png").read_bytes())
    labels = folder / "labels.csv"
    text = (
        labels.read_text()
        .replace("\n101,1.png,", "\n101,1,")
        .replace("103,3.png,person", "103,3.png,Person ")
    )
    labels.write_text(text)
    assert main(arguments(folder)) == 1
    printed = capsys.readouterr().out
    assert "0.png is not an image that can be read" in printed
    assert (
        f"There is no image file {images / '1'}, but there is 1.jpeg: add the suffix to the labels."
        in printed
    )
    assert f"There is no image file {images / '2.png'}." in printed
    assert "- 'Person' and 'person' are different classes: use one spelling." in printed
    assert "- 1 test photo is also in train, which flatters the scores: 45.png = 5.png." in printed


def test_a_folder_of_missing_photos_is_listed_once_and_the_first_are_printed(folder, capsys, monkeypatch):
    listed = []
    for name in ("listdir", "scandir"):
        own = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path=".", own=own: (listed.append(os.fspath(path)), own(path))[1]
        )
    images = folder / "images"
    rows = [f"x{k}.v2,{'dog' if k % 2 else 'cat'}" for k in range(150)]
    (folder / "labels.csv").write_text("\n".join(["file,labels", *rows]))
    for k in range(60):
        os.rename(images / f"{k}.png", images / f"x{k}.v2.png")
    assert main(arguments(folder)) == 1
    assert len([path for path in listed if path.startswith(str(images))]) == 2  # of train, of test
    lines = capsys.readouterr().out.splitlines()
    wrong = lines[lines.index("Wrong:") + 1 :]
    assert wrong[0].endswith("x0.v2, but there is x0.v2.png: add the suffix to the labels.")
    assert len(wrong[: wrong.index("- and 50 more.")]) == 100


@pytest.mark.parametrize("repeat", [False, True])
def test_classes_that_lose_most_of_their_labels_are_named(folder, capsys, repeat):
    rows = [
        f"{k}.png,person{';dog' if k % 5 else ''},{'test' if k >= 40 else 'train'}" for k in range(N_PHOTOS)
    ]
    (folder / "labels.csv").write_text("\n".join(["file,labels,split", *rows]))
    options = ["--n-experiences", "2", "--class-order", "alphabetical", *["--repeat-images"] * repeat]
    assert main(arguments(folder, *options)) == 0
    printed = capsys.readouterr().out
    assert (
        "learned from few of the train photos that show them: person from 8 of 40. A photo" in printed
    ) != repeat


def test_truncated_photos_are_listed(folder, capsys):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = folder / "images" / "7.jpg"
    Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    labels = folder / "labels.csv"
    labels.write_text(labels.read_text().replace("7.png", "7.jpg", 1))
    assert main(arguments(folder)) == 0
    printed = capsys.readouterr()
    assert f"To look at:\n- {path} is truncated; the missing part is grey." in printed.out
    assert "truncated" not in printed.err


def test_names_that_may_be_several_are_named(folder, capsys):
    text = (folder / "labels.csv").read_text()
    text = text.replace("103,3.png,person;dog", "103,3.png,person|dog")
    text = text.replace("105,5.png,person;dog", "105,5.png,[person];dog")
    (folder / "labels.csv").write_text(text)
    assert main(arguments(folder)) == 0
    assert "- These may be several names each: '[person]', 'person|dog'; " in capsys.readouterr().out


def test_a_run_starts_with_the_same_in_short(folder):
    (folder / "images" / "45.png").write_bytes((folder / "images" / "5.png").read_bytes())
    labels = folder / "labels.csv"
    labels.write_text(labels.read_text().replace("103,3.png,person", "103,3.png,Person"))
    lines = []
    benchmark = SplitPhotos(folder / "images", labels=labels, n_experiences=2, log=lines.append)
    found = check_photos(benchmark)
    assert lines[1].startswith("By the column split")
    assert lines[2].startswith("experience 1: ")
    assert lines[2].endswith("(train + test photos)")
    assert "dog 20 + 10" in lines[2] + lines[3]
    assert lines[4:] == [f"Warning: {sentence}." for sentence in found.errors + found.warnings]
    assert len(found.errors) == 1


def test_photos_of_val_are_tested_on_only_without_test_photos(folder):
    labels = folder / "labels.csv"
    text = labels.read_text()
    labels.write_text(text.replace("Test", "val"))
    lines = []
    data = {"dataset_root": folder / "images", "labels": labels, "log": lines.append}
    assert "40 train, 20 test" in repr(SplitPhotos(**data))
    labels.write_text(text.replace("104,4.png,person,train", "104,4.png,person,valid"))
    assert "39 train, 20 test" in repr(SplitPhotos(**data))
    assert any("1 of val are not used" in line for line in lines)
    for value in ("", "fold 3"):
        labels.write_text(text.replace("104,4.png,person,train", f"104,4.png,person,{value}"))
        with pytest.raises(
            ValueError, match=f"row 6: split has '{value}'; write train, test or val, or rename"
        ):
            SplitPhotos(**data)
    labels.write_text(text.replace("train", "fold 3").replace("Test", "fold 4"))
    assert "48 train, 12 test" in repr(SplitPhotos(**data))
    assert any("column not used: split has 'fold 3', not train and test" in line for line in lines)
    labels.write_text(text.replace("train", "test"))
    with pytest.raises(ValueError, match="split has no photo to train on: write train beside some photos"):
        SplitPhotos(**data)
    labels.write_text(text.replace("Test", "train"))
    assert "48 train, 12 test" in repr(SplitPhotos(**data))  # no photo to test on: some are held out


def test_names_that_differ_in_more_than_spelling_are_not_similar():
    assert similar_names(["dog", "dogs", "do g", "Straße", "STRASSE"]) == [
        ["dog", "do g"],
        ["Straße", "STRASSE"],
    ]


def test_only_photos_can_be_checked(capsys):
    assert main(["check", "coco"]) == 2
    assert "only photos can be checked, not 'coco'" in capsys.readouterr().err
    assert main(["check", "photos"]) == 1
    assert "own photos need --images, their folder" in capsys.readouterr().err
