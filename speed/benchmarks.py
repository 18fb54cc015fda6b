"""Speed and memory of benchmarks and data loading against pycocotools and torchvision.

    python speed/benchmarks.py

On one thread, as in a loader worker.
"""

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, Topic, ratio, run_script
from PIL import Image
from pycocotools.coco import COCO
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection

from avalanche_agcn.benchmarks import SplitCOCO
from avalanche_agcn.benchmarks.image_files import paper_transforms

SUBSETS = {"train": (82_783, 604_907), "val": (40_504, 291_875)}
"""Images and annotations of COCO 2014."""
N_PHOTOS = 200
QUICK = 10  # --quick has so many times fewer annotations and photos
BATCH_SIZE = 8


def measure(arguments: argparse.Namespace) -> list[Topic]:
    scale = QUICK if arguments.quick else 1
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        rows = measure_building(Path(folder) / "labels", arguments.repeats, scale)
        rows += measure_loader(Path(folder) / "photos", arguments.repeats, N_PHOTOS // scale)
    about = (
        "`SplitCOCO` from annotation files of COCO 2014's size against `pycocotools` reading them; photos of "
        "640 × 480 scaled to 448 px against torchvision's `CocoDetection` with the same transform."
    )
    return [Topic("Benchmarks and loader", about, rows)]


def measure_building(root: Path, repeats: int, scale: int) -> list[Row]:
    for subset, (n_images, n_annotations) in SUBSETS.items():
        write_annotations(root, subset, n_images // scale, n_annotations // scale, n_categories=80)
    files = [str(root / "annotations" / f"instances_{subset}2014.json") for subset in SUBSETS]
    what = "building `SplitCOCO` / `pycocotools`"
    building = ratio(
        what, lambda: SplitCOCO(root), lambda: list(map(COCO, files)), bound=1.3, repeats=repeats
    )
    benchmark = SplitCOCO(root)
    datasets = [benchmark.complete_train_dataset]
    for stream in benchmark.streams.values():
        datasets += [experience.dataset for experience in stream]
    n_bytes = sum(dataset.targets.codes.nbytes for dataset in datasets)
    return [building, Row("labels of all its streams", n_bytes / 1e6, 20.0, unit=" MB")]


def measure_loader(root: Path, repeats: int, n_photos: int) -> list[Row]:
    for subset, n in (("train", n_photos), ("val", 4)):
        write_annotations(root, subset, n, n, n_categories=4)
        write_photos(root, subset, n)
    ours = SplitCOCO(root, n_classes=4, n_experiences=1).train_stream[0].dataset
    file = str(root / "annotations" / "instances_train2014.json")
    theirs = CocoDetection(str(root / "train2014"), file, transform=paper_transforms()["train_transform"])

    def first_batch(dataset: Any) -> int:
        return next(iter(DataLoader(dataset, BATCH_SIZE, collate_fn=len)))

    def all_batches(dataset: Any) -> int:
        return sum(DataLoader(dataset, BATCH_SIZE, collate_fn=len))

    assert all_batches(ours) == all_batches(theirs) == n_photos
    rows = []
    for name, load, turns in (("to the first batch", first_batch, 10), ("per image", all_batches, 1)):
        what = f"time {name} / `CocoDetection`"
        sides = [lambda load=load: load(ours), lambda load=load: load(theirs)]
        rows.append(ratio(what, *sides, bound=1.0, repeats=turns * repeats))
    return rows


def write_annotations(root: Path, subset: str, n_images: int, n_annotations: int, n_categories: int) -> None:
    """Random annotations with COCO's fields, some of each image; polygons of 25 points, about COCO's mean."""
    rng = np.random.default_rng(0)
    images = [*range(n_images), *rng.integers(n_images, size=n_annotations - n_images).tolist()]
    categories = (rng.geometric(0.05, n_annotations) % n_categories).tolist()
    polygon = rng.uniform(0, 640, 50).round(2).tolist()
    shape = {"iscrowd": 0, "area": 100.5, "bbox": [1.5, 2.5, 30.0, 40.0], "segmentation": [polygon]}
    annotations = []
    for number, (image, category) in enumerate(zip(images, categories, strict=True)):
        annotations.append({"id": number, "image_id": image, "category_id": category, **shape})
    size = {"width": 640, "height": 480}
    content = {
        "images": [{"id": i, "file_name": file_name(subset, i), **size} for i in range(n_images)],
        "categories": [{"id": c, "name": f"category {c}"} for c in range(n_categories)],
        "annotations": annotations,
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / f"instances_{subset}2014.json").write_text(json.dumps(content))


def write_photos(root: Path, subset: str, n_photos: int) -> None:
    """Photos of smooth noise, which compress like photos."""
    rng = np.random.default_rng(0)
    (root / f"{subset}2014").mkdir()
    for i in range(n_photos):
        coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        photo = coarse.resize((640, 480), Image.Resampling.BICUBIC)
        photo.save(root / f"{subset}2014" / file_name(subset, i), quality=90)


def file_name(subset: str, number: int) -> str:
    return f"COCO_{subset}2014_{number:012}.jpg"


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=2, threads=1))
