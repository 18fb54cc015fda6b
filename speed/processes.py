"""Two processes on two cores against one process on one core.

    python speed/processes.py

Both train the whole network on the same global batches, with one thread per process. The time runs from when
all processes are ready until the last one finishes, so it does not include starting them.
"""

import argparse
import time

import torch
import torch.distributed as dist
from measure import Row, Topic, run_script
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

NETWORK, BATCH = "efficientnet_lite0", 16
METHODS = ("FineTuning", "AGCN")
BOUND = 0.75


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    for method in METHODS[:1] if arguments.quick else METHODS:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(arguments.repeats):
            for n_processes, taken in seconds.items():
                settings = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "max_restarts": 0}
                config = LaunchConfig(1, 1, n_processes, start_method="spawn", **settings)
                taken.append(elastic_launch(config, training_seconds)(method)[0])
        ratio = min(seconds[2]) / min(seconds[1])
        rows.append(Row(f"{method}: two processes / one", ratio, BOUND, note="0.5 is ideal"))
    about = f"Training all of {NETWORK} at 128 px, {BATCH} images per step, one thread per process."
    return [Topic("Several processes", about, rows)]


def training_seconds(method: str) -> float:
    """In each process: train on the first experience to warm up, then time the second."""
    from steps import make_method, noise_benchmark

    from avalanche_agcn import training

    torch.set_num_threads(1)
    benchmark = noise_benchmark(BATCH)
    strategy = make_method(getattr(training, method), NETWORK, BATCH, {"train_epochs": 2, "seed": 0})
    with training.process_group():
        strategy.train(benchmark.train_stream[0], eval_streams=[])
        start = time.perf_counter()
        strategy.train(benchmark.train_stream[1], eval_streams=[])
        if dist.is_initialized():
            dist.barrier()
        return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=3))
