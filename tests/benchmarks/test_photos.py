"""Own photos as a benchmark: which labels are recognised, and how photos are divided."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from avalanche_agcn.benchmarks import SplitPhotos
from avalanche_agcn.benchmarks.photos import read_photos, split_photos

CLASSES = ["bird", "car", "dog", "person", "tree"]
SHOWN = {f"{k}.jpg": [CLASSES[k % 5], CLASSES[(k + k // 5) % 5]] for k in range(20)}


@pytest.fixture
def folder(tmp_path):
    """Twenty photos with labels in each format."""
    (tmp_path / "images").mkdir()
    for name in SHOWN:
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name)
    rows = [f"{name},{';'.join(labels)}" for name, labels in SHOWN.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["file,labels", *rows]))
    (tmp_path / "xml").mkdir()
    for name, labels in SHOWN.items():
        objects = "".join(f"<object><name>{label}</name></object>" for label in labels)
        text = f"<annotation><filename>{name}</filename>{objects}</annotation>"
        (tmp_path / "xml" / name.replace("jpg", "xml")).write_text(text)
    write_coco(tmp_path / "labels.json", SHOWN)
    return tmp_path


def write_coco(path, shown):
    path.parent.mkdir(exist_ok=True)
    boxes = [(k, CLASSES.index(label)) for k, labels in enumerate(shown.values()) for label in labels]
    content = {
        "images": [{"id": k, "file_name": name} for k, name in enumerate(shown)],
        "categories": [{"id": c, "name": name} for c, name in enumerate([*CLASSES, "never shown"])],
        "annotations": [{"id": n, "image_id": k, "category_id": c} for n, (k, c) in enumerate(boxes)],
    }
    path.write_text(json.dumps(content))


def test_classes_without_a_test_photo_are_named(folder):
    lines = []
    data = {"dataset_root": folder / "images", "labels": folder / "labels.csv", "log": lines.append}
    SplitPhotos(**data)
    assert not any("No test photo" in line for line in lines)
    (folder / "test.csv").write_text("file,labels\n0.jpg,bird;car\n1.jpg,tree")
    SplitPhotos(**data, test_labels=folder / "test.csv")
    expected = "Warning: No test photo shows dog, person; a class without test photos has no AP."
    assert lines.count(expected) == 1


@pytest.mark.parametrize("labels", ["labels.csv", "labels.json", "xml"])
def test_labels_in_every_format_are_recognised(folder, labels):
    photos = read_photos(folder / "images", folder / labels).table
    assert photos.class_names == CLASSES
    rows = zip(photos.files, photos.labels, strict=True)
    found = {name: {CLASSES[c] for c in row.nonzero()} for name, row in rows}
    assert found == {name: set(labels) for name, labels in SHOWN.items()}


def test_cocos_two_files_are_train_and_test_labels(folder):
    parts = {"train2017": dict(list(SHOWN.items())[:12]), "val2017": dict(list(SHOWN.items())[12:])}
    for part, shown in parts.items():
        write_coco(folder / "annotations" / f"instances_{part}.json", shown)
        (folder / "images" / part).mkdir()
        for name in shown:
            (folder / "images" / name).rename(folder / "images" / part / name)
    benchmark = SplitPhotos(folder / "images", labels=folder / "annotations")
    assert "12 train, 8 test" in repr(benchmark)


def test_photos_are_divided_into_train_and_test_and_classes_into_experiences(folder, files_of):
    def names_of(stream):
        return sorted(name for experience in stream for name in files_of(experience.dataset))

    made = [SplitPhotos(folder / "images", labels=folder / "labels.csv", seed=seed) for seed in (0, 1)]
    tests = [names_of(benchmark.test_stream) for benchmark in made]
    assert tests[0] == tests[1]  # the same test photos for each seed
    assert len(tests[0]) == 4
    assert sorted(names_of(made[0].train_stream) + tests[0]) == sorted(SHOWN)
    assert made[0].classes_per_experience == [3, 2]
    options = {"labels": folder / "labels.csv", "class_order": ["dog", "car", "tree"]}
    ordered = SplitPhotos(folder / "images", **options, n_experiences=3)
    assert ordered.class_names == ["dog", "car", "tree"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": "absent.csv"}, "There is no file .*absent.csv with labels"),
        ({"labels": "absent.json"}, "There is no annotation file .*absent.json; download it"),
        ({"labels": "images"}, "images has 0 JSON files and no XML file"),
        ({"test_size": 1.5}, "test_size must be above 0 and below 1, not 1.5"),
        ({"test_size": 0.01}, "test_size=0.01 of 20 photos leaves no test photo"),
        ({"n_experiences": 9}, "n_experiences=9 must be between 1 and the number of classes, 5"),
    ],
)
def test_wrong_labels_or_options_are_named(folder, change, message):
    given = {"labels": "labels.csv", **change}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        SplitPhotos(folder / "images", **{**given, "labels": folder / given["labels"]})


@pytest.mark.parametrize("split", ["test", "val"])
def test_a_column_split_without_train_is_named(folder, split):
    rows = [f"{name},{';'.join(labels)},{split}" for name, labels in SHOWN.items()]
    (folder / "labels.csv").write_text("\n".join(["file,labels,split", *rows]))
    with pytest.raises(ValueError, match=r"column split has no photo to train on: write train beside some"):
        SplitPhotos(folder / "images", labels=folder / "labels.csv")
    (folder / "labels.csv").write_text("\n".join(["file,labels,split", *rows]).replace(f",{split}", ",train"))
    benchmark = SplitPhotos(folder / "images", labels=folder / "labels.csv")
    assert sum(len(experience.dataset) for experience in benchmark.test_stream) == 4


def test_annotations_outside_the_folder_are_named(folder):
    write_coco(folder / "labels.json", {"../secret.jpg": ["dog"]})
    (folder / "xml" / "0.xml").write_text("<annotation><filename>../secret.jpg</filename></annotation>")
    for labels, place in (("labels.json", r"images\[0\].file_name"), ("xml", "0.xml: the filename")):
        message = f"{place} must be .*within the folder .* name relative to .*, but is '../secret.jpg'"
        with pytest.raises(ValueError, match=message):
            read_photos(folder / "images", folder / labels)


@pytest.mark.parametrize("file", ["0.jpg", "./0.jpg"])
def test_a_photo_that_is_listed_twice_is_named(folder, file):
    """It would be trained on twice, or be in train and test, with two sets of labels."""
    write_coco(folder / "labels.json", {**SHOWN, "other": ["dog"]})
    text = (folder / "labels.json").read_text().replace("other", file)
    (folder / "labels.json").write_text(text)
    message = rf"images\[0\] and images\[20\] are both '{file}'; list each file once"
    with pytest.raises(ValueError, match=message):
        read_photos(folder / "images", folder / "labels.json")
    (folder / "xml" / "z.xml").write_text(f"<annotation><filename>{file}</filename></annotation>")
    message = rf"z\.xml: the filename '{file}' is also that of .*0\.xml; write all objects of a photo in one"
    with pytest.raises(ValueError, match=message):
        read_photos(folder / "images", folder / "xml")


@pytest.mark.parametrize("part", ["images", "categories"])
def test_ids_that_two_entries_share_are_named(folder, part):
    """As in files that were joined: of the two images or categories only one would remain."""
    content = json.loads((folder / "labels.json").read_text())
    content[part].append({"id": 3, "file_name": "other.jpg", "name": "other"})
    (folder / "labels.json").write_text(json.dumps(content))
    n = len(content[part]) - 1
    with pytest.raises(ValueError, match=rf"labels\.json: {part}\[3\] and \[{n}\] have the same id, 3; give"):
        read_photos(folder / "images", folder / "labels.json")


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=60), st.floats(0.05, 0.6))
def test_the_test_share_of_each_class_is_at_most_the_requested_one(rows, share):
    targets = torch.zeros(len(rows), 4)
    for k, own in enumerate(rows):
        targets[k, list(own)] = 1
    is_test = split_photos(targets, share)
    assert int(is_test.sum()) <= share * len(rows) + 1e-6
    rarest, n = int(targets.sum(0).argmin()), int(targets.sum(0).min())
    if n > 0:
        assert int(targets[is_test, rarest].sum()) == min(int(share * n + 1e-9), n - 1)
    assert is_test.equal(split_photos(targets, share))


@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_arguments_shared_by_all_benchmarks_arrive(folder, assert_arguments_arrive):
    data = {"dataset_root": folder / "images", "labels": folder / "labels.csv"}
    assert_arguments_arrive(lambda **given: SplitPhotos(**data, **given), n_classes=5)
