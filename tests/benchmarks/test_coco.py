import csv
import json
from itertools import accumulate

import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

from avalanche_agcn.benchmarks import SplitCOCO
from avalanche_agcn.benchmarks.coco import SPLIT_COCO_CLASSES, read_coco

CATEGORIES = {7: "cat", 3: "dog", 90: "cow", 11: "emu"}  # by id: dog cat emu cow
# labels by image; dog is on 4 train images, cat on 3, cow on 2, emu on 1
TRAIN = {10: "dog cat", 4: "dog cow", 2: "dog", 35: "cat cow", 6: "dog cat emu", 50: ""}
VAL = {3: "cow", 8: "dog cat cow", 9: "emu"}


def file_name(year, subset, number):
    return f"COCO_{subset}2014_{number:012}.jpg" if year == 2014 else f"{number:012}.jpg"


def annotation_file(images, year=2014, subset="train"):
    number_of = {name: number for number, name in CATEGORIES.items()}
    shown = [(image, number_of[name]) for image, names in images.items() for name in names.split()]
    shown += shown[:1]  # two objects of one category on one image
    return {
        "images": [{"id": i, "file_name": file_name(year, subset, i)} for i in images],
        "categories": [{"id": i, "name": name} for i, name in CATEGORIES.items()],
        "annotations": [
            {"id": n, "image_id": image, "category_id": category, "iscrowd": n % 2, "bbox": [0, 0, 1, 1]}
            for n, (image, category) in enumerate(shown)
        ],
    }


def make_coco(root, year=2014, train=TRAIN, val=VAL, with_images=True):
    for subset, images in (("train", train), ("val", val)):
        path = root / "annotations" / f"instances_{subset}{year}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(annotation_file(images, year, subset)))
        (root / f"{subset}{year}").mkdir()
        for image in images if with_images else ():
            file = root / f"{subset}{year}" / file_name(year, subset, image)
            Image.new("RGB", (20, 10), (image, 0, 0)).save(file, "png")  # exact colours, whatever the name
    return root


def seen(dataset, names):
    """Image number → labels: the names shown, and in capitals what is annotated at all."""
    found = {}
    for x, y, _ in (dataset[i] for i in range(len(dataset))):
        labels = {name for name, cell in zip(names, y.tolist()) if cell == 1}
        annotated = {name for name, cell in zip(names, y.tolist()) if cell == cell}
        found[x.getpixel((0, 0))[0]] = (labels, annotated)
    return found


@pytest.mark.parametrize("year", [2014, 2017])
def test_images_and_labels_arrive_where_they_belong(tmp_path, year):
    keep = {"train_transform": lambda image: image, "eval_transform": lambda image: image}
    benchmark = SplitCOCO(make_coco(tmp_path, year), n_classes=3, n_experiences=3, **keep)
    assert benchmark.class_names == ["dog", "cat", "cow"]  # the most frequent three, by category id
    found = [seen(e.dataset, benchmark.class_names) for e in benchmark.train_stream]
    assert found == [
        {2: ({"dog"}, {"dog"})},
        {10: ({"cat"}, {"cat"}), 6: ({"cat"}, {"cat"})},
        {4: ({"cow"}, {"cow"}), 35: ({"cow"}, {"cow"})},
    ]
    everything = {"dog", "cat", "cow"}
    assert [seen(e.dataset, benchmark.class_names) for e in benchmark.test_stream] == [
        {8: ({"dog", "cat", "cow"}, everything)},
        {},
        {3: ({"cow"}, everything)},
    ]


def test_options_reach_the_benchmark(tmp_path):
    root = make_coco(tmp_path)
    benchmark = SplitCOCO(
        root,
        n_classes=3,
        class_order=["emu", "cow", "cat"],
        classes_per_experience=[2, 1],
        repeat_images=True,
    )
    assert benchmark.class_names == ["emu", "cow", "cat"]
    assert [len(e.dataset) for e in benchmark.train_stream] == [3, 3]
    assert SplitCOCO(root, n_classes=3, n_experiences=1, class_order=[2, 0, 1]).class_names == [
        "cow",
        "dog",
        "cat",
    ]
    assert (
        SplitCOCO(root, n_classes=3, n_experiences=1, validation_size=2).valid_stream[0].dataset.targets.count
    )


