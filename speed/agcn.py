"""Time and peak memory of AGCN's steps against plain steps.

    python speed/agcn.py

Each side of a ratio of memory runs in a process of its own.
"""

import argparse

from measure import Row, Topic, in_child, peak_megabytes, run_script
from methods import SLACK, TEACHER
from steps import NETWORKS, make_method, make_plain, noise_benchmark, step_times

from avalanche_agcn.training import AGCN

BATCHES = (8, 32)
MEMORY_BOUND = 5 / 4  # weights, gradients and Adam's two moments are four copies, the teacher is a fifth
FOLDED = {"freeze_batchnorm": True, "fold_batchnorm": True}


def measure(arguments: argparse.Namespace) -> list[Topic]:
    batches = BATCHES[:1] if arguments.quick else BATCHES
    memory = []
    for network, name in NETWORKS.items():
        for batch in batches:
            plain = in_child(peak_of_steps, network, batch, False)
            agcn = in_child(peak_of_steps, network, batch, True)
            memory.append(Row(f"{name}, batch {batch}", agcn / plain, MEMORY_BOUND))
    time = []
    for network, name in NETWORKS.items():  # after all children were forked
        for folding, options in (("", {}), (", folded BatchNorm", FOLDED)):
            for batch in batches:
                ratio = step_ratio(network, batch, arguments.repeats, **options)
                time.append(Row(f"{name}, batch {batch}{folding}", ratio, TEACHER * SLACK))
    about_time = "Against a plain step at 128 px. In rows with folded BatchNorm, both sides fold it."
    about_memory = (
        "Against plain steps at 128 px, beyond the memory of the loaded modules. Weights, gradients and "
        "Adam's two moments are four copies of the network and the teacher is a fifth, hence the bound; the "
        "teacher's activations are freed layer by layer."
    )
    return [Topic("AGCN's step", about_time, time), Topic("AGCN's peak memory", about_memory, memory)]


def step_ratio(network: str, batch: int, repeats: int, **backbone_options: bool) -> float:
    sides = {
        "plain": make_plain(network, batch, **backbone_options),
        "agcn": make_method(AGCN, network, batch, **backbone_options),
    }
    turns = repeats * (2 if batch == BATCHES[0] else 1)  # short steps vary more
    seconds = step_times(sides, noise_benchmark(batch), turns)
    return seconds["agcn"] / seconds["plain"]


def peak_of_steps(network: str, batch: int, agcn: bool) -> float:
    """Megabytes for a few steps, including weights and optimizer."""
    before = peak_megabytes()
    strategy = make_method(AGCN, network, batch) if agcn else make_plain(network, batch)
    for experience in noise_benchmark(batch).train_stream:
        strategy.train(experience, eval_streams=[])
    return peak_megabytes() - before


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=3))
