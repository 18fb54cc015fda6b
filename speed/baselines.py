"""Cost of the baselines, each number as a ratio in one run.

    python speed/baselines.py
    python speed/baselines.py --image-size 64 --repeats 3     # quicker, against a smaller step

What is compared: an update of the memories (80 classes, 2,000 images in memory, a batch of 8) with a
training step of ResNet-18 on a batch of 8; a memory of 10,000 with one of 2,000, per image; and the steps
of the methods with Fine-Tuning's. Times are of the processor, on one thread, so that other work on the
machine does not show. Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision.models import resnet18

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.training import AGEM, ER, EWC, OCDM, PRS, SCR, FineTuning, LwF, PartialBCEWithLogitsLoss
from avalanche_agcn.training.storage import OCDMBuffer, OnlineBuffer, PRSBuffer, ReservoirBuffer

N_CLASSES, BATCH_SIZE = 80, 8
BOUND_UPDATE = 0.05  # of a training step
BOUND_GROWTH = 10_000 / 2_000 * 1.25  # linear in the memory, with a quarter for caches
UPDATES = 25

METHODS: dict[Any, tuple[dict[str, Any], float]] = {
    # Bound: passes of the images a step sees, a teacher's forward pass counting as a third.
    LwF: ({}, 1.5),
    EWC: ({"fisher_images": 8}, 1.5),
    AGEM: ({"mem_size": 200}, 2.4),
    ER: ({"mem_size": 200}, 2.3),
    PRS: ({"mem_size": 200}, 2.3),
    OCDM: ({"mem_size": 200}, 2.3),
    SCR: ({"mem_size": 200, "mem_batch_size": 8}, 4.6),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image-size", type=int, default=224, help="of the training step")
    parser.add_argument("--repeats", type=int, default=5, help="how often; the best of each side counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="No loggers specified")
    rows = measure_updates(arguments) + measure_methods(arguments.repeats)
    print("\n| what | ratio | bound | |\n| --- | --- | --- | --- |")
    for what, ratio, bound in rows:
        print(f"| {what} | {ratio:.3f} | ≤ {bound:.2f} | {'ok' if ratio <= bound else 'MISSED'} |")
    return int(any(ratio > bound for _, ratio, bound in rows))


def measure_updates(arguments: argparse.Namespace) -> list[tuple[str, float, float]]:
    step, rows = make_step(arguments.image_size), []
    step()  # allocates
    for kind in (ReservoirBuffer, PRSBuffer, OCDMBuffer):
        updates = [make_update(kind, max_size) for max_size in (2_000, 10_000)]
        times = race([step, *updates], arguments.repeats)
        small, large = times[1] / UPDATES, times[2] / UPDATES
        print(f"{kind.__name__}: {small * 1e3:.2f} and {large * 1e3:.2f} ms; step {times[0] * 1e3:.0f} ms")
        rows.append((f"{kind.__name__}, update / step", small / times[0], BOUND_UPDATE))
        rows.append((f"{kind.__name__}, 10,000 / 2,000 in memory", large / small, BOUND_GROWTH))
    return rows


def make_step(image_size: int) -> Callable[[], None]:
    model, criterion = resnet18(num_classes=N_CLASSES), PartialBCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(BATCH_SIZE, 3, image_size, image_size), torch.ones(BATCH_SIZE, N_CLASSES)

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


def measure_methods(repeats: int) -> list[tuple[str, float, float]]:
    data = TensorDataset(torch.randn(320, 3, 64, 64))
    data.targets = torch.eye(4, dtype=torch.int).repeat(80, 1)
    benchmark = multilabel_benchmark(data, data, n_experiences=2)
    runs = [make_run(FineTuning, {}, benchmark)]
    runs += [make_run(method, settings, benchmark) for method, (settings, _) in METHODS.items()]
    plain, *times = race(runs, min(repeats, 3))
    bounds = [bound for _, bound in METHODS.values()]
    return [
        (f"{method.__name__}, second experience / Fine-Tuning's", seconds / plain, bound)
        for method, seconds, bound in zip(METHODS, times, bounds, strict=True)
    ]


def make_run(method: Any, settings: dict[str, Any], benchmark: Any) -> Callable[[], None]:
    model = MultiLabelClassifier(create_backbone("small"), benchmark.n_classes)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    strategy = method(model=model, optimizer=optimizer, evaluator=EvaluationPlugin(), **settings)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    return lambda: strategy.train(benchmark.train_stream[1], eval_streams=[])


def race(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Best seconds of each, taking turns, so that all meet the same load of the machine."""
    times = [[processor_seconds(call) for call in calls] for _ in range(repeats)]
    return [min(column) for column in zip(*times, strict=True)]


def processor_seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
