"""Time to update replay memories, against a training step and by the size of the memory.

python speed/memories.py
"""

import argparse
from collections.abc import Callable

import torch
from measure import Row, Topic, best_times, run_script
from steps import IMAGE_SIZE, make_plain, noise_benchmark, step_times
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.training.storage_policy import OCDMBuffer, OnlineBuffer, PRSBuffer, ReservoirBuffer

N_CLASSES, BATCH = 80, 8
SMALL, LARGE = 2_000, 10_000  # images in memory
GROWTH_BOUND = LARGE / SMALL * 1.25
UPDATES = 25  # per turn


def measure(arguments: argparse.Namespace) -> list[Topic]:
    plain = {"plain": make_plain("resnet18", BATCH)}
    step = step_times(plain, noise_benchmark(BATCH), arguments.repeats)["plain"]
    rows = []
    for buffer_class in (ReservoirBuffer, PRSBuffer, OCDMBuffer):
        name, note = buffer_class.__name__, "linear, and a quarter for caches"
        sides = {size: make_updates(buffer_class, size) for size in (SMALL, LARGE)}
        seconds = best_times(sides, arguments.repeats)
        growth = seconds[LARGE] / seconds[SMALL]
        rows.append(Row(f"{name}, update / step", seconds[SMALL] / UPDATES / step, 0.05))
        rows.append(Row(f"{name}, {LARGE:,} / {SMALL:,} images", growth, GROWTH_BOUND, note=note))
    about = (
        f"An update with a batch of {BATCH}, {N_CLASSES} classes, {SMALL:,} images in memory, against a "
        f"plain step of ResNet-18 at {IMAGE_SIZE} px; and against itself with more images. On one thread."
    )
    return [Topic("Replay memories", about, rows)]


def make_updates(buffer_class: type[OnlineBuffer], max_size: int) -> Callable[[], None]:
    """A function that adds batches of new images to a full memory."""
    n_images = max_size + UPDATES * BATCH * 40
    frequencies = 0.6 / torch.arange(1, N_CLASSES + 1)  # long-tailed, 3 labels per image, as in COCO
    data = TensorDataset(torch.zeros(n_images, 1))
    data.targets = (torch.rand(n_images, N_CLASSES) < frequencies).int()
    data.targets[torch.arange(n_images), torch.arange(n_images) % N_CLASSES] = 1  # no image without a label
    buffer = buffer_class(max_size)
    buffer.open(0, multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset)
    for batch in torch.arange(max_size).split(max_size // 4):
        buffer.observe(0, batch)
    batches = iter(torch.arange(max_size, n_images).split(BATCH))

    def updates() -> None:
        for _ in range(UPDATES):
            buffer.observe(0, next(batches))

    return updates


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=4, threads=1))
