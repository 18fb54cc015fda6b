import random
import shutil

import pytest
import torch
from PIL import Image

from avalanche_agcn.benchmarks import SplitWIDE
from avalanche_agcn.benchmarks.split_lists import read_split_lists

# image → its concepts; sky is on 4 images, sun on 3, lake on 2, cat on 1
IMAGES = {"clouds/0001_11.jpg": "sky sun", "actor/0002_12.jpg": "sky lake", "lake/0003_13.jpg": "lake"}
IMAGES |= {"sun/0004_14.jpg": "sky sun cat", "sun/0005_15.jpg": "sun", "misc/0006_16.jpg": "sky"}
TEST = ["sun/0005_15.jpg", "misc/0006_16.jpg"]
KEEP = {"train_transform": lambda image: image, "eval_transform": lambda image: image}
LISTS = {  # columns sun | lake; image 0 is the first line of the image list
    "task0/train.csv": ["0,1", "3,1"],
    "task0/test.csv": ["4,1"],
    "task1/train.csv": ["1,1"],
    "task1/test.csv": ["4,1,0", "2,0,1"],
}
LABELS = "Groundtruth/AllLabels"


def write_image_list(root, name, images):
    """As NUS-WIDE writes them."""
    (root / "ImageList").mkdir(parents=True, exist_ok=True)
    (root / "ImageList" / name).write_text("".join(image.replace("/", "\\") + " \n" for image in images))


def make_wide(root, images=IMAGES, concepts=("cat", "lake", "sky", "sun"), test=None):
    write_image_list(root, "Imagelist.txt", images)
    if test is not None:
        write_image_list(root, "TestImagelist.txt", test)
        write_image_list(root, "TrainImagelist.txt", [image for image in images if image not in test])
    (root / LABELS).mkdir(parents=True)
    for concept in concepts:
        labels = "".join(f"{int(concept in names.split())}\n" for names in images.values())
        (root / LABELS / f"Labels_{concept}.txt").write_text(labels)
    for colour, name in enumerate(IMAGES):
        (root / "Flickr" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (40 * colour, 0, 0)).save(root / "Flickr" / name, "png")
    return root


