"""Two processes on two cores against one process on one core.

    python speed/processes.py [--batch 16]

Both train the whole network on the same global batches; each process has one thread. The clock runs from when
all processes are ready until the last is done, so starting them does not count.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measure import Row, Topic, run_script

NETWORK, EPOCHS = "efficientnet_lite0", 2
METHODS = ("FineTuning", "AGCN")


def main(argv: list[str] | None = None) -> int:
    options = {"--batch": {"type": int, "default": 16, "help": "images per step, over all processes"}}
    return run_script(__doc__, measure, repeats=3, options=options, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    for method in METHODS[: 1 if arguments.quick else None]:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(arguments.repeats):
            for n_processes, taken in seconds.items():
                taken.append(training_seconds(n_processes, method, arguments.batch))
        ratio = min(seconds[2]) / min(seconds[1])
        rows.append(
            Row(what=f"{method}: two processes / one", measured=ratio, bound=0.75, note="0.5 is ideal")
        )
    about = f"Training the whole of {NETWORK} at 128 px, {arguments.batch} images per step, one thread each."
    return [Topic("Several processes", about, rows)]


def training_seconds(n_processes: int, method: str, batch: int) -> float:
    """Seconds that new processes take for the same steps, once they are ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (n_processes, port, method, batch, queue), nprocs=n_processes)
    return queue.get()


def train(rank: int, n_processes: int, port: int, method: str, batch: int, queue: Any) -> None:
    """One process: trains once to warm up, then once with the clock running."""
    from steps import make_method, noise_benchmark

    from avalanche_agcn import training
    from avalanche_agcn.experiments.run import keep_freed_memory

    group = {"RANK": rank, "WORLD_SIZE": n_processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in group.items()}
    keep_freed_memory()
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
    sys.exit(main())
