"""How fast SplitScenes makes its images, as ratios in one run.

    python speed/scenes.py [--images 1000] [--repeats 3]

Painting a scene is compared with training the small network on it, which tells whether images can be made on
the fly, and with reading it from a JPEG file, which is what a downloaded data set would cost. Times are of
the processor, on one thread; the best of the repeats counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from avalanche_agcn.benchmarks.images import load_image
from avalanche_agcn.benchmarks.scenes import ScenesDataset, SplitScenes
from avalanche_agcn.models.backbones import create_backbone

BATCH_SIZE = 8


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    dataset = ScenesDataset(arguments.images, in_memory=False)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.jpg" for index in range(len(dataset))]
        for file, (image, _) in zip(files, dataset, strict=True):
            image.save(file, quality=90)
        timed: dict[str, Callable[[], object]] = {
            "paint": lambda: [dataset[index] for index in range(len(dataset))],
            "read from JPEG": lambda: [load_image(file) for file in files],
            "train, images in memory": training(in_memory=True, n_images=arguments.images),
            "train, images on the fly": training(in_memory=False, n_images=arguments.images),
        }
        seconds = {what: best_of(arguments.repeats, run) for what, run in timed.items()}
    print("| what | images a second | time / painting |\n| --- | --- | --- |")
    for what, taken in seconds.items():
        print(f"| {what} | {len(dataset) / taken:.0f} | {taken / seconds['paint']:.2f} |")


def training(*, in_memory: bool, n_images: int) -> Callable[[], None]:
    """One pass of the small network over the images, batches of 8, loader and transforms included."""
    benchmark = SplitScenes(n_train=n_images, n_test=200, in_memory=in_memory)
    backbone = create_backbone("small", pretrained=False)
    model = nn.Sequential(backbone, nn.Linear(backbone.num_features, benchmark.n_classes))
    optimizer = torch.optim.Adam(model.parameters())

    def one_pass() -> None:
        for images, targets, _ in DataLoader(benchmark.complete_train_dataset, BATCH_SIZE, shuffle=True):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(images), targets).backward()
            optimizer.step()

    return one_pass


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Processor time of the fastest run, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
