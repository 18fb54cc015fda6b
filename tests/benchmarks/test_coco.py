import csv
import json
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from avalanche_agcn.benchmarks import SplitCOCO
from avalanche_agcn.benchmarks.coco import SPLIT_COCO_CLASSES
from avalanche_agcn.benchmarks.image_files import find_normalisation

CATEGORIES = {7: "cat", 3: "dog", 90: "cow", 11: "ant"}  # by id: dog cat ant cow
# Boxes on each image; a star marks a crowd. Dog is on 4 train images, cat on 3, cow on 2, ant on 1.
TRAIN = {10: "dog cat* dog", 4: "dog cow*", 2: "dog", 35: "cat* cow", 6: "dog* cat ant*", 50: ""}
VAL = {3: "cow cow*", 8: "dog* cat cow*", 9: "ant"}
CROWDED = {1: "dog cat", 2: "dog* cow", 3: "ant*", 4: "ant cat cat*", 5: "", 6: "cow* cow"}
CROWDED_VAL = {8: "dog*", 9: "ant dog", 10: "cow", 11: ""}
KEEP = {"train_transform": lambda image: image, "eval_transform": lambda image: image}


@pytest.fixture
def coco(tmp_path):
    return make_coco(tmp_path, train=CROWDED, val=CROWDED_VAL)


def file_name(year, subset, number):
    return f"COCO_{subset}2014_{number:012}.jpg" if year == 2014 else f"{number:012}.jpg"


def write_annotations(root, shown, subset="train", year=2014, **parts):
    number_of = {name: number for number, name in CATEGORIES.items()}
    boxes = [(image, box) for image, text in shown.items() for box in text.split()]
    content = {
        "images": [{"id": i, "file_name": file_name(year, subset, i)} for i in shown],
        "categories": [{"id": i, "name": name} for i, name in CATEGORIES.items()],
        "annotations": [
            {"id": n, "image_id": i, "category_id": number_of[box.rstrip("*")], "iscrowd": int("*" in box)}
            for n, (i, box) in enumerate(boxes)
        ],
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / f"instances_{subset}{year}.json").write_text(json.dumps(content | parts))


def make_coco(root, year=2014, train=TRAIN, val=VAL, with_images=False):
    for subset, images in (("train", train), ("val", val)):
        write_annotations(root, images, subset, year)
        (root / f"{subset}{year}").mkdir()
        for image in images if with_images else ():
            file = root / f"{subset}{year}" / file_name(year, subset, image)
            Image.new("RGB", (20, 10), (image, 0, 0)).save(file, "png")  # exact colours, whatever the name
    return root


def codes_of(dataset):
    """Image number → its targets, −1 where unlabelled."""
    numbers = [x.getpixel((0, 0))[0] for x, *_ in dataset]
    return dict(zip(numbers, dataset.targets.codes.tolist(), strict=True))


@pytest.mark.parametrize("year", [2014, 2017])
def test_images_and_labels_arrive_where_they_belong(tmp_path, year):
    root = make_coco(tmp_path, year, with_images=True)
    benchmark = SplitCOCO(root, n_classes=3, n_experiences=3, **KEEP)
    assert benchmark.class_names == ["dog", "cat", "cow"]  # the most frequent three, by category id
    cat, cow = [-1, 1, -1], [-1, -1, 1]
    trained, tested = ([codes_of(e.dataset) for e in stream] for stream in benchmark.streams.values())
    assert trained == [{2: [1, -1, -1]}, {10: cat, 6: cat}, {4: cow, 35: cow}]
    assert tested == [{8: [1, 1, 1]}, {}, {3: [0, 0, 1]}]


