"""Time to update replay memories, against a training step and by the size of the memory.

    python speed/memories.py

80 classes, 2,000 images in memory, batch size 8; the step is that of ResNet-18 at 224 px. On one thread.
"""

import argparse
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
BOUND_GROWTH = LARGE / SMALL * 1.25  # linear in the size of the memory, and a quarter more for caches
UPDATES = 25  # per turn


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    step = best_times({"step": make_step()}, arguments.repeats)["step"]
    for buffer_class in (ReservoirBuffer, PRSBuffer, OCDMBuffer):
        name = buffer_class.__name__
        sides = {size: make_updates(buffer_class, size) for size in (SMALL, LARGE)}
        seconds = best_times(sides, arguments.repeats)
        rows.append(Row(f"{name}, update / step", seconds[SMALL] / UPDATES / step, 0.05))
        growth, note = seconds[LARGE] / seconds[SMALL], "linear, and a quarter for caches"
        rows.append(Row(f"{name}, {LARGE:,} / {SMALL:,} images", growth, BOUND_GROWTH, note=note))
    about = (
        f"An update with a batch of {BATCH_SIZE}, {N_CLASSES} classes, {SMALL:,} images in memory, against a "
        f"step of ResNet-18 at {IMAGE_SIZE} px; and against itself with more images."
    )
    return [Topic("Replay memories", about, rows)]


def make_step() -> Callable[[], None]:
    model = resnet18(num_classes=N_CLASSES)
    criterion = PartialBCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE), torch.ones(BATCH_SIZE, N_CLASSES)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def make_updates(buffer_class: type[OnlineBuffer], max_size: int) -> Callable[[], None]:
    """A function that adds batches of new images to a full memory."""
    n = max_size + UPDATES * BATCH_SIZE * 40
    data = TensorDataset(torch.zeros(n, 1))
    data.targets = coco_like_labels(n)
    buffer = buffer_class(max_size)
    buffer.open(0, multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset)
    for batch in torch.arange(max_size).split(max_size // 4):
        buffer.observe(0, batch)
    batches = iter(torch.arange(max_size, n).split(BATCH_SIZE))

    def updates() -> None:
        for _ in range(UPDATES):
            buffer.observe(0, next(batches))

    return updates


def coco_like_labels(n: int) -> Tensor:
    """1 to 5 labels per image, 3 on average, of long-tailed classes, as in COCO."""
    generator = torch.Generator().manual_seed(0)
    weights = 1 / torch.arange(1, N_CLASSES + 1).float()
    labels = torch.zeros(n, N_CLASSES, dtype=torch.int)
    chosen = torch.multinomial(weights.expand(n, -1), 5, generator=generator)
    counts = torch.randint(1, 6, (n, 1), generator=generator)
    labels.scatter_(1, chosen, (torch.arange(5) < counts).int())
    labels[:N_CLASSES] |= torch.eye(N_CLASSES, dtype=torch.int)
    return labels


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=4, threads=1))
