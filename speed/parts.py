"""Where the time of a step goes: by the parts of AGCN's step, and by the operators of a plain one.

python speed/parts.py
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections import Counter

from measure import Row, Topic, run_script
from steps import NETWORKS, Stopwatch, make_method, make_plain, noise_benchmark
from torch.profiler import ProfilerActivity, profile

from avalanche_agcn.experiments.run import keep_freed_memory
from avalanche_agcn.training import AGCN

BATCH = 8
PARTS = {
    "forward": ["until after_forward"],
    "the teacher's forward": ["plugins after_forward"],
    "losses": ["until before_backward", "plugins before_backward"],
    "backward": ["until after_backward"],
    "Adam": ["until after_update"],
    "ACM and adjacency": ["plugins after_training_iteration"],
}
"""Of AGCN's step, by the stopwatch's names."""
OPERATORS = {
    "backward of convolutions": "conv.*backward",
    "convolutions": "conv",
    "normalisation, both ways": "batch_norm",
    "activations and pooling, both ways": "relu|hardtanh|clamp|threshold|pool|where",
    "Adam": "_fused_adam_",
}
"""Patterns of their names; the first that fits counts."""


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=3, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    keep_freed_memory()  # as the runs do
    parts: list[Row] = []
    operators: list[Row] = []
    for network, name in NETWORKS.items():
        parts += shares(name, part_seconds(network, arguments.repeats))
        operators += shares(name, operator_seconds(network))
    return [
        Topic(
            "Where the time of AGCN's step goes",
            f"Batch {BATCH}, 128 px. The GCN is in forward and backward.",
            parts,
        ),
        Topic("Where the time of a plain step goes", "The same, by operators.", operators),
    ]


def shares(network: str, seconds: dict[str, float]) -> list[Row]:
    """Per cent of the whole."""
    whole = sum(seconds.values())
    return [
        Row(what=f"{network}: {what}", measured=100 * taken / whole, unit=" %")
        for what, taken in seconds.items()
    ]


def part_seconds(network: str, repeats: int) -> dict[str, float]:
    """Seconds of the parts of an AGCN step, medians."""
    strategy, benchmark = make_method(AGCN, network, BATCH), noise_benchmark(BATCH)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    watch = Stopwatch(strategy)
    for _ in range(repeats):
        strategy.train(benchmark.train_stream[1], eval_streams=[])
    parts = {
        part: sum(statistics.median(watch.parts[mark]) for mark in marks) for part, marks in PARTS.items()
    }
    return parts | {"all else": statistics.median(watch.steps) - sum(parts.values())}


def operator_seconds(network: str) -> dict[str, float]:
    """Seconds of the kinds of operators in some plain steps."""
    strategy, benchmark = make_plain(network, BATCH), noise_benchmark(BATCH)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        strategy.train(benchmark.train_stream[1], eval_streams=[])
    totals: Counter[str] = Counter(dict.fromkeys(OPERATORS, 0))
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            totals[_kind(event.key)] += event.self_cpu_time_total
    return dict(totals)


def _kind(operator: str) -> str:
    return next((kind for kind, pattern in OPERATORS.items() if re.search(pattern, operator)), "all else")


if __name__ == "__main__":
    sys.exit(main())
