"""Speed and memory of the data layer, each number as a ratio against a peer in one run.

    python speed/benchmarks.py                       # generated annotations and photos
    python speed/benchmarks.py --data ROOT           # the photos of ROOT/train2014 instead

What is compared: building SplitCOCO from annotation files of COCO's size with `pycocotools.coco.COCO`
reading the same files; the memory of the benchmark's labels with a bound; the time to the first batch and
the images per second of the loader with torchvision's `CocoDetection` under the same transform. Times are
of the processor, on one thread, so that other work on the machine does not show. Exits with 1 if a bound is
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection

from avalanche_agcn.benchmarks import SplitCOCO
from avalanche_agcn.benchmarks.images import load_image, paper_transforms

IMAGES, ANNOTATIONS = {"train": 82_783, "val": 40_504}, {"train": 604_907, "val": 291_875}
"""COCO 2014's own numbers."""
BATCH_SIZE = 8


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with train2014/*.jpg to time the loader on")
    parser.add_argument("--photos", type=int, default=400, help="how many photos to time the loader on")
    parser.add_argument("--repeats", type=int, default=5, help="how often; the best of each side counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a loader's worker
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows += measure_building(root / "labels", min(arguments.repeats, 2))
        rows += measure_loader(root / "photos", arguments)
    print("\n| what | ours / peer | bound | |\n| --- | --- | --- | --- |")
    for what, ratio, bound in rows:
        print(f"| {what} | {ratio:.2f} | ≤ {bound:.2f} | {'ok' if ratio <= bound else 'MISSED'} |")
    return int(any(ratio > bound for _, ratio, bound in rows))


def measure_building(root: Path, repeats: int) -> list[tuple[str, float, float]]:
    print("writing annotation files of COCO's size …")
    for subset in IMAGES:
        write_annotations(root, subset, IMAGES[subset], ANNOTATIONS[subset])
    files = [root / "annotations" / f"instances_{subset}2014.json" for subset in IMAGES]
    ours, peer = race(lambda: SplitCOCO(root), lambda: [COCO(str(file)) for file in files], repeats)
    print(f"SplitCOCO {ours:.1f} s, pycocotools alone {peer:.1f} s")
    benchmark = quietly(lambda: SplitCOCO(root))
    datasets = [e.dataset for s in benchmark.streams.values() for e in s] + [benchmark.complete_train_dataset]
    megabytes = sum(d.targets.codes.numel() * d.targets.codes.element_size() for d in datasets) / 1e6
    print(f"labels of {sum(len(d) for d in datasets):,} samples: {megabytes:.1f} MB")
    return [("build SplitCOCO / pycocotools", ours / peer, 1.3), ("labels, MB / 20 MB", megabytes / 20, 1.0)]


def measure_loader(root: Path, arguments: argparse.Namespace) -> list[tuple[str, float, float]]:
    write_photos(root, arguments)
    file = str(root / "annotations" / "instances_train2014.json")

    def first_batch(dataset: Any) -> int:
        return next(iter(DataLoader(dataset, BATCH_SIZE, collate_fn=len)))

    def all_batches(dataset: Any) -> int:
        return sum(DataLoader(dataset, BATCH_SIZE, collate_fn=len))

    our_data = quietly(lambda: SplitCOCO(root, n_classes=4, n_experiences=1).train_stream[0].dataset)
    transform = paper_transforms()["train_transform"]
    peer_data = quietly(lambda: CocoDetection(str(root / "train2014"), file, transform=transform))
    first = race(lambda: first_batch(our_data), lambda: first_batch(peer_data), 10 * arguments.repeats)
    every = race(lambda: all_batches(our_data), lambda: all_batches(peer_data), arguments.repeats)
    n_images = all_batches(our_data)
    assert n_images == all_batches(peer_data) == arguments.photos
    photos = [load_image(path) for path in sorted((root / "train2014").iterdir())]
    transforming, _ = race(lambda: [transform(photo) for photo in photos], list, arguments.repeats)
    print(f"first batch: ours {first[0] * 1e3:.0f} ms, CocoDetection {first[1] * 1e3:.0f} ms")
    print(
        f"loader: ours {n_images / every[0]:.0f} images/s, CocoDetection {n_images / every[1]:.0f} images/s"
    )
    share = transforming / every[0]
    print(f"of our time, scaling and normalising take {share:.0%}, JPEG decoding nearly all else")
    return [
        ("time to first batch / CocoDetection", first[0] / first[1], 1.0),
        ("time per image / CocoDetection", every[0] / every[1], 1.0),
    ]


def write_annotations(root: Path, subset: str, n_images: int, n_annotations: int) -> None:
    """Random annotations with COCO's fields; a polygon has COCO's mean of some 25 points."""
    rng = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True, exist_ok=True)
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
    (root / "annotations" / f"instances_{subset}2014.json").write_text(json.dumps(content))


def write_photos(root: Path, arguments: argparse.Namespace) -> None:
    """Photos with one label each: copied from ``--data``, or noise smooth enough to compress as photos do."""
    rng = np.random.default_rng(0)
    for subset, n in (("train", arguments.photos), ("val", 1)):
        (root / f"{subset}2014").mkdir(parents=True)
        (root / "annotations").mkdir(exist_ok=True)
        content = {
            "images": [{"id": i, "file_name": f"COCO_{subset}2014_{i:012}.jpg"} for i in range(n)],
            "categories": [{"id": c, "name": f"category {c}"} for c in range(4)],
            "annotations": [{"id": i, "image_id": i, "category_id": i % 4} for i in range(n)],
        }
        (root / "annotations" / f"instances_{subset}2014.json").write_text(json.dumps(content))
        found = sorted((arguments.data / "train2014").glob("*.jpg"))[:n] if arguments.data else []
        for i in range(n):
            path = root / f"{subset}2014" / f"COCO_{subset}2014_{i:012}.jpg"
            if found:
                path.write_bytes(found[i].read_bytes())
            else:
                coarse = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8))
                coarse.resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)


def race(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Best seconds of each, taking turns, so that both meet the same load of the machine."""
    times = [(seconds(ours), seconds(peer)) for _ in range(repeats)]
    return min(t for t, _ in times), min(t for _, t in times)


def seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    quietly(call)
    return time.process_time() - start


def quietly(call: Callable[[], Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return call()


if __name__ == "__main__":
    sys.exit(main())
