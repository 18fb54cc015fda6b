"""Where time is spent: in the parts of AGCN's step, and in the operators of a plain step.

python speed/parts.py
"""

import argparse
import re
import statistics
from collections import Counter

from measure import Row, Topic, run_script
from steps import IMAGE_SIZE, NETWORKS, Stopwatch, make_method, make_plain, noise_benchmark
from torch.profiler import ProfilerActivity, profile

from avalanche_agcn.training import AGCN

BATCH = 8
PARTS = {
    "forward": ["until after_forward"],
    "losses and the teacher's forward": [
        "plugins after_forward",
        "until before_backward",
        "plugins before_backward",
    ],
    "backward": ["until after_backward"],
    "Adam": ["until after_update"],
    "ACM and adjacency": ["plugins after_training_iteration"],
}
"""Parts of AGCN's step, and their names in `Stopwatch.parts`."""
OPERATORS = {
    "backward of convolutions": "conv.*backward",
    "convolutions": "conv",
    "normalisation, both ways": "batch_norm",
    "activations and pooling, both ways": "relu|hardtanh|clamp|threshold|pool|where",
    "Adam": "_fused_adam_",
}
"""Patterns of the operators' names; the first match counts."""


def measure(arguments: argparse.Namespace) -> list[Topic]:
    parts, operators = [], []
    for network, name in NETWORKS.items():
        parts += shares(name, part_seconds(network, arguments.repeats))
        operators += shares(name, operator_seconds(network))
    about = f"Batch {BATCH}, {IMAGE_SIZE} px. The GCN is part of forward and backward."
    return [
        Topic("Time spent in AGCN's step", about, parts),
        Topic("Time spent in a plain step", "The same, by operator.", operators),
    ]


def shares(network: str, seconds: dict[str, float]) -> list[Row]:
    whole = sum(seconds.values())
    return [Row(f"{network}: {what}", 100 * taken / whole, unit=" %") for what, taken in seconds.items()]


def part_seconds(network: str, repeats: int) -> dict[str, float]:
    """Median seconds of the parts of AGCN's step."""
    strategy, benchmark = make_method(AGCN, network, BATCH), noise_benchmark(BATCH)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    watch = Stopwatch(strategy)
    for _ in range(repeats):
        strategy.train(benchmark.train_stream[1], eval_streams=[])
    parts = {
        part: sum(statistics.median(watch.parts[mark]) for mark in marks) for part, marks in PARTS.items()
    }
    return parts | {"other": statistics.median(watch.steps) - sum(parts.values())}


def operator_seconds(network: str) -> dict[str, float]:
    """Time in each group of operators during a few plain steps."""
    strategy, benchmark = make_plain(network, BATCH), noise_benchmark(BATCH)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        strategy.train(benchmark.train_stream[1], eval_streams=[])
    totals: Counter[str] = Counter(dict.fromkeys(OPERATORS, 0))
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            groups = (name for name, pattern in OPERATORS.items() if re.search(pattern, event.key))
            totals[next(groups, "other")] += event.self_cpu_time_total
    return dict(totals)


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=3))
