"""Speed and memory of benchmarks and data loading against pycocotools and torchvision.

    python speed/benchmarks.py                       # generated annotations and photos
    python speed/benchmarks.py --data ROOT           # the photos in ROOT/train2014 instead

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
from avalanche_agcn.benchmarks.image_files import load_image, paper_transforms

IMAGES, ANNOTATIONS = {"train": 82_783, "val": 40_504}, {"train": 604_907, "val": 291_875}
"""Numbers of COCO 2014."""
QUICK = 10  # --quick has so many times fewer annotations and photos
BATCH_SIZE = 8


def measure(arguments: argparse.Namespace) -> list[Topic]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        root = Path(folder)
        scale = QUICK if arguments.quick else 1
        rows = measure_building(root / "labels", min(arguments.repeats, 2), scale)
        rows += measure_loader(root / "photos", arguments.photos // scale, arguments)
    about = (
        "`SplitCOCO` from annotation files of COCO 2014's size against `pycocotools` reading them; photos of "
        "640 × 480 scaled to 448 px against torchvision's `CocoDetection` with the same transform."
    )
    return [Topic("Benchmarks and loader", about, rows)]


def measure_building(root: Path, repeats: int, scale: int) -> list[Row]:
    for subset in IMAGES:
        write_annotations(root, subset, IMAGES[subset] // scale, ANNOTATIONS[subset] // scale)
    files = [root / "annotations" / f"instances_{subset}2014.json" for subset in IMAGES]
    sides = {"ours": lambda: SplitCOCO(root), "peer": lambda: [COCO(str(file)) for file in files]}
    seconds = best_times(sides, repeats)
    benchmark = SplitCOCO(root)
    datasets = [e.dataset for s in benchmark.streams.values() for e in s] + [benchmark.complete_train_dataset]
    megabytes = sum(d.targets.codes.numel() * d.targets.codes.element_size() for d in datasets) / 1e6
    return [
        Row("building `SplitCOCO` / `pycocotools`", seconds["ours"] / seconds["peer"], 1.3),
        Row("labels of all its streams", megabytes, 20.0, unit=" MB"),
    ]


def measure_loader(root: Path, n_photos: int, arguments: argparse.Namespace) -> list[Row]:
    write_photos(root, n_photos, arguments.data)
    file = str(root / "annotations" / "instances_train2014.json")
    transform = paper_transforms()["train_transform"]
    ours = SplitCOCO(root, n_classes=4, n_experiences=1).train_stream[0].dataset
    peer = CocoDetection(str(root / "train2014"), file, transform=transform)
    photos = [load_image(path) for path in sorted((root / "train2014").iterdir())]
    assert all_batches(ours) == all_batches(peer) == n_photos
    sides = {"ours": lambda: first_batch(ours), "peer": lambda: first_batch(peer)}
    first = best_times(sides, 10 * arguments.repeats)
    sides = {
        "ours": lambda: all_batches(ours),
        "peer": lambda: all_batches(peer),
        "transform": lambda: sum(len(transform(photo)) for photo in photos),
    }
    every = best_times(sides, arguments.repeats)
    share, note = every["transform"] / every["ours"], "decoding JPEG is nearly all of the rest"
    return [
        Row("time to the first batch / `CocoDetection`", first["ours"] / first["peer"], 1.0),
        Row("time per image / `CocoDetection`", every["ours"] / every["peer"], 1.0),
        Row("scaling and normalising / time per image", share, note=note),
    ]


def first_batch(dataset: Any) -> int:
    return next(iter(DataLoader(dataset, BATCH_SIZE, collate_fn=len)))


def all_batches(dataset: Any) -> int:
    return sum(DataLoader(dataset, BATCH_SIZE, collate_fn=len))


def write_annotations(root: Path, subset: str, n_images: int, n_annotations: int) -> None:
    """Random annotations with COCO's fields; a polygon has 25 points, about COCO's mean."""
    rng = np.random.default_rng(0)
    images, categories = rng.integers(n_images, size=n_annotations), rng.geometric(0.05, n_annotations) % 80
    polygon = rng.uniform(0, 640, 50).round(2).tolist()
    content = {
        "images": [
            {"id": i, "file_name": f"COCO_{subset}2014_{i:012}.jpg", "width": 640, "height": 480}
            for i in range(n_images)
        ],
        "categories": [{"id": i, "name": f"category {i}"} for i in range(80)],
        "annotations": [
            {
                "id": n, "image_id": image, "category_id": category, "iscrowd": 0, "area": 100.5,
                "bbox": [1.5, 2.5, 30.0, 40.0], "segmentation": [polygon],
            }
            for n, (image, category) in enumerate(zip(images.tolist(), categories.tolist(), strict=True))
        ],
    }  # fmt: skip
    write_json(root, subset, content)


def write_json(root: Path, subset: str, content: dict[str, Any]) -> None:
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / f"instances_{subset}2014.json").write_text(json.dumps(content))


def write_photos(root: Path, n_photos: int, data: Path | None = None) -> None:
    """Photos with one label each: copied from a folder, or smooth noise, which compresses like photos."""
    rng = np.random.default_rng(0)
    for subset, n in (("train", n_photos), ("val", 1)):
        (root / f"{subset}2014").mkdir(parents=True)
        content = {
            "images": [{"id": i, "file_name": f"COCO_{subset}2014_{i:012}.jpg"} for i in range(n)],
            "categories": [{"id": c, "name": f"category {c}"} for c in range(4)],
            "annotations": [{"id": i, "image_id": i, "category_id": i % 4} for i in range(n)],
        }
        write_json(root, subset, content)
        found = sorted((data / "train2014").glob("*.jpg"))[:n] if data else []
        for i in range(n):
            path = root / f"{subset}2014" / f"COCO_{subset}2014_{i:012}.jpg"
            if found:
                path.write_bytes(found[i].read_bytes())
            else:
                coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
                coarse.resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)


if __name__ == "__main__":
    options = {
        "--data": {"type": Path, "help": "folder with train2014/*.jpg for the loader"},
        "--photos": {"type": int, "default": 200, "help": "number of photos for the loader"},
    }
    raise SystemExit(run_script(__doc__, measure, repeats=2, threads=1, options=options))