def test_explicit_options_win(tmp_path):
    root = make_coco(make_coco(tmp_path), 2017, train={1: "dog"}, val={2: "dog"})
    for year, n in ((None, 4), (2017, 1)):  # 2014 is preferred; images without a dog are skipped
        benchmark = SplitCOCO(root, n_classes=1, n_experiences=1, year=year)
        assert benchmark.class_names == ["dog"]
        assert torch.equal(benchmark.train_stream[0].dataset.targets.data, torch.ones(n, 1))
        assert len(benchmark.test_stream[0].dataset) == 1
    names = {"n_classes": 3, "class_order": ["ant", "cow", "cat"]}
    benchmark = SplitCOCO(root, **names, classes_per_experience=[2, 1], repeat_images=True)
    assert benchmark.class_names == ["ant", "cow", "cat"]
    assert [len(e.dataset) for e in benchmark.train_stream] == [3, 3]
    reordered = SplitCOCO(root, n_classes=3, n_experiences=1, class_order=[2, 0, 1], validation_size=2)
    assert reordered.class_names == ["cow", "dog", "cat"]
    assert len(reordered.valid_stream[0].dataset) == 2


PAPERS = {"n_classes": 4, "n_experiences": 2, "class_order": "data", "repeat_images": False, "flip": True}
PAPERS |= {"unlabelled_as_negative": False, "crowds": "labels", "image_size": 448}


@pytest.mark.parametrize(
    ("given", "names", "sizes"),
    [
        ({"n_classes": 2}, ["cat", "cow"], [1, 1]),  # the most frequent two, in alphabetical order
        ({"n_experiences": 2}, ["ant", "cat", "cow", "dog"], [2, 2]),
        ({"classes_per_experience": [3, 1]}, ["ant", "cat", "cow", "dog"], [3, 1]),
        ({"class_order": ["cow", "ant", "dog"], "crowds": "labels"}, ["cow", "ant", "dog"], [1, 1, 1]),
        (PAPERS, ["dog", "cat", "ant", "cow"], [2, 2]),
    ],
)
@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_explicit_settings_win_over_the_protocol(coco, given, names, sizes):
    benchmark = SplitCOCO(coco, protocol="B0-C1", **given)
    assert (benchmark.class_names, benchmark.classes_per_experience) == (names, sizes)
    if given is PAPERS:
        paper = SplitCOCO(coco, protocol="paper", n_classes=4, n_experiences=2)
        assert str(benchmark.protocol).splitlines()[1:] == str(paper.protocol).splitlines()[1:]
        for ours, theirs in zip(benchmark.train_stream, paper.train_stream):
            assert torch.equal(ours.dataset.targets.codes, theirs.dataset.targets.codes)


def test_labels_need_no_images_and_images_have_the_papers_size(tmp_path):
    benchmark = SplitCOCO(make_coco(tmp_path, with_images=True), n_classes=4, n_experiences=1)
    for stream in (benchmark.train_stream, benchmark.test_stream):
        assert stream[0].dataset[0][0].shape == (3, 448, 448)
    shutil.rmtree(tmp_path / "train2014")
    benchmark = SplitCOCO(tmp_path, n_classes=4, n_experiences=1)
    assert len(benchmark.train_stream[0].dataset) == 5
    with pytest.raises(FileNotFoundError, match=r"no image .*COCO_train2014_0.*download it"):
        benchmark.train_stream[0].dataset[0]


GNU = [{"id": number, "name": "gnu" if number == 7 else name} for number, name in CATEGORIES.items()]


@pytest.mark.parametrize(
    ("arguments", "removed", "changed", "message"),
    [
        ({"n_classes": None}, "", {}, "n_classes=40 must be between 1 and the 4 classes"),
        ({"n_experiences": None}, "", {}, "n_experiences=10 must be between 1 and the number of"),
        ({"year": 2015}, "", {}, r"year must be one of \(2014, 2017\), not 2015"),
        ({"year": 2017}, "", {}, "no annotations/instances_train2017.json; unpack COCO"),
        (
            {},
            "annotations/*",
            {},
            r"no annotations/instances_train2014\.json; .* `download_coco` or --download",
        ),
        ({}, "annotations/instances_val*", {}, r"no annotation file .*instances_val2014\.json"),
        ({"dataset_root": "absent"}, "", {}, "no folder absent"),
        ({}, "", {"annotations": []}, "has 6 images and 0 annotations"),
        ({}, "", {"images": []}, "has 0 images and"),
        ({}, "", {"categories": GNU}, "number 1 is 'gnu' in train and 'cat' in test"),
    ],
)
def test_arguments_and_files_that_do_not_fit_are_named(tmp_path, arguments, removed, changed, message):
    root = make_coco(tmp_path)
    write_annotations(root, TRAIN, **changed)
    for file in root.glob(removed) if removed else ():
        file.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        SplitCOCO(**{"dataset_root": root, "n_classes": 4, "n_experiences": 2} | arguments)


