"""Two processes on two cores against one process on one core.

    python speed/processes.py [--batch 16]

Both train the whole network on the same global batches, with one thread per process. The time runs from when
all processes are ready until the last one finishes, so it does not include starting them.
"""

import argparse
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measure import Row, Topic, run_script

NETWORK, EPOCHS = "efficientnet_lite0", 2
METHODS = ("FineTuning", "AGCN")


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    for method in METHODS[: 1 if arguments.quick else None]:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(arguments.repeats):
            for n_processes, taken in seconds.items():
                taken.append(training_seconds(n_processes, method, arguments.batch))
        ratio = min(seconds[2]) / min(seconds[1])
        rows.append(Row(f"{method}: two processes / one", ratio, 0.75, note="0.5 is ideal"))
    about = f"Training all of {NETWORK} at 128 px, {arguments.batch} images per step, one thread per process."
    return [Topic("Several processes", about, rows)]


def training_seconds(n_processes: int, method: str, batch: int) -> float:
    """Seconds that new processes take for the same steps, once all are ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (n_processes, port, method, batch, queue), nprocs=n_processes)
    return queue.get()


def train(rank: int, n_processes: int, port: int, method: str, batch: int, queue: Any) -> None:
    """In each process: train on the first experience to warm up, then time the second."""
    from steps import make_method, noise_benchmark

    from avalanche_agcn import training

    group = {"RANK": rank, "WORLD_SIZE": n_processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in group.items()}
    torch.set_num_threads(1)
    benchmark = noise_benchmark(batch)
    strategy = make_method(getattr(training, method), NETWORK, batch, {"train_epochs": EPOCHS, "seed": 0})
    with training.process_group():
        strategy.train(benchmark.train_stream[0], eval_streams=[])
        start = time.perf_counter()
        strategy.train(benchmark.train_stream[1], eval_streams=[])
        if n_processes > 1:
            dist.barrier()
        if rank == 0:
            queue.put(time.perf_counter() - start)


if __name__ == "__main__":
    options = {"--batch": {"type": int, "default": 16, "help": "images per step, over all processes"}}
    raise SystemExit(run_script(__doc__, measure, repeats=3, options=options))