def images_of(experience):
    return [x.getpixel((0, 0))[0] // 40 for x, *_ in experience.dataset]


def test_files_in_nus_wides_own_format_become_a_benchmark(tmp_path):
    root = make_wide(tmp_path, test=TEST)
    benchmark = SplitWIDE(root, n_classes=3, n_experiences=3, **KEEP)
    assert benchmark.class_names == ["lake", "sky", "sun"]  # on 2, 3 and 2 train images
    assert sorted(i for e in benchmark.train_stream for i in images_of(e)) == [0, 1, 2, 3]
    assert [images_of(e) for e in benchmark.test_stream] == [[], [5], [4]]
    for t, experience in enumerate(benchmark.train_stream):
        own = [1 if c == t else -1 for c in range(3)]
        assert all(codes == own for codes in experience.dataset.targets.codes.tolist())


def test_without_lists_of_its_own_a_seeded_share_is_the_test_set(tmp_path, files_of):
    numbers = [f"all/{number:04}_{number}.jpg" for number in range(300)]
    root = make_wide(tmp_path, dict.fromkeys(numbers, "sky sun"), ["sky", "sun"])
    made = [SplitWIDE(root, n_classes=2, n_experiences=1, seed=seed) for seed in (0, 0, 1)]
    tests = [files_of(benchmark.test_stream[0].dataset) for benchmark in made]
    assert tests[0] == tests[1] != tests[2]
    assert abs(len(tests[0]) / 300 - 0.4) < 4 * (0.24 / 300) ** 0.5


def test_train_images_are_those_of_the_train_list(tmp_path):
    names = list(IMAGES)
    root = make_wide(tmp_path, test=TEST)
    write_image_list(root, "TrainImagelist.txt", names[1:4])  # the first image is in neither list

    def split():
        classes = {"n_classes": 3, "n_experiences": 1, "class_order": ["lake", "sky", "sun"]}
        benchmark = SplitWIDE(root, **classes, **KEEP)
        return [sorted(images_of(stream[0])) for stream in (benchmark.train_stream, benchmark.test_stream)]

    assert split() == [[1, 2, 3], [4, 5]]
    (root / "ImageList" / "TestImagelist.txt").unlink()
    assert split() == [[1, 2, 3], [0, 4, 5]]
    write_image_list(root, "TestImagelist.txt", names[3:])
    with pytest.raises(ValueError, match=r"have 1 images in common, such as Flickr/sun/0004_14\.jpg"):
        split()
    (root / "ImageList" / "TrainImagelist.txt").unlink()
    assert split() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_arguments_shared_by_all_benchmarks_arrive(tmp_path, assert_arguments_arrive):
    root = make_wide(tmp_path, test=TEST)
    assert_arguments_arrive(lambda **given: SplitWIDE(root, **given), n_classes=3)


def test_lists_count_lines_from_0_and_get_names_from_the_ground_truth(tmp_path, write_lists):
    root = make_wide(tmp_path / "wide")
    benchmark = SplitWIDE(root, split_lists=write_lists(LISTS), n_classes=2, n_experiences=2, **KEEP)
    assert benchmark.class_names == ["sun", "lake"]
    assert [images_of(e) for e in benchmark.train_stream] == [[0, 3], [1]]
    assert [images_of(e) for e in benchmark.test_stream] == [[4], [2]]
    assert benchmark.complete_train_dataset.targets.data.tolist() == [[1, 0], [1, 0], [0, 1]]
    with pytest.raises(ValueError, match="n_experiences=7 contradicts the split lists, which have 2"):
        SplitWIDE(root, split_lists=write_lists(LISTS), n_experiences=7)


def test_lists_unlike_or_without_the_ground_truth_have_numbered_columns(tmp_path, write_lists):
    root = make_wide(tmp_path / "wide")
    lists = write_lists(LISTS | {"task1/train.csv": ["4,1"], "task1/test.csv": ["4,1,1"]})
    with pytest.warns(UserWarning, match=r"lists do not fit the data: .*; the columns stay without names"):
        benchmark = SplitWIDE(root, split_lists=lists)
    assert benchmark.class_names == ["concept 0", "concept 1"]
    assert benchmark.train_stream[1].dataset.targets.data[0, 1] == 1
    lists = write_lists(LISTS | {"task1/train.csv": ["6,1"]})
    with pytest.raises(ValueError, match=r"do not fit the data.*6 is not in range"):
        SplitWIDE(root, split_lists=lists)
    shutil.rmtree(root / "Groundtruth")
    assert SplitWIDE(root, split_lists=write_lists(LISTS)).class_names == ["concept 0", "concept 1"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ImageList/Imagelist.txt", None, "no image list .*Imagelist.txt"),
        ("ImageList/Imagelist.txt", "a\\1.jpg\n..\\x.jpg", "Imagelist.txt, line 2 must be a file within"),
        (LABELS, None, r"no Labels_<concept>\.txt"),
        (f"{LABELS}/Labels_sky.txt", "1\n0\n", r"Labels_sky\.txt must have .* of the 6 images.*has 2"),
        (f"{LABELS}/Labels_sky.txt", "1\n0\n1\n2\n1\n0\n", r"a line of 0 or 1 .*, but line 4 is '2'; unpack"),
        (f"{LABELS}/Labels_sun.txt", "1\r\n\r\n0\r\n-1\r\n1\r\n", "but line 4 is '-1'"),
        ("", None, "no folder .*wide"),
        ("readme.txt", "", "n_classes=21 must be"),  # the paper's numbers
        ("Flickr", None, "n_experiences=7 must be"),
    ],
)
def test_missing_or_damaged_files_are_named(tmp_path, file, content, message):
    path = make_wide(tmp_path / "wide") / file
    if content is not None:
        path.write_bytes(content.encode())
    else:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        SplitWIDE(tmp_path / "wide", n_classes=4 if file == "Flickr" else None)


def test_published_lists_match_ground_truth_of_nus_wides_size(shared_data, tmp_path):
    published = shared_data / "agcn_splits" / "Split-WIDE.zip"
    lists = read_split_lists(published)
    n_images, n_classes = 269_648, 21
    labels = torch.zeros(n_images, n_classes, dtype=torch.int8)
    for t, (images, own) in enumerate(lists.train):
        labels[[int(i) for i in images], 3 * t : 3 * t + 3] = own
    for images, every in lists.test:
        labels[[int(i) for i in images]] = every
    write_image_list(tmp_path, "Imagelist.txt", [f"f/{i}.jpg" for i in range(n_images)])
    (tmp_path / LABELS).mkdir(parents=True)
    order = random.Random(0).sample(range(n_classes), n_classes)  # columns in another order than the files
    for rank, column in enumerate(order):
        text = "\n".join(map(str, labels[:, column].tolist()))
        (tmp_path / LABELS / f"Labels_{rank:02}.txt").write_text(text)
    benchmark = SplitWIDE(tmp_path, split_lists=published)
    assert benchmark.class_names == [f"{order.index(column):02}" for column in range(n_classes)]
    assert len(benchmark.complete_train_dataset) == 144_858
