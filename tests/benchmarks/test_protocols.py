import inspect
import json
import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from avalanche_agcn.benchmarks import SplitCOCO, SplitScenes, SplitVOC, SplitWIDE, multilabel_benchmark
from avalanche_agcn.benchmarks.multilabel import assemble, make_plan
from avalanche_agcn.benchmarks.protocols import Protocol, b_sizes, resolve_protocol


class Numbers(Dataset):
    """Image i is the number i."""

    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.tensor(index), self.targets[index]


def rows(experience):
    """Image → its target, NaN as None."""
    return {int(x): [None if c != c else int(c) for c in y.tolist()] for x, y, _ in experience.dataset}


def labels_of(draw, n_images, n_classes):
    cells = st.lists(st.integers(0, 1), min_size=n_images * n_classes, max_size=n_images * n_classes)
    return torch.tensor(draw(cells), dtype=torch.int8).reshape(n_images, n_classes)


@st.composite
def label_matrices(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    n_images, n_classes = draw(st.integers(2, 8)), sum(sizes)
    train, test = labels_of(draw, n_images, n_classes), labels_of(draw, n_images, n_classes)
    assume(train.any(0).all())
    names = draw(st.permutations("abcdefghi"[:n_classes]))
    return train, test, sizes, names


@settings(max_examples=60)
@given(label_matrices())
def test_targets_outside_own_columns_are_zero_instead_of_nan(case):
    train, test, sizes, _ = case
    streams = []
    for as_negative in (False, True):
        benchmark = multilabel_benchmark(
            Numbers(train),
            Numbers(test),
            classes_per_experience=sizes,
            repeat_images=True,
            unlabelled_as_negative=as_negative,
        )
        streams.append([rows(e) for e in benchmark.train_stream])
        assert [rows(e) for e in benchmark.test_stream] == [
            {i: test[i].tolist() for i in image_numbers} for image_numbers in first_seen(test, sizes)
        ]
    masked, zeroed = streams
    assert zeroed == [{i: [c or 0 for c in row] for i, row in e.items()} for e in masked]
    assert len(sizes) == 1 or any(None in row for e in masked for row in e.values())


def first_seen(labels, sizes):
    """Images of each increment of the test set, by reading one image after the other."""
    increments = [[] for _ in sizes]
    for image, row in enumerate(labels.tolist()):
        for t in range(len(sizes)):
            if any(row[: sum(sizes[: t + 1])]):
                increments[t].append(image)
                break
    return increments


@settings(max_examples=60)
@given(label_matrices())
def test_all_test_images_are_in_every_nested_set(case):
    train, test, sizes, _ = case
    benchmark = multilabel_benchmark(
        Numbers(train), Numbers(test), classes_per_experience=sizes, repeat_images=True, test_images="all"
    )
    assert rows(benchmark.test_stream[0]) == dict(enumerate(test.tolist()))
    assert not any(len(e.dataset) for e in benchmark.test_stream[1:])


@settings(max_examples=60)
@given(label_matrices())
def test_alphabetical_order_of_names_decides_the_columns(case):
    train, test, sizes, names = case
    benchmark = multilabel_benchmark(
        Numbers(train),
        Numbers(test),
        classes_per_experience=sizes,
        class_names=names,
        class_order="alphabetical",
        repeat_images=True,
        unlabelled_as_negative=True,
    )
    assert benchmark.class_names == sorted(names)
    start = 0
    for size, experience in zip(sizes, benchmark.train_stream):
        own = sorted(names)[start : start + size]
        expected = {}
        for image, row in enumerate(train.tolist()):
            shown = {name for name, cell in zip(names, row) if cell and name in own}
            if shown:
                expected[image] = [int(name in shown) for name in sorted(names)]
        assert rows(experience) == expected
        start += size


@settings(max_examples=60)
@given(label_matrices(), st.data())
def test_membership_decides_on_images_and_labels_on_targets(case, data):
    train, test, sizes, _ = case
    train_members = train | labels_of(data.draw, *train.shape)
    test_members = test | labels_of(data.draw, *test.shape)
    plan = make_plan(
        Numbers(train),
        Numbers(test),
        Protocol(classes_per_experience=sizes, repeat_images=True, unlabelled_as_negative=True),
        class_names=None,
        train_membership=train_members,
        test_membership=test_members,
    )
    benchmark = assemble(plan)
    start = 0
    for size, experience in zip(sizes, benchmark.train_stream):
        expected = {}
        for image, row in enumerate(train_members.tolist()):
            if any(row[start : start + size]):
                labels = train[image].tolist()
                own = range(start, start + size)
                expected[image] = [cell if c in own else 0 for c, cell in enumerate(labels)]
        assert rows(experience) == expected
        start += size
    assert [sorted(rows(e)) for e in benchmark.test_stream] == first_seen(test_members, sizes)


def read_json(root, subset):
    content = json.loads((root / "annotations" / f"instances_{subset}.json").read_text())
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    boxes = [(a["image_id"], name_of[a["category_id"]], a["iscrowd"]) for a in content["annotations"]]
    images = {image["id"]: f"{subset}/{image['file_name']}" for image in content["images"]}
    shown: dict = {}
    labelled: dict = {}
    for image, name, crowd in boxes:
        shown.setdefault(image, set()).add(name)
        if not crowd:
            labelled.setdefault(image, set()).add(name)
    return sorted(name_of.values()), images, shown, labelled


def assert_equals_brute_force(benchmark, root, sizes, files_of, year=2014):
    names, images, shown, labelled = read_json(root, f"train{year}")
    assert benchmark.class_names == names
    start = 0
    for size, experience in zip(sizes, benchmark.train_stream, strict=True):
        own = names[start : start + size]
        expected = {
            images[image]: [float(name in own and name in labelled.get(image, ())) for name in names]
            for image, found in shown.items()
            if found & set(own)
        }
        targets = experience.dataset.targets.data.tolist()
        assert dict(zip(files_of(experience.dataset), targets, strict=True)) == expected
        assert len(targets) == len(expected)
        start += size
    _, images, shown, labelled = read_json(root, f"val{year}")
    seen: dict = {}
    for t, experience in enumerate(benchmark.test_stream):
        seen |= dict(zip(files_of(experience.dataset), experience.dataset.targets.data.tolist(), strict=True))
        classes = set(names[: sum(sizes[: t + 1])])
        assert seen == {
            images[image]: [float(name in labelled.get(image, ())) for name in names]
            for image, found in shown.items()
            if found & classes
        }


@pytest.mark.parametrize(("protocol", "sizes"), [("B0-C3", [3] * 6), ("B6-C3", [6, 3, 3, 3, 3])])
def test_real_photos_follow_a_b_protocol(shared_data, files_of, protocol, sizes):
    root = shared_data / "coco18"
    benchmark = SplitCOCO(root, protocol=protocol)
    assert_equals_brute_force(benchmark, root, sizes, files_of)
    assert sum(len(e.dataset) for e in benchmark.train_stream) > 6000  # images repeat
    assert benchmark.train_stream[0].dataset[0][0].shape == (3, 224, 224)


CATEGORIES = {7: "cat", 3: "dog", 90: "cow", 11: "ant"}


def write_coco(root, train, val):
    """``image → "dog cat*"``, where a star marks a crowd."""
    number = {name: i for i, name in CATEGORIES.items()}
    for subset, images in (("train2014", train), ("val2014", val)):
        boxes = [(image, box) for image, text in images.items() for box in text.split()]
        content = {
            "images": [{"id": i, "file_name": f"COCO_{subset}_{i:012}.jpg"} for i in images],
            "categories": [{"id": i, "name": name} for i, name in CATEGORIES.items()],
            "annotations": [
                {
                    "id": n,
                    "image_id": image,
                    "category_id": number[box.rstrip("*")],
                    "iscrowd": int("*" in box),
                }
                for n, (image, box) in enumerate(boxes)
            ],
        }
        path = root / "annotations" / f"instances_{subset}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return root


TRAIN = {1: "dog cat", 2: "dog* cow", 3: "ant*", 4: "ant cat cat*", 5: "", 6: "cow* cow"}
VAL = {8: "dog*", 9: "ant dog", 10: "cow", 11: ""}


@pytest.fixture
def coco(tmp_path):
    return write_coco(tmp_path, TRAIN, VAL)


@pytest.mark.parametrize(("protocol", "sizes"), [("B0-C2", [2, 2]), ("B2-C1", [2, 1, 1]), ("B4-C1", [4])])
def test_b_protocols_equal_a_reading_of_the_annotations(coco, files_of, protocol, sizes):
    benchmark = SplitCOCO(coco, protocol=protocol)
    assert_equals_brute_force(benchmark, coco, sizes, files_of)


@pytest.mark.parametrize(
    ("crowds", "train", "targets_of_3"),
    [
        ("labels", [1, 2, 3, 4, 6], [[1, 0, 0, 0]]),
        ("membership", [1, 2, 3, 4, 6], [[0, 0, 0, 0]]),
        ("ignore", [1, 2, 4, 6], []),
    ],
)
def test_crowds_count_as_told(coco, files_of, crowds, train, targets_of_3):
    benchmark = SplitCOCO(coco, protocol="B4-C1", crowds=crowds)
    dataset = benchmark.train_stream[0].dataset
    numbers = [int(file[-16:-4]) for file in files_of(dataset)]
    assert numbers == train
    assert [y.tolist() for n, y in zip(numbers, dataset.targets.data) if n == 3] == targets_of_3
    assert len(benchmark.test_stream[0].dataset) == (2 if crowds == "ignore" else 3)


def test_every_convention_can_be_overridden(coco):
    settings = {
        "class_order": "data",
        "repeat_images": False,
        "unlabelled_as_negative": False,
        "crowds": "labels",
        "image_size": 448,
        "flip": True,
        "n_classes": 4,
        "n_experiences": 2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few images: a class may have none in its own experience
        overridden, paper = (
            SplitCOCO(coco, protocol=name, **given)
            for name, given in (("B0-C2", settings), ("paper", {"n_classes": 4, "n_experiences": 2}))
        )
    assert str(overridden.protocol).splitlines()[1:] == str(paper.protocol).splitlines()[1:]
    assert overridden.class_names == paper.class_names == ["dog", "cat", "ant", "cow"]
    for ours, theirs in zip(overridden.train_stream, paper.train_stream):
        torch.testing.assert_close(
            ours.dataset.targets.data, theirs.dataset.targets.data, equal_nan=True, rtol=0, atol=0
        )


def test_explicit_sizes_and_classes_win(coco):
    chosen = SplitCOCO(coco, protocol="B0-C1", n_classes=2)  # the most frequent two, in alphabetical order
    assert chosen.class_names == ["cat", "cow"]
    assert SplitCOCO(coco, protocol="B0-C1", n_experiences=2).classes_per_experience == [2, 2]
    assert SplitCOCO(coco, protocol="B0-C1", classes_per_experience=[3, 1]).classes_per_experience == [3, 1]
    named = SplitCOCO(coco, protocol="B1-C2", class_order=["cow", "ant", "dog"], crowds="labels")
    assert (named.class_names, named.classes_per_experience) == (["cow", "ant", "dog"], [1, 2])


def test_protocol_prints_what_is_in_force(coco):
    printed = str(SplitCOCO(coco, protocol="B2-C1", crowds="ignore", eval_transform=str).protocol)
    assert printed.splitlines() == [
        "protocol: B2-C1",
        "n_classes: 4",
        "n_experiences: 3",
        "classes_per_experience: 2, 1, 1",
        "class_order: alphabetical",
        "repeat_images: True",
        "unlabelled_as_negative: True",
        "test_images: seen",
        "crowds: ignore",
        "image_size: 224",
        "flip: False",
    ]
    both = SplitCOCO(coco, protocol="B2-C1", train_transform=str, eval_transform=str).protocol
    assert (both.image_size, both.flip) == (None, None)
    own = multilabel_benchmark(Numbers(torch.eye(2)), Numbers(torch.eye(2)), n_experiences=2).protocol
    assert str(own).splitlines()[:2] == ["protocol: own", "n_classes: 2"]


def test_scenes_follow_a_protocol_too():
    benchmark = SplitScenes(protocol="B4-C2", n_classes=8, n_train=80, n_test=20, image_size=16)
    assert benchmark.class_names == sorted(benchmark.class_names)
    assert benchmark.classes_per_experience == [4, 2, 2]
    assert not any(e.dataset.targets.data.isnan().any() for e in benchmark.train_stream)
    assert benchmark.complete_train_dataset.targets.data.sum() == sum(
        e.dataset.targets.data.sum() for e in benchmark.train_stream
    )  # every label of a repeated image comes once


def test_sizes_of_the_published_protocols():
    assert b_sizes(10, 2, 20) == [10, 2, 2, 2, 2, 2]
    assert b_sizes(5, 3, 20) == [5, 3, 3, 3, 3, 3]
    assert b_sizes(4, 2, 20) == [4] + 8 * [2]
    for first, step in ((0, 7), (21, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"'B{first}-C{step}' does not fit 20 classes"):
            b_sizes(first, step, 20)


@pytest.mark.parametrize(
    ("name", "explicit", "error", "message"),
    [
        ("b0-c10", {}, ValueError, "'paper' or 'B<n>-C<m>', such as 'B0-C10', not 'b0-c10'"),
        ("paper", {"test_images": "some"}, ValueError, r"test_images must be one of \('seen', 'all'\)"),
        ("paper", {"crowds": True}, ValueError, "crowds must be one of"),
        ("paper", {"repeat": True}, TypeError, "no setting repeat here, only assignment, class_order"),
    ],
)
def test_unknown_protocols_and_settings_are_rejected(name, explicit, error, message):
    with pytest.raises(error, match=message):
        resolve_protocol(name, paper_sizes=(40, 10), **explicit)


@pytest.mark.parametrize("make", [SplitCOCO, SplitWIDE, SplitVOC, SplitScenes])
def test_shared_arguments_are_in_every_signature(make):
    shared = {"protocol", "n_classes", "n_experiences", "class_order", "seed"}
    shared |= set() if make is SplitScenes else {"dataset_root", "backbone"}  # scenes have their own mean
    assert shared <= inspect.signature(make).parameters.keys()
