"""Peak memory of AGCN's steps against plain steps.

    python speed/peak_memory.py

Memory of a process beyond that of the loaded modules; each side runs in a process of its own.
"""

import argparse
import resource

from measure import Row, Topic, in_child, run_script
from steps import NETWORKS, make_method, make_plain, noise_benchmark

from avalanche_agcn.training import AGCN

BATCHES = (8, 32)
BOUND = 5 / 4  # weights, gradients and Adam's two moments are four copies, the teacher is a fifth


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    for network, name in NETWORKS.items():
        for batch in BATCHES[:1] if arguments.quick else BATCHES:
            plain = in_child(peak, network, batch, False)
            agcn = in_child(peak, network, batch, True)
            rows.append(Row(f"AGCN's steps / plain steps, {name}, batch {batch}", agcn / plain, BOUND))
    about = (
        "Memory of training steps beyond that of the loaded modules, at 128 px. Weights, gradients and "
        "Adam's two moments are four copies of the network and the teacher is a fifth, hence the bound; the "
        "teacher's activations are freed layer by layer."
    )
    return [Topic("Peak memory", about, rows)]


def peak(network: str, batch: int, agcn: bool) -> float:
    """Peak memory of a few steps, including weights and optimizer, in the unit of `getrusage`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strategy = make_method(AGCN, network, batch) if agcn else make_plain(network, batch)
    for experience in noise_benchmark(batch).train_stream:
        strategy.train(experience, eval_streams=[])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=1))
