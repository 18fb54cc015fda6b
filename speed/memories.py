"""Updates of the replay memories, against a training step and against the size of the memory.

    python speed/memories.py

80 classes, a memory of 2,000 images, a batch of 8; the step is ResNet-18's at 224 px. On one thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from measure import Row, Topic, best_times, run_script
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision.models import resnet18

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.training import PartialBCEWithLogitsLoss
from avalanche_agcn.training.storage_policy import OCDMBuffer, OnlineBuffer, PRSBuffer, ReservoirBuffer

N_CLASSES, BATCH_SIZE, IMAGE_SIZE = 80, 8, 224
SMALL, LARGE = 2_000, 10_000  # images in memory
BOUND_UPDATE = 0.05  # of a training step
BOUND_GROWTH = LARGE / SMALL * 1.25  # linear in the memory, with a quarter for caches
UPDATES = 25  # a turn


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=4, threads=1, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    sides: dict[str, Callable[[], None]] = {"step": make_step()}
    kinds = (ReservoirBuffer, PRSBuffer, OCDMBuffer)
    sides |= {f"{k.__name__} {size}": make_update(k, size) for k in kinds for size in (SMALL, LARGE)}
    seconds = best_times(sides, arguments.repeats)
    rows = []
    for kind in (kind.__name__ for kind in kinds):
        small, large = seconds[f"{kind} {SMALL}"] / UPDATES, seconds[f"{kind} {LARGE}"] / UPDATES
        rows += [
            Row(what=f"{kind}, update / step", measured=small / seconds["step"], bound=BOUND_UPDATE),
            Row(
                what=f"{kind}, {LARGE:,} / {SMALL:,} images",
                measured=large / small,
                bound=BOUND_GROWTH,
                note="linear, and a quarter for caches",
            ),
        ]
    about = (
        f"An update with a batch of {BATCH_SIZE}, {N_CLASSES} classes, {SMALL:,} images in memory, against a "
        f"step of ResNet-18 at {IMAGE_SIZE} px; and against itself with more images."
    )
    return [Topic("Replay memories", about, rows)]


def make_step() -> Callable[[], None]:
    model, criterion = resnet18(num_classes=N_CLASSES), PartialBCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE), torch.ones(BATCH_SIZE, N_CLASSES)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def make_update(kind: type[OnlineBuffer], max_size: int) -> Callable[[], None]:
    """Batches flowing into a full memory; every image of the stream is new to it."""
    n = max_size + UPDATES * BATCH_SIZE * 40
    data = TensorDataset(torch.zeros(n, 1))
    data.targets = coco_like_labels(n)
    buffer = kind(max_size)
    buffer.open(0, multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset)
    for batch in torch.arange(max_size).split(max_size // 4):
        buffer.observe(0, batch)
    batches = iter(torch.arange(max_size, n).split(BATCH_SIZE))

    def update() -> None:
        for _ in range(UPDATES):
            buffer.observe(0, next(batches))

    return update


def coco_like_labels(n: int) -> Tensor:
    """1 to 5 labels of long-tailed classes, 3 on average, as in COCO; every image has one."""
    generator = torch.Generator().manual_seed(0)
    weights = 1 / torch.arange(1, N_CLASSES + 1).float()
    labels = torch.zeros(n, N_CLASSES, dtype=torch.int)
    chosen = torch.multinomial(weights.expand(n, -1), 5, generator=generator)
    counts = torch.randint(1, 6, (n, 1), generator=generator)
    labels.scatter_(1, chosen, (torch.arange(5) < counts).int())
    labels[:N_CLASSES] |= torch.eye(N_CLASSES, dtype=torch.int)
    return labels


if __name__ == "__main__":
    sys.exit(main())
