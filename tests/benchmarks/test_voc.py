import shutil

import pytest
import torch
from PIL import Image

from avalanche_agcn.benchmarks import SplitVOC
from avalanche_agcn.benchmarks.voc import SUBSETS, VOC_CLASSES

# Objects of each image; a star marks a difficult one. Every class is shown in training.
TRAIN = {
    "000005": "aeroplane bicycle* bird boat bottle",
    "000007": "bus car cat chair cow* cow",
    "000009": "diningtable dog horse motorbike person",
    "000012": "pottedplant sheep sofa train tvmonitor aeroplane*",
    "000016": "bicycle person person*",
}
TEST = {"000001": "dog person*", "000002": "train", "000003": "aeroplane* boat sofa"}
TEST |= {"000004": "bicycle*", "000006": "horse tvmonitor*", "000008": "bus bus*"}
KEEP = {"train_transform": lambda image: image, "eval_transform": lambda image: image}


def names_of(text, difficult="negative"):
    return {box.rstrip("*") for box in text.split() if difficult == "positive" or "*" not in box}


def annotation(image, text):
    objects = "".join(
        f"<object><name>{box.rstrip('*')}</name><difficult>{int('*' in box)}</difficult></object>"
        for box in text.split()
    )
    return f"<annotation><filename>{image}.jpg</filename>{objects}</annotation>"


def write_voc(root, year=2007, train=TRAIN, test=TEST, label_files=True):
    """A release as it is published: JPEG images, XML annotations, image sets with label files."""
    release = root / "VOCdevkit" / f"VOC{year}"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (release / folder).mkdir(parents=True)
    for subset, images in zip(SUBSETS[year], (train, test)):
        sets = release / "ImageSets" / "Main"
        (sets / f"{subset}.txt").write_text("".join(f"{image}\n" for image in images))
        for image, text in images.items():
            (release / "Annotations" / f"{image}.xml").write_text(annotation(image, text))
            Image.new("RGB", (20, 10), (int(image) * 10, 0, 0)).save(release / "JPEGImages" / f"{image}.jpg")
        for name in VOC_CLASSES if label_files else ():
            both = [(names_of(text), names_of(text, "positive")) for text in images.values()]
            codes = [(name in easy) + (name in every) - 1 for easy, every in both]
            lines = [f"{image} {code:2d}\n" for image, code in zip(images, codes)]
            (sets / f"{name}_{subset}.txt").write_text("".join(lines))
    return release


@pytest.mark.parametrize("label_files", [True, False])
@pytest.mark.parametrize("difficult", ["negative", "positive"])
@pytest.mark.parametrize("year", [2007, 2012])
def test_streams_equal_a_reading_of_the_files(tmp_path, assert_b_protocol, year, difficult, label_files):
    write_voc(tmp_path, year, label_files=label_files)

    train, test = (
        {f"JPEGImages/{image}.jpg": 2 * [names_of(text, difficult)] for image, text in images.items()}
        for images in (TRAIN, TEST)
    )
    benchmark = SplitVOC(tmp_path, year=year, difficult=difficult)
    assert_b_protocol(benchmark, sorted(VOC_CLASSES), [4] * 5, train, test)


@pytest.mark.parametrize("inside", [".", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_images_are_found_from_each_of_the_three_folders(tmp_path, inside):
    write_voc(tmp_path)
    benchmark = SplitVOC(tmp_path / inside, **KEEP)
    colours = [round(x.getpixel((10, 5))[0], -1) for x, _, _ in benchmark.train_stream[0].dataset]
    assert colours == [50, 160]  # images 5 and 16, by their colour
    assert SplitVOC(tmp_path / inside).test_stream[0].dataset[0][0].shape == (3, 224, 224)


def test_protocol_and_its_settings_are_in_force(tmp_path):
    release = write_voc(tmp_path)
    benchmark = SplitVOC(tmp_path, protocol="B10-C2")
    assert benchmark.classes_per_experience == [10, 2, 2, 2, 2, 2]
    assert "difficult: negative" in str(benchmark.protocol).splitlines()
    assert "crowds" not in str(benchmark.protocol)
    masked = SplitVOC(tmp_path, protocol="B10-C2", unlabelled_as_negative=False)
    assert torch.isnan(masked.train_stream[1].dataset.targets.data[:, :10]).all()
    for given, message in (
        ({"protocol": "paper"}, "Pass n_experiences= or classes_per_experience="),
        ({"year": 2010}, r"year must be one of \(2007, 2012\), not 2010"),
        ({"dataset_root": release, "year": 2012}, "is not the release of 2012; pass year=2007"),
    ):
        with pytest.raises(ValueError, match=message):
            SplitVOC(**{"dataset_root": tmp_path} | given)


@pytest.mark.filterwarnings("ignore:.* have no positive in their own experience")  # few images
def test_arguments_shared_by_all_benchmarks_arrive(tmp_path, assert_arguments_arrive):
    write_voc(tmp_path)
    assert_arguments_arrive(lambda **given: SplitVOC(tmp_path, **given), n_classes=20)


SETS = "ImageSets/Main"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ImageSets", None, r"no VOCdevkit/VOC2007/ImageSets/Main; give VOC's folder"),
        ("JPEGImages", None, r"VOC2007 has no JPEGImages; unpack VOC 2007 again\."),
        (f"{SETS}/test.txt", None, r"no image set .*test\.txt; unpack the part"),
        (f"{SETS}/c[ao][tw]_test.txt", None, r"lacks cat_test\.txt, cow_test\.txt"),
        (f"{SETS}/cat_test.txt", "000001 -1\n", "has 1 images that are not the 6 of its"),
        (f"{SETS}/cat_test.txt", "000001  2\n", "line 1: '000001 2' must be an image and -1, 0 or 1; unpack"),
        (f"{SETS}/test.txt", "1\n1\n", "different images, but lists 1 in 2 lines"),
        (
            f"{SETS}/test.txt",
            "1\n../../x\n",
            r"test\.txt: an image must be a file within .* but is '../../x'",
        ),
        ("Annotations/000001.xml", None, r"neither a label file nor an annotation .*000001\.xml"),
        ("Annotations/000001.xml", "<annotation><object>", r"000001\.xml is not a complete XML file"),
        ("Annotations/000001.xml", annotation("1", "unicorn"), r"classes unicorn; VOC's are aer"),
    ],
)
def test_missing_or_damaged_files_are_named(tmp_path, file, content, message):
    (path, *more) = sorted(write_voc(tmp_path, label_files=file.startswith(SETS)).glob(file))
    if content is not None:
        path.write_text(content)
    for missing in [path, *more] if content is None else []:
        shutil.rmtree(missing) if missing.is_dir() else missing.unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        SplitVOC(tmp_path)
