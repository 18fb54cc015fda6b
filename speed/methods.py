"""The step of every method against the step of Avalanche's `Naive`.

    python speed/methods.py

Both sides of a ratio use the same network and batch size, and take turns. The bound counts passes: a backward
pass costs as much as two forward passes, so one more forward pass makes a step 4/3 as long. 5 % are added for
everything else. `run_all.py` runs this script in an environment that keeps freed memory.
"""

import argparse
from typing import Any

from measure import Row, Topic, run_script
from steps import IMAGE_SIZE, N_NEW, N_OLD, make_method, make_plain, noise_benchmark, step_times

from avalanche_agcn.experiments.methods import METHODS

BATCH = 8
SLACK = 1.05
TEACHER = 4 / 3  # one more forward pass
MEMORY = {"mem_size": 200}

PASSES: dict[str, tuple[dict[str, Any], float, str]] = {
    "multitask": ({}, 1, "the plain step"),
    "multitask_ridge": ({}, 0.45, "only a forward pass, and the sums"),
    "finetuning": ({}, 1, "the plain step"),
    "ewc": ({"fisher_images": 1}, 1.1, "the plain step, and a penalty over all weights"),
    "lwf": ({}, TEACHER, "one more forward pass, the teacher's"),
    "agem": (MEMORY, 2.1, "a second forward and backward pass for a reference batch, and a projection"),
    "er": (MEMORY, 2, "as many images again from memory"),
    "prs": (MEMORY, 2, "as many images again from memory"),
    "ocdm": (MEMORY, 2, "as many images again from memory"),
    "scr": ({**MEMORY, "batch_size_mem": BATCH}, 4, "as many images again from memory, two views of each"),
    "agcn": ({}, TEACHER, "one more forward pass, the teacher's"),
    "streaming_ridge": ({}, 0.45, "only a forward pass, and the sums"),
    "l3a": ({}, 0.45, "only a forward pass, and the sums"),
    "csc": ({}, 1.4, "one more forward pass, the teacher's, which includes its GCN"),
}
"""Settings of each method, its cost in plain steps, and the reason."""


def measure(arguments: argparse.Namespace) -> list[Topic]:
    network = "efficientnet_lite0"
    strategies: dict[str, Any] = {"plain": make_plain(network, BATCH)}
    for name, (settings, _, _) in PASSES.items():
        strategies[name] = make_method(METHODS[name].strategy_class, network, BATCH, settings)
    seconds = step_times(strategies, noise_benchmark(BATCH), arguments.repeats)
    rows = []
    for name, (_, passes, reason) in PASSES.items():
        ratio = seconds[name] / seconds["plain"]
        rows.append(Row(METHODS[name].strategy, ratio, passes * SLACK, note=reason))
    about = (
        f"Against a step of Avalanche's `Naive`, EfficientNet-Lite0, batch {BATCH}, {N_OLD} old and {N_NEW} "
        f"new classes, images of {IMAGE_SIZE} px, without loading images."
    )
    return [Topic("A step of each method", about, rows)]


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=3))