def test_2014_is_preferred_and_2017_can_be_chosen(tmp_path):
    make_coco(make_coco(tmp_path, 2014), 2017, train={1: "dog"}, val={2: "dog"})
    assert len(SplitCOCO(tmp_path, n_classes=1, n_experiences=1).train_stream[0].dataset) == 4
    assert len(SplitCOCO(tmp_path, n_classes=1, n_experiences=1, year=2017).train_stream[0].dataset) == 1


def test_labels_need_no_images(tmp_path):
    benchmark = SplitCOCO(make_coco(tmp_path, with_images=False), n_classes=4, n_experiences=2)
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 5
    with pytest.raises(FileNotFoundError, match=r"no image .*COCO_train2014_0.*must be downloaded"):
        benchmark.train_stream[0].dataset[0]


def test_default_transforms_are_the_papers(tmp_path):
    benchmark = SplitCOCO(make_coco(tmp_path), n_classes=1, n_experiences=1)
    assert benchmark.train_stream[0].dataset[0][0].shape == (3, 448, 448)
    assert benchmark.test_stream[0].dataset[0][0].shape == (3, 448, 448)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_classes": 5}, "n_classes=5 must be between 1 and the 4 classes"),
        ({"n_experiences": 5}, "n_experiences=5 must be between 1 and the number of classes, 4"),
        ({"class_order": ["dog", "cat", "cow", "gnu"]}, r"unknown categories \['gnu'\]; known are \['dog'"),
        ({"class_order": ["dog", "cat", "cow"]}, "names 3 classes, but n_classes=4"),
        ({"class_order": ["dog", "cat", "cow", "cow"]}, r"repeated \['cow'\]"),
        ({"year": 2015}, r"year must be one of \(2014, 2017\), got 2015"),
        ({"year": 2017}, "no annotations/instances_train2017.json; download"),
    ],
)
def test_a_request_that_does_not_fit_says_why(tmp_path, arguments, message):
    make_coco(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        SplitCOCO(tmp_path, **{"n_classes": 4, "n_experiences": 2} | arguments)


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*absent"):
        SplitCOCO(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"no annotations/instances_train2014.json"):
        SplitCOCO(tmp_path)
    make_coco(tmp_path)
    (tmp_path / "annotations" / "instances_val2014.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no annotation file .*instances_val2014\.json"):
        SplitCOCO(tmp_path, n_classes=4, n_experiences=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": []}, "has 6 images and 0 annotations"),
        ({"images": []}, "has 0 images and"),
        (
            {"images": [{"id": 10, "file_name": "a"}]},
            "annotations for image id 4, which is not among its images",
        ),
    ],
)
def test_annotations_and_images_that_do_not_fit_are_named(tmp_path, change, message):
    make_coco(tmp_path)
    path = tmp_path / "annotations" / "instances_train2014.json"
    path.write_text(json.dumps(annotation_file(TRAIN) | change))
    with pytest.raises(ValueError, match=message):
        read_coco(tmp_path, "train2014")


def write_lists(root, train, test):
    """``train`` and ``test``: for each task the rows of its csv file."""
    for task in range(len(train)):
        folder = root / f"task{task}"
        folder.mkdir(parents=True)
        (folder / "train.csv").write_text("\n".join(train[task]))
        (folder / "test.csv").write_text("\n".join(test[task]))
    return root


