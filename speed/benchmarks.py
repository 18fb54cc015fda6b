"""Speed and memory of benchmarks and data loading against pycocotools and torchvision.

    python speed/benchmarks.py

Compares building SplitCOCO from annotation files of COCO's size with `pycocotools.coco.COCO` reading the same
files, the size of its labels with a bound, and the time to the first batch and per image with torchvision's
`CocoDetection` and the same transform. On one thread, as in a loader worker.
"""

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, Topic, best_times, run_script
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
        write_annotations(root, subset, n_images // scale, n_annotations // scale)
    files = [str(root / "annotations" / f"instances_{subset}2014.json") for subset in SUBSETS]
    sides = {"ours": lambda: SplitCOCO(root), "peer": lambda: [COCO(file) for file in files]}
    seconds = best_times(sides, repeats)
    return [
        Row("building `SplitCOCO` / `pycocotools`", seconds["ours"] / seconds["peer"], 1.3),
        Row("labels of all its streams", label_megabytes(SplitCOCO(root)), 20.0, unit=" MB"),
    ]


def label_megabytes(benchmark: Any) -> float:
    datasets = [benchmark.complete_train_dataset]
    for stream in benchmark.streams.values():
        datasets += [experience.dataset for experience in stream]
    n_bytes = 0
    for dataset in datasets:
        codes = dataset.targets.codes
        n_bytes += codes.numel() * codes.element_size()
    return n_bytes / 1e6


def measure_loader(root: Path, repeats: int, n_photos: int) -> list[Row]:
    write_photos(root, n_photos)
    file = str(root / "annotations" / "instances_train2014.json")
    transform = paper_transforms()["train_transform"]
    ours = SplitCOCO(root, n_classes=4, n_experiences=1).train_stream[0].dataset
    peer = CocoDetection(str(root / "train2014"), file, transform=transform)
    assert all_batches(ours) == all_batches(peer) == n_photos
    first = best_times({"ours": lambda: first_batch(ours), "peer": lambda: first_batch(peer)}, 10 * repeats)
    every = best_times({"ours": lambda: all_batches(ours), "peer": lambda: all_batches(peer)}, repeats)
    return [
        Row("time to the first batch / `CocoDetection`", first["ours"] / first["peer"], 1.0),
        Row("time per image / `CocoDetection`", every["ours"] / every["peer"], 1.0),
    ]


def first_batch(dataset: Any) -> int:
    return next(iter(DataLoader(dataset, BATCH_SIZE, collate_fn=len)))


def all_batches(dataset: Any) -> int:
    return sum(DataLoader(dataset, BATCH_SIZE, collate_fn=len))


def write_annotations(root: Path, subset: str, n_images: int, n_annotations: int) -> None:
    """Random annotations with COCO's fields; a polygon has 25 points, about COCO's mean."""
    rng = np.random.default_rng(0)
    images = rng.integers(n_images, size=n_annotations).tolist()
    categories = (rng.geometric(0.05, n_annotations) % 80).tolist()
    shape = {
        "iscrowd": 0,
        "area": 100.5,
        "bbox": [1.5, 2.5, 30.0, 40.0],
        "segmentation": [rng.uniform(0, 640, 50).round(2).tolist()],
    }
    annotations = [
        {"id": n, "image_id": image, "category_id": category, **shape}
        for n, (image, category) in enumerate(zip(images, categories, strict=True))
    ]
    write_json(root, subset, n_images, 80, annotations)


def write_photos(root: Path, n_photos: int) -> None:
    """Photos of smooth noise, which compress like photos, with one label each."""
    rng = np.random.default_rng(0)
    for subset, n in (("train", n_photos), ("val", 1)):
        write_json(root, subset, n, 4, [{"id": i, "image_id": i, "category_id": i % 4} for i in range(n)])
        (root / f"{subset}2014").mkdir()
        for i in range(n):
            coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
            photo = coarse.resize((640, 480), Image.Resampling.BICUBIC)
            photo.save(root / f"{subset}2014" / file_name(subset, i), quality=90)


def write_json(root: Path, subset: str, n_images: int, n_categories: int, annotations: list[Any]) -> None:
    content = {
        "images": [
            {"id": i, "file_name": file_name(subset, i), "width": 640, "height": 480} for i in range(n_images)
        ],
        "categories": [{"id": c, "name": f"category {c}"} for c in range(n_categories)],
        "annotations": annotations,
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / f"instances_{subset}2014.json").write_text(json.dumps(content))


def file_name(subset: str, number: int) -> str:
    return f"COCO_{subset}2014_{number:012}.jpg"


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=2, threads=1))
