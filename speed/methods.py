"""A step of every method against Avalanche's plain step.

    python speed/methods.py

Both sides of a ratio have the same network, batch and machine, and take turns. The bound counts passes: a
backward pass is worth two forward passes, so one more forward pass makes a step 4/3 as long; a twentieth more
is left for all else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from measure import Row, Topic, run_script
from steps import (
    IMAGE_SIZE,
    N_NEW,
    N_OLD,
    NETWORKS,
    STEPS,
    make_method,
    make_plain,
    noise_benchmark,
    step_times,
)

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import keep_freed_memory
from avalanche_agcn.training import AGCN
from avalanche_agcn.training.strategies.baselines import TrainsJointly, multi_task_experience

BATCH, BATCHES = 8, (8, 32)
SLACK = 1.05
TEACHER = 4 / 3  # one more forward pass
MEMORY = {"mem_size": 200}

PASSES: dict[str, tuple[dict[str, Any], float, str]] = {
    "multitask": ({}, 1, "the plain step"),
    "multitask_ridge": ({}, 0.45, "a forward pass alone, and the sums"),
    "finetuning": ({}, 1, "the plain step"),
    "ewc": (
        {"fisher_images": 1},
        1.1,
        "the plain step, and a penalty that goes over all weights as Adam does",
    ),
    "lwf": ({}, TEACHER, "a forward pass more: the teacher's"),
    "agem": (MEMORY, 2.1, "forward and backward again for a reference batch, and a projection"),
    "er": (MEMORY, 2, "as many images from memory"),
    "prs": (MEMORY, 2, "as many images from memory"),
    "ocdm": (MEMORY, 2, "as many images from memory"),
    "scr": ({**MEMORY, "batch_size_mem": BATCH}, 4, "as many from memory, two views of each"),
    "agcn": ({}, TEACHER, "a forward pass more: the teacher's"),
    "streaming_ridge": ({}, 0.45, "a forward pass alone, and the sums"),
    "l3a": ({}, 0.45, "a forward pass alone, and the sums"),
    "csc": ({}, 1.4, "a forward pass more: the teacher's, and its GCN, for which AGCN needs none"),
}
"""For each method its settings, its passes against the plain step, and why."""
BACKBONES: dict[str, dict[str, Any]] = {
    "": {},
    ", folded BatchNorm": {"freeze_batchnorm": True, "fold_batchnorm": True},
}


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=3, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    keep_freed_memory()  # as the runs do
    size = f"{N_OLD} old and {N_NEW} new classes, images of {IMAGE_SIZE} px"
    return [
        Topic(
            "A step of each method",
            f"Against a step of Avalanche's `Naive`, EfficientNet-Lite0, batch {BATCH}, {size}, without the "
            "loading of images.",
            measure_methods(arguments.repeats),
        ),
        Topic(
            "AGCN's step",
            f"Against the same plain step, {size}. Folded BatchNorm is on both sides.",
            measure_agcn(arguments.repeats, BATCHES[:1] if arguments.quick else BATCHES),
        ),
    ]


def measure_methods(repeats: int) -> list[Row]:
    benchmark, network = noise_benchmark(BATCH), "efficientnet_lite0"
    strategies = {"plain": make_plain(network, BATCH)}
    for name, (settings, _, _) in PASSES.items():
        strategies[name] = make_method(METHODS[name].strategy_class, network, BATCH, settings)
    experiences: dict[str, Any] = dict.fromkeys(strategies, benchmark.train_stream[1])
    joint = {name for name, strategy in strategies.items() if isinstance(strategy, TrainsJointly)}
    experiences |= dict.fromkeys(joint, _all_labels(benchmark))
    for name in strategies.keys() - joint:
        strategies[name].train(benchmark.train_stream[0], eval_streams=[])
    seconds = step_times(strategies, experiences, repeats)
    return [
        Row(
            what=METHODS[name].strategy,
            measured=seconds[name] / seconds["plain"],
            bound=passes * SLACK,
            note=reason,
        )
        for name, (_, passes, reason) in PASSES.items()
    ]


def _all_labels(benchmark: MultiLabelBenchmark) -> Any:
    images = benchmark.complete_train_dataset.subset(range(BATCH * STEPS))
    return multi_task_experience(SimpleNamespace(complete_train_dataset=images, n_classes=N_OLD + N_NEW))


def measure_agcn(repeats: int, batches: Sequence[int]) -> list[Row]:
    rows = []
    for network, name in NETWORKS.items():
        for kind, backbone in BACKBONES.items():
            for batch in batches:
                benchmark = noise_benchmark(batch)
                sides = {
                    "plain": make_plain(network, batch, **backbone),
                    "agcn": make_method(AGCN, network, batch, **backbone),
                }
                for strategy in sides.values():
                    strategy.train(benchmark.train_stream[0], eval_streams=[])
                turns = repeats * (2 if batch == BATCHES[0] else 1)  # short steps vary more
                seconds = step_times(sides, dict.fromkeys(sides, benchmark.train_stream[1]), turns)
                ratio = seconds["agcn"] / seconds["plain"]
                rows.append(Row(what=f"{name}, batch {batch}{kind}", measured=ratio, bound=TEACHER * SLACK))
    return rows


if __name__ == "__main__":
    sys.exit(main())
