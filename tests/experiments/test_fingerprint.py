"""A run is not continued on other data, and the message tells what changed."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, paper_transforms
from avalanche_agcn.experiments import folder as run_folder
from avalanche_agcn.experiments.build import MAKERS
from avalanche_agcn.experiments.folder import OtherRun, changed_data, data_fingerprint
from avalanche_agcn.experiments.results import RESULTS_FILE
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import make_settings

N = 24


@pytest.fixture
def folder(tmp_path):
    """Bitmaps in a folder."""
    generator = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for k in range(N):
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k:02}.bmp")
    return tmp_path / "images"


def labels():
    drawn = torch.randint(0, 2, (N, 4), generator=torch.Generator().manual_seed(0))
    drawn[0] = 1
    return drawn


def photos(folder, targets=None, order=None, class_names=("person", "dog", "cat", "car"), **options):
    files = np.array(sorted(os.listdir(folder)))
    targets = labels() if targets is None else targets
    order = range(N) if order is None else order
    source = ImageFiles(folder, files[list(order)].tolist(), targets[list(order)])
    return multilabel_benchmark(source, source, n_experiences=2, class_names=class_names, **options)


def changed(folder, before, **changes):
    return changed_data(before, data_fingerprint(photos(folder, **changes).plan))


def flip_a_byte(folder):
    content = bytearray((folder / "07.bmp").read_bytes())
    content[-20] ^= 255
    (folder / "07.bmp").write_bytes(content)


def test_the_same_data_have_the_same_fingerprint_wherever_they_are(folder):
    before = data_fingerprint(photos(folder).plan)
    os.utime(folder / "07.bmp", ns=(1, 1))
    moved = folder.rename(folder.with_name("elsewhere"))
    assert changed(moved, before) == []


@pytest.mark.parametrize("content_bytes", [2**30, 0])
def test_each_change_of_the_data_is_told(folder, monkeypatch, content_bytes):
    monkeypatch.setattr(run_folder, "CONTENT_BYTES", content_bytes)
    before = data_fingerprint(photos(folder).plan)
    swapped = labels()
    swapped[[3, 4]] = 1 - swapped[[3, 4]]
    assert "the labels of the train stream" in changed(folder, before, targets=swapped)
    reordered = changed(folder, before, order=list(reversed(range(N))))
    assert set(reordered) == {"the order of the train stream", "the order of the test stream"}
    renamed = changed(folder, before, class_names=("person", "cat", "dog", "car"))
    assert set(renamed) == {"the labels of the train stream", "the labels of the test stream"}
    flip_a_byte(folder)
    parts = ("the contents of the train stream", "the contents of the test stream")
    assert changed(folder, before) == list(parts)
    (folder / "07.bmp").write_bytes((folder / "07.bmp").read_bytes() + b"\0")
    assert "the sizes of the train stream" in changed(folder, before)
    (folder / "07.bmp").rename(folder / "7.bmp")
    assert changed(folder, before) == ["the images of the train stream", "the images of the test stream"]


def test_a_missing_image_is_named_before_training(folder):
    benchmark = photos(folder)
    (folder / "07.bmp").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no image .*07.bmp; .*downloaded"):
        data_fingerprint(benchmark.plan)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("change", ["labels", "order", "contents"])
def test_a_run_is_not_resumed_on_other_data(folder, tmp_path, monkeypatch, finished, change):
    made = {}
    transforms = paper_transforms(32)
    monkeypatch.setitem(MAKERS, "coco", lambda root, **given: photos(root, **made, **transforms))
    small = {"backbone": "small", "image_size": 32, "mem_size": 8}
    settings = make_settings("coco", method="er", dataset_root=str(folder), **small)

    def run():
        return Run(settings, tmp_path / "out", resume=True, log=lambda text: None)

    expected = run().run()
    if not finished:
        (tmp_path / "out" / settings.name / RESULTS_FILE).unlink()
    if change == "labels":
        made["targets"] = labels().roll(1, 0)
    elif change == "order":
        made["order"] = list(reversed(range(N)))
    else:
        flip_a_byte(folder)
    message = rf"saved with other data; changed: .*the {change} of the train stream"
    with pytest.raises(OtherRun, match=message):
        run()
    if change == "contents":
        flip_a_byte(folder)
    made.clear()
    assert run().run().nested == expected.nested