def read_labels(root, subset):
    """By file the names of all boxes, and of those that are no crowds."""
    content = json.loads((root / "annotations" / f"instances_{subset}.json").read_text())
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    file_of = {image["id"]: f"{subset}/{image['file_name']}" for image in content["images"]}
    found = {file: (set(), set()) for file in file_of.values()}
    for box in content["annotations"]:
        for names in found[file_of[box["image_id"]]][: 1 if box["iscrowd"] else 2]:
            names.add(name_of[box["category_id"]])
    return found


@pytest.mark.parametrize(("protocol", "sizes"), [("B0-C2", [2, 2]), ("B2-C1", [2, 1, 1]), ("B4-C1", [4])])
def test_b_protocols_equal_a_reading_of_the_annotations(coco, assert_b_protocol, protocol, sizes):
    data = [read_labels(coco, subset) for subset in ("train2014", "val2014")]
    assert_b_protocol(SplitCOCO(coco, protocol=protocol), sorted(CATEGORIES.values()), sizes, *data)


@pytest.mark.parametrize(
    ("crowds", "image_3", "n_test"),
    [("labels", {3: [1, 0, 0, 0]}, 3), ("membership", {3: [0, 0, 0, 0]}, 3), ("ignore", {}, 2)],
)
def test_crowds_count_as_set(tmp_path, crowds, image_3, n_test):
    root = make_coco(tmp_path, train=CROWDED, val=CROWDED_VAL, with_images=True)
    benchmark = SplitCOCO(root, protocol="B4-C1", crowds=crowds, **KEEP)
    found = codes_of(benchmark.train_stream[0].dataset)
    assert found.keys() == {1, 2, 4, 6} | image_3.keys()
    assert found.items() >= image_3.items()
    assert len(benchmark.test_stream[0].dataset) == n_test


def test_protocol_prints_what_is_in_force(coco):
    printed = str(SplitCOCO(coco, protocol="B2-C1", crowds="ignore", eval_transform=str).protocol)
    assert dict(line.split(": ") for line in printed.splitlines()) == {
        **{"protocol": "B2-C1", "n_classes": "4", "n_experiences": "3", "classes_per_experience": "2, 1, 1"},
        **{"class_order": "alphabetical", "repeat_images": "True", "unlabelled_as_negative": "True"},
        **{"test_images": "seen", "crowds": "ignore", "image_size": "224", "flip": "False"},
    }
    both = SplitCOCO(coco, protocol="B2-C1", train_transform=str, eval_transform=str).protocol
    assert (both.image_size, both.flip) == (None, None)


def rows(subset, labels):
    """Rows of a split list: image number → labels."""
    return [f"COCO_{subset}2014_{image:012}.jpg,{cells}" for image, cells in labels.items()]


