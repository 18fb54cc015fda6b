"""Cost of ACM, adjacency and GCN, in a step and by the number of classes.

python speed/graph.py
"""

import argparse
from collections.abc import Callable

import torch
from measure import Row, Topic, best_times, ratio, run_script
from steps import N_NEW, N_OLD, NETWORKS, WORD_DIMENSION, make_method, noise_benchmark, step_times

from avalanche_agcn.models import AGCNModel, Precomputed
from avalanche_agcn.training import AGCN, AugmentedCorrelationMatrix, adjacency

BATCH, FEATURES = 8, 1280
FEW, MANY = N_OLD + N_NEW, 2000  # classes
SHARE_BOUND = 0.05  # of an AGCN step


def measure(arguments: argparse.Namespace) -> list[Topic]:
    about = (
        "Forward and backward, against a whole AGCN step at 128 px; then with more classes, where the "
        "bound grows like the number of relations, the square of the number of classes."
    )
    rows = [*measure_share(arguments.repeats), *measure_growth(arguments.repeats)]
    return [Topic("ACM, adjacency and GCN", about, rows)]


def measure_share(repeats: int) -> list[Row]:
    rows = []
    for network, name in NETWORKS.items():
        strategy = make_method(AGCN, network, BATCH)
        step = step_times({"agcn": strategy}, noise_benchmark(BATCH), repeats)["agcn"]
        graph = best_times({"graph": graph_step(FEW, strategy.model.backbone.num_features)}, repeats)["graph"]
        rows.append(Row(f"{FEW} classes / AGCN step, {name}, batch {BATCH}", graph / step, SHARE_BOUND))
    return rows


def measure_growth(repeats: int) -> list[Row]:
    sides = {
        "ACM and `paper` adjacency": lambda n: matrix_step(n, "paper"),
        "ACM and `official` adjacency": lambda n: matrix_step(n, "official"),
        "with the GCN": lambda n: graph_step(n, FEATURES),
    }
    rows = []
    for what, make_step in sides.items():
        what = f"{what}, {MANY:,} / {FEW} classes"
        bound = (MANY / FEW) ** 2
        rows.append(ratio(what, make_step(MANY), make_step(FEW), bound=bound, repeats=repeats))
    return rows


def matrix_step(n_classes: int, preset: str) -> Callable[[], torch.Tensor]:
    """The work of ACM and adjacency in one step of the last of ten experiences."""
    acm, n_new = AugmentedCorrelationMatrix(), n_classes // 10
    for t in range(10):
        acm.begin(n_new)
        acm.update((torch.rand(50, n_new) < 0.3).float(), torch.rand(50, t * n_new))
    targets, soft = (torch.rand(BATCH, n_new) < 0.3).float(), torch.rand(BATCH, 9 * n_new)

    def step() -> torch.Tensor:
        acm.update(targets, soft)
        return adjacency(acm, preset)

    return step


def graph_step(n_classes: int, features: int) -> Callable[[], None]:
    """The work of ACM, adjacency and GCN in one step, forward and backward."""
    make_graph = matrix_step(n_classes, "paper")
    model = AGCNModel(Precomputed(features), torch.randn(n_classes, WORD_DIMENSION))
    model.set_graph(torch.eye(n_classes))
    old = model.embeddings().detach()[: n_classes - n_classes // 10]
    images = torch.randn(BATCH, features)

    def step() -> None:
        embeddings = model.embeddings()
        loss = (images @ embeddings.T).sum() + (embeddings[: len(old)] - old).square().mean()
        loss.backward()
        model.set_graph(make_graph())

    return step


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=5))