@pytest.mark.parametrize("year", [2014, 2017])
def test_split_lists_are_kept_to_the_letter_and_named_by_the_annotations(tmp_path, year):
    root = make_coco(tmp_path / "coco", year)
    lists = write_lists(
        tmp_path / "lists",
        # columns: cow | dog cat
        train=[
            ["COCO_train2014_000000000035.jpg,1", "COCO_train2014_000000000004.jpg,1"],
            ["COCO_train2014_000000000010.jpg,1,1", "COCO_train2014_000000000002.jpg,1,0"],
        ],
        test=[
            ["COCO_val2014_000000000008.jpg,1", "COCO_val2014_000000000003.jpg,1"],
            ["COCO_val2014_000000000008.jpg,1,1,1", "COCO_val2014_000000000003.jpg,1,0,0"],
        ],
    )
    lists_test = lists / "task1" / "test.csv"
    lists_test.write_text(lists_test.read_text() + "\nCOCO_val2014_000000000009.jpg,0,0,0")
    if year == 2017:  # the second release has other images in val
        (root / "val2017" / "000000000008.jpg").rename(root / "train2017" / "000000000008.jpg")
        new_train, new_val = {**TRAIN, 8: VAL[8]}, {k: v for k, v in VAL.items() if k != 8}
        for subset, images in (("train", new_train), ("val", new_val)):
            path = root / "annotations" / f"instances_{subset}2017.json"
            path.write_text(json.dumps(annotation_file(images, 2017, subset)))
    keep = {"train_transform": lambda image: image, "eval_transform": lambda image: image}
    benchmark = SplitCOCO(root, split_lists=lists, **keep)
    names = benchmark.class_names
    assert names == ["cow", "dog", "cat"]
    assert [seen(e.dataset, names) for e in benchmark.train_stream] == [
        {35: ({"cow"}, {"cow"}), 4: ({"cow"}, {"cow"})},
        {10: ({"dog", "cat"}, {"dog", "cat"}), 2: ({"dog"}, {"dog", "cat"})},
    ]
    assert [list(seen(e.dataset, names)) for e in benchmark.test_stream] == [[8, 3], [9]]
    complete = seen(benchmark.complete_train_dataset, names)
    expected = {35: {"cow", "cat"}, 4: {"dog", "cow"}, 10: {"dog", "cat"}, 2: {"dog"}}
    assert {image: labels for image, (labels, _) in complete.items()} == expected


def test_lists_of_other_images_or_labels_are_refused(tmp_path):
    root = make_coco(tmp_path / "coco")
    test = [["COCO_val2014_000000000008.jpg,1"]]
    other_image = write_lists(tmp_path / "a", [["COCO_train2014_000000000099.jpg,1"]], test)
    with pytest.raises(ValueError, match=r"do not fit the data.*'000000000099\.jpg'"):
        SplitCOCO(root, split_lists=other_image)
    rows = ["COCO_train2014_000000000010.jpg,0", "COCO_train2014_000000000035.jpg,1"]
    other_labels = write_lists(tmp_path / "b", [[*rows, "COCO_train2014_000000000006.jpg,1"]], test)
    with pytest.raises(ValueError, match="column 0, with 3 positives, is most like 'cat', but differs"):
        SplitCOCO(root, split_lists=other_labels)


def test_lists_of_another_width_need_annotations_to_be_named(tmp_path):
    row = "COCO_train2014_000000000010.jpg,1"
    lists = write_lists(tmp_path / "lists", [[row]], [[row.replace("train", "val")]])
    with pytest.raises(ValueError, match="have 1 classes, not the 40"):
        SplitCOCO(tmp_path, split_lists=lists)


def test_lists_of_foreign_names_are_refused(tmp_path):
    rows = ["photo.jpg" + ",1" * 40]
    with pytest.raises(ValueError, match=r"'photo\.jpg' is not a file name of its 2014 release"):
        SplitCOCO(tmp_path, split_lists=write_lists(tmp_path / "lists", [rows], [rows]))


def test_options_beside_split_lists_are_refused(tmp_path):
    with pytest.raises(ValueError, match="leave out class_order, repeat_images"):
        SplitCOCO(tmp_path, split_lists=tmp_path, class_order=[0], repeat_images=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_classes": 40}, "n_classes=40 contradicts the split lists, which have 1"),
        ({"n_experiences": 10}, "n_experiences=10 contradicts the split lists, which have 1"),
        ({"year": 2017}, "no annotations/instances_train2017.json; download"),
    ],
)
def test_sizes_and_releases_that_the_lists_do_not_have_are_refused(tmp_path, arguments, message):
    root = make_coco(tmp_path / "coco")
    rows = ["COCO_train2014_000000000035.jpg,1"], ["COCO_val2014_000000000008.jpg,1"]
    lists = write_lists(tmp_path / "lists", *([part] for part in rows))
    assert SplitCOCO(root, split_lists=lists, n_classes=1, n_experiences=1, year=2014).n_classes == 1
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        SplitCOCO(root, split_lists=lists, **arguments)


def test_without_lists_the_sizes_are_the_papers(tmp_path):
    make_coco(tmp_path)
    with pytest.raises(ValueError, match="n_classes=40 must be between 1 and the 4 classes"):
        SplitCOCO(tmp_path)
    with pytest.raises(ValueError, match="n_experiences=10 must be between 1 and the number of classes, 4"):
        SplitCOCO(tmp_path, n_classes=4)