@pytest.mark.parametrize("year", [2014, 2017])
def test_split_lists_are_followed_exactly_and_named_by_the_annotations(tmp_path, write_lists, year):
    lists = {  # columns: cow | dog cat
        "task0/train.csv": rows("train", {35: "1", 4: "1"}),
        "task0/test.csv": rows("val", {8: "1", 3: "1"}),
        "task1/train.csv": rows("train", {10: "1,1", 2: "1,0"}),
        "task1/test.csv": rows("val", {8: "1,1,1", 3: "1,0,0", 9: "0,0,0"}),
    }
    moved = {8: VAL[8]} if year == 2017 else {}  # the second release has other images in val
    train, val = TRAIN | moved, {image: names for image, names in VAL.items() if image not in moved}
    root = make_coco(tmp_path / "coco", year, train, val, with_images=True)
    benchmark = SplitCOCO(root, split_lists=write_lists(lists), **KEEP)
    assert benchmark.class_names == ["cow", "dog", "cat"]
    trained, tested = ([codes_of(e.dataset) for e in stream] for stream in benchmark.streams.values())
    assert trained == [{35: [1, -1, -1], 4: [1, -1, -1]}, {10: [-1, 1, 1], 2: [-1, 1, 0]}]
    assert tested == [{8: [1, 1, 1], 3: [1, 0, 0]}, {9: [0, 0, 0]}]
    complete = codes_of(benchmark.complete_train_dataset)
    assert complete == {35: [1, 0, 1], 4: [1, 1, 0], 10: [0, 1, 1], 2: [0, 1, 0]}


@pytest.mark.parametrize("annotated", [True, False])
@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_split_lists_with_unlabelled_as_negative_have_0_outside_the_own_columns(
    tmp_path, write_lists, annotated
):
    cells = ",".join(["0"] * 38)
    lists = {  # without annotations, lists have the 40 classes of the published ones
        "task0/train.csv": rows("train", {35: "1", 4: "1"} if annotated else {35: "1,1"}),
        "task0/test.csv": rows("val", {8: "1"} if annotated else {8: "1,0"}),
        "task1/train.csv": rows("train", {10: "1,1", 2: "1,0"} if annotated else {10: f"1{cells[1:]}"}),
        "task1/test.csv": rows("val", {8: "1,1,1"} if annotated else {8: f"1,0,{cells}"}),
    }
    root = make_coco(tmp_path / "coco") if annotated else tmp_path
    masked = SplitCOCO(root, split_lists=write_lists(lists))
    zeros = SplitCOCO(root, split_lists=write_lists(lists), unlabelled_as_negative=True, flip=False)
    for with_nan, with_0 in zip(masked.train_stream, zeros.train_stream, strict=True):
        assert with_nan.dataset.targets.data.isnan().any()
        assert torch.equal(with_0.dataset.targets.data, with_nan.dataset.targets.data.nan_to_num(0.0))
    for one, other in zip(masked.test_stream, zeros.test_stream, strict=True):
        assert torch.equal(one.dataset.targets.data, other.dataset.targets.data)
    assert zeros.protocol.unlabelled_as_negative
    assert not zeros.protocol.flip
    assert "Flip" not in repr(zeros.plan.train_transform)
    assert not masked.protocol.unlabelled_as_negative
    assert masked.protocol.flip


def test_limit_takes_the_first_images_of_each_list(tmp_path, write_lists):
    lists = {
        "task0/train.csv": rows("train", {35: "1", 4: "1"}),
        "task0/test.csv": rows("val", {8: "1", 3: "1"}),
    }
    benchmark = SplitCOCO(make_coco(tmp_path / "coco"), split_lists=write_lists(lists), limit=1)
    names = [stream[0].dataset.image_names[0] for stream in benchmark.streams.values()]
    assert names == [f"{s}2014/{file_name(2014, s, n)}" for s, n in (("train", 35), ("val", 8))]
    assert [len(stream[0].dataset) for stream in benchmark.streams.values()] == [1, 1]


@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_arguments_shared_by_all_benchmarks_arrive(coco, assert_arguments_arrive):
    assert_arguments_arrive(lambda **given: SplitCOCO(coco, **given), n_classes=4)


