"""Speed of drawing the images of SplitScenes.

    python speed/scenes.py [--images 300]

Drawing a scene is compared with training the small network on it, which shows whether images can be drawn on
the fly, and with reading it from a JPEG file, as from a downloaded dataset. On one thread.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Row, Topic, best_times, run_script
from torch import nn
from torch.utils.data import DataLoader

from avalanche_agcn.benchmarks.image_files import load_image
from avalanche_agcn.benchmarks.scenes import ScenesDataset, SplitScenes
from avalanche_agcn.models.backbones import create_backbone

BATCH_SIZE = 8


def measure(arguments: argparse.Namespace) -> list[Topic]:
    dataset = ScenesDataset(arguments.images, in_memory=False)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.jpg" for index in range(len(dataset))]
        for file, (image, _) in zip(files, dataset, strict=True):
            image.save(file, quality=90)
        sides: dict[str, Callable[[], object]] = {
            "draw": lambda: [dataset[index] for index in range(len(dataset))],
            "read": lambda: [load_image(file) for file in files],
            "in memory": training(in_memory=True, n_images=arguments.images),
            "on the fly": training(in_memory=False, n_images=arguments.images),
        }
        seconds = best_times(sides, arguments.repeats)
    rows = [
        Row("drawing / reading it from JPEG", seconds["draw"] / seconds["read"]),
        Row("drawing / training on it", seconds["draw"] / seconds["in memory"]),
        Row("training, drawn on the fly / in memory", seconds["on the fly"] / seconds["in memory"]),
    ]
    about = f"A scene of 64 px, the small network, batch {BATCH_SIZE}, including loader and transforms."
    return [Topic("Drawn scenes", about, rows)]


def training(*, in_memory: bool, n_images: int) -> Callable[[], None]:
    """One epoch of the small network, including loader and transforms."""
    benchmark = SplitScenes(n_train=n_images, n_test=200, in_memory=in_memory)
    backbone = create_backbone("small", pretrained=False)
    model = nn.Sequential(backbone, nn.Linear(backbone.num_features, benchmark.n_classes))
    optimizer = torch.optim.Adam(model.parameters())

    def one_epoch() -> None:
        for images, targets, _ in DataLoader(benchmark.complete_train_dataset, BATCH_SIZE, shuffle=True):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(images), targets).backward()
            optimizer.step()

    return one_epoch


if __name__ == "__main__":
    options = {"--images": {"type": int, "default": 300, "help": "number of scenes"}}
    raise SystemExit(run_script(__doc__, measure, repeats=3, threads=1, options=options))
