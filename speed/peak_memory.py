"""Peak memory of AGCN's step against a plain step, and of keeping freed memory.

    python speed/peak_memory.py

What a process takes beyond what it had when all modules were loaded; each side in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import sys

from measure import Row, Topic, in_child, run_script
from steps import NETWORKS, make_method, make_plain, noise_benchmark

from avalanche_agcn.experiments.run import keep_freed_memory
from avalanche_agcn.training import AGCN

BATCHES = (8, 32)
BOUND = 5 / 4  # weights, gradients and Adam's two moments are four copies, the teacher is a fifth


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=1, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    rows = []
    for network, name in NETWORKS.items():
        for batch in BATCHES[:1] if arguments.quick else BATCHES:
            plain = in_child(peak, network, batch, False, False)
            agcn = in_child(peak, network, batch, True, False)
            kept = in_child(peak, network, batch, False, True)
            side = f"{name}, batch {batch}"
            rows += [
                Row(what=f"AGCN's steps / plain steps, {side}", measured=agcn / plain, bound=BOUND),
                Row(what=f"freed memory kept / given back, {side}", measured=kept / plain),
            ]
    about = (
        "What steps take beyond the loaded modules, at 128 px. Weights, gradients and Adam's two moments are "
        "four copies and the teacher is a fifth, hence the bound; its maps are freed layer by layer."
    )
    return [Topic("Peak memory", about, rows)]


def peak(network: str, batch: int, agcn: bool, keep: bool) -> float:
    """Memory of some steps, weights and optimizer included, in the units of the system."""
    if keep:
        keep_freed_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = {}
    strategy = (
        make_method(AGCN, network, batch, **settings) if agcn else make_plain(network, batch, **settings)
    )
    for experience in noise_benchmark(batch).train_stream:
        strategy.train(experience, eval_streams=[])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


if __name__ == "__main__":
    sys.exit(main())