def test_validation_images_are_taken_from_the_lists_with_all_their_labels(tmp_path, write_lists):
    lists = {  # columns: cow | dog cat
        "task0/train.csv": rows("train", {35: "1", 4: "1"}),
        "task0/test.csv": rows("val", {8: "1", 3: "1"}),
        "task1/train.csv": rows("train", {10: "1,1", 2: "1,0", 6: "1,1"}),
        "task1/test.csv": rows("val", {8: "1,1,1", 3: "1,0,0", 9: "0,0,0"}),
    }
    root = make_coco(tmp_path / "coco", with_images=True)
    listed = {35: [1, 0, 1], 4: [1, 1, 0], 10: [0, 1, 1], 2: [0, 1, 0], 6: [0, 1, 1]}
    held_out = set()
    for seed in range(8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few images: classes without a positive
            benchmark = SplitCOCO(root, split_lists=write_lists(lists), validation_size=1, seed=seed, **KEEP)
        valid = [codes_of(experience.dataset) for experience in benchmark.valid_stream]
        assert [len(images) for images in valid] in ([1, 0], [0, 1])
        (image,) = {**valid[0], **valid[1]}
        assert valid[0 if listed[image][0] else 1] == {image: listed[image]}
        trained = [set(codes_of(experience.dataset)) for experience in benchmark.train_stream]
        assert trained == [{35, 4} - {image}, {10, 2, 6} - {image}]
        assert set(codes_of(benchmark.complete_train_dataset)) == set(listed) - {image}
        assert [len(experience.dataset) for experience in benchmark.test_stream] == [2, 1]
        held_out.add(image)
    assert len(held_out) > 1
    shutil.rmtree(root / "annotations")
    cells = ",1" * 39
    alone = {
        "task0/train.csv": [f"{row}{cells}" for row in LISTED],
        "task0/test.csv": rows("val", {8: f"1{cells}"}),
    }
    with pytest.raises(ValueError, match=r"validation_size=1 needs all labels of the train images"):
        SplitCOCO(root, split_lists=write_lists(alone, "alone"), validation_size=1)


LISTED = rows("train", {35: "1"})
LISTS = {"task0/train.csv": LISTED, "task0/test.csv": rows("val", {8: "1"})}


@pytest.mark.parametrize(
    ("train_rows", "arguments", "message"),
    [
        (rows("train", {99: "1"}), {}, r"do not fit the data.*'000000000099\.jpg'"),
        (rows("train", {10: "0", 35: "1", 6: "1"}), {}, "3 positives, is most like 'cat', but differs"),
        (LISTED, {"n_classes": 40}, "n_classes=40 contradicts the split lists, which have 1"),
        (LISTED, {"class_order": [0], "crowds": "ignore"}, "leave out class_order, crowds"),
        (LISTED, {"repeat_images": True, "protocol": "B0-C1"}, "leave out repeat_images, protocol"),
        (LISTED, {"year": 2017}, "no annotations/instances_train2017.json; unpack COCO"),
    ],
)
def test_lists_that_fit_neither_data_nor_arguments_are_rejected(
    tmp_path, write_lists, train_rows, arguments, message
):
    root = make_coco(tmp_path / "coco")
    fitting = {"n_classes": 1, "n_experiences": 1, "year": 2014, "class_order": None, "validation_size": 0}
    fitted = SplitCOCO(root, split_lists=write_lists(LISTS), image_size=8, **fitting)
    assert (fitted.n_classes, "size=[8, 8]" in repr(fitted.plan.eval_transform)) == (1, True)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        SplitCOCO(root, split_lists=write_lists(LISTS | {"task0/train.csv": train_rows}), **arguments)


def test_lists_with_two_columns_of_a_class_or_without_annotations_are_rejected(tmp_path, write_lists):
    twice = {"task0/train.csv": rows("train", {35: "1,1"}), "task0/test.csv": rows("val", {8: "1,1"})}
    with pytest.raises(ValueError, match=r"two of their columns are most like the same class.*'(\w+)', '\1'"):
        SplitCOCO(make_coco(tmp_path / "coco"), split_lists=write_lists(twice, "twice"))
    with pytest.raises(ValueError, match="have 1 classes, not the 40"):
        SplitCOCO(tmp_path, split_lists=write_lists(LISTS))
    foreign = {name: ["photo.jpg" + ",1" * 40] for name in LISTS}
    with pytest.raises(ValueError, match=r"'photo\.jpg' is not a file of its 2014 release"):
        SplitCOCO(tmp_path, split_lists=write_lists(foreign))


def test_real_photos_have_every_label_of_their_annotation(shared_data, files_of):
    root = shared_data / "coco18"
    benchmark = SplitCOCO(root, n_classes=18, n_experiences=6)
    expected, found = read_labels(root, "train2014"), []
    for experience in benchmark.train_stream:
        own, files = experience.classes_in_this_experience, files_of(experience.dataset)
        for file, target in zip(files, experience.dataset.targets.data, strict=True):
            assert target.isfinite().nonzero().flatten().tolist() == own
            assert target[own].tolist() == [benchmark.class_names[c] in expected[file][0] for c in own]
        found += files
    assert sorted(found) == sorted(expected)
    assert len(found) == 6000
    assert sum(len(e.dataset) for e in benchmark.test_stream) == 2000
    assert benchmark.train_stream[5].dataset[0][0].shape == (3, 448, 448)


@pytest.mark.parametrize(("protocol", "sizes"), [("B0-C3", [3] * 6), ("B6-C3", [6, 3, 3, 3, 3])])
def test_real_photos_follow_a_b_protocol(shared_data, assert_b_protocol, protocol, sizes):
    root = shared_data / "coco18"
    benchmark = SplitCOCO(root, protocol=protocol)
    data = [read_labels(root, subset) for subset in ("train2014", "val2014")]
    assert_b_protocol(benchmark, sorted(benchmark.class_names), sizes, *data)
    assert sum(len(e.dataset) for e in benchmark.train_stream) > 6000  # images repeat
    assert benchmark.train_stream[0].dataset[0][0].shape == (3, 224, 224)


@pytest.mark.filterwarnings("ignore:.*more than once; each is kept once")
def test_published_lists_have_cocos_own_labels(shared_data, tmp_path, files_of):
    benchmark = SplitCOCO(tmp_path, split_lists=shared_data / "agcn_splits" / "Split-COCO.zip")
    assert len(benchmark.train_stream) == 10
    with pytest.raises(ValueError, match="complete training labels are not known"):
        _ = benchmark.complete_train_dataset
    with (shared_data / "coco_labels" / "coco_labels80.csv").open() as file:
        real = {int(row["coco_id"]): set(row["labels"].split(";")) for row in csv.DictReader(file)}
    checked = 0
    for experience in [*benchmark.train_stream, *benchmark.test_stream]:
        for file, target in zip(files_of(experience.dataset), experience.dataset.targets.data.tolist()):
            if (labels := real.get(int(file[-16:-4]))) is not None:
                checked += 1
                cells = zip(SPLIT_COCO_CLASSES, target)
                assert all(cell != cell or cell == (name in labels) for name, cell in cells)
    assert checked > 14_000


def test_published_classes_are_the_most_frequent_of_train2014(shared_data):
    with (shared_data / "coco_labels" / "train2014_counts.csv").open() as file:
        counts = {row["name"]: int(row["images"]) for row in csv.DictReader(file)}
    assert set(sorted(counts, key=counts.get, reverse=True)[:40]) == set(SPLIT_COCO_CLASSES)


@pytest.mark.parametrize("given", [{"backbone": SimpleNamespace(mean=(0.5,) * 3)}, {"mean": (0.1, 0.2, 0.3)}])
def test_images_are_normalised_as_the_backbone_expects_them(coco, given):
    benchmark = SplitCOCO(coco, n_classes=4, n_experiences=1, **given)
    for transform in (benchmark.plan.train_transform, benchmark.plan.eval_transform):
        assert tuple(find_normalisation(transform).mean) == given.get("mean", (0.5, 0.5, 0.5))