def test_categories_in_another_order_of_their_ids_are_refused(tmp_path):
    make_coco(tmp_path)
    path = tmp_path / "annotations" / "instances_val2014.json"
    content = json.loads(path.read_text())
    for category in content["categories"]:
        category["id"] = 100 - category["id"]
    for annotation in content["annotations"]:
        annotation["category_id"] = 100 - annotation["category_id"]
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"another order of their ids: number 0 is 'dog' in train and 'cow' in test"
    ):
        SplitCOCO(tmp_path, n_classes=4, n_experiences=2)
    content["categories"][0]["name"] = "gnu"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"different categories: only one has \['cat', 'gnu'\]"):
        SplitCOCO(tmp_path, n_classes=4, n_experiences=2)


def test_real_photos_have_every_label_of_their_annotation(shared_data, files_of):
    root = shared_data / "coco18"
    benchmark = SplitCOCO(root, n_classes=18, n_experiences=6)
    coco = COCO(str(root / "annotations" / "instances_train2014.json"))
    expected = {
        f"train2014/{image['file_name']}": {
            coco.cats[a["category_id"]]["name"] for a in coco.imgToAnns[image["id"]]
        }
        for image in coco.imgs.values()
    }
    found = []
    for experience in benchmark.train_stream:
        own = set(experience.classes_in_this_experience)
        for file, target in zip(files_of(experience.dataset), experience.dataset.targets.data.tolist()):
            found.append(file)
            for column, cell in enumerate(target):
                label = benchmark.class_names[column] in expected[file]
                assert cell == label if column in own else cell != cell
    assert sorted(found) == sorted(expected)
    assert len(found) == 6000
    assert sum(len(e.dataset) for e in benchmark.test_stream) == 2000
    x, y, task = benchmark.train_stream[5].dataset[0]
    assert x.shape == (3, 448, 448)
    assert y[-3:].any()
    assert task == 0


def test_published_lists_give_the_published_benchmark(shared_data, tmp_path, files_of):
    with pytest.warns(UserWarning, match="more than once; each is kept once"):
        benchmark = SplitCOCO(tmp_path, split_lists=shared_data / "agcn_splits" / "Split-COCO.zip")
    train = [11611, 6299, 6227, 6118, 6260, 6102, 6134, 6161, 6000, 4160]
    nested = [2664, 5328, 7992, 10580, 13202, 15858, 18570, 21279, 24431, 27172]
    assert [len(e.dataset) for e in benchmark.train_stream] == train
    assert list(accumulate(len(e.dataset) for e in benchmark.test_stream)) == nested
    with pytest.raises(ValueError, match="complete training labels are not known"):
        _ = benchmark.complete_train_dataset
    with (shared_data / "coco_labels" / "coco_labels80.csv").open() as file:
        real = {int(row["coco_id"]): set(row["labels"].split(";")) for row in csv.DictReader(file)}
    checked = 0
    for experience in [*benchmark.train_stream, *benchmark.test_stream]:
        for file, target in zip(files_of(experience.dataset), experience.dataset.targets.data.tolist()):
            labels = real.get(int(file[-16:-4]))
            if labels is not None:
                checked += 1
                assert all(
                    cell != cell or cell == (n in labels) for n, cell in zip(SPLIT_COCO_CLASSES, target)
                )
    assert checked > 14_000


def test_published_classes_are_the_most_frequent_of_train2014(shared_data):
    with (shared_data / "coco_labels" / "train2014_counts.csv").open() as file:
        counts = {row["name"]: int(row["images"]) for row in csv.DictReader(file)}
    assert set(sorted(counts, key=counts.get, reverse=True)[:40]) == set(SPLIT_COCO_CLASSES)


def test_labels_of_one_image_without_a_chosen_class_are_left_out(tmp_path):
    benchmark = SplitCOCO(make_coco(tmp_path), n_classes=1, n_experiences=1)
    assert benchmark.class_names == ["dog"]
    assert torch.equal(benchmark.train_stream[0].dataset.targets.data, torch.ones(4, 1))
    assert len(benchmark.test_stream[0].dataset) == 1
