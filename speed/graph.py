"""Cost of ACM, adjacency and GCN, in a step and by the number of classes.

python speed/graph.py
"""

import argparse
from collections.abc import Callable

import torch
from measure import Row, Topic, best_times, run_script
from steps import N_NEW, N_OLD, NETWORKS, WORD_DIMENSION, make_method, noise_benchmark, step_times

from avalanche_agcn.models import AGCNModel, Precomputed
from avalanche_agcn.training import AGCN, AugmentedCorrelationMatrix, adjacency

BATCH, FEATURES = 8, 1280
FEW, MANY = 40, (200, 1000, 2000)  # classes
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
        graph = graph_step(N_OLD + N_NEW, strategy.model.backbone.num_features)
        taken = best_times({"graph": graph}, repeats)["graph"]
        what = f"{N_OLD + N_NEW} classes / AGCN step, {name}, batch {BATCH}"
        rows.append(Row(what, taken / step, SHARE_BOUND))
    return rows


def measure_growth(repeats: int) -> list[Row]:
    sides: dict[tuple[str, int], Callable[[], None]] = {}
    for preset in ("paper", "official"):
        for n in (FEW, *MANY):
            sides[f"ACM and `{preset}` adjacency", n] = statistics_step(n, preset)
    for n in (FEW, MANY[-1]):
        sides["with the GCN", n] = graph_step(n, FEATURES)
    seconds = best_times(sides, repeats)
    rows = []
    for (what, n), taken in seconds.items():
        if n > FEW:
            rows.append(Row(f"{what}, {n:,} / {FEW} classes", taken / seconds[what, FEW], (n / FEW) ** 2))
    return rows


def matrix_with(n_classes: int) -> tuple[AugmentedCorrelationMatrix, torch.Tensor, torch.Tensor]:
    """A matrix in the last of ten experiences, and a batch for it."""
    acm, n_new = AugmentedCorrelationMatrix(), n_classes // 10
    for t in range(10):
        acm.begin(n_new)
        acm.update((torch.rand(50, n_new) < 0.3).float(), torch.rand(50, t * n_new))
    return acm, (torch.rand(BATCH, n_new) < 0.3).float(), torch.rand(BATCH, 9 * n_new)


def graph_step(n_classes: int, features: int) -> Callable[[], None]:
    """The work of ACM, adjacency and GCN in one step, forward and backward."""
    acm, targets, soft = matrix_with(n_classes)
    model = AGCNModel(Precomputed(features), torch.randn(n_classes, WORD_DIMENSION))
    model.set_graph(torch.eye(n_classes))
    old = model.embeddings().detach()[: n_classes - n_classes // 10]
    images = torch.randn(BATCH, features)

    def step() -> None:
        embeddings = model.embeddings()
        loss = (images @ embeddings.T).sum() + (embeddings[: len(old)] - old).square().mean()
        loss.backward()
        acm.update(targets, soft)
        model.set_graph(adjacency(acm))

    return step


def statistics_step(n_classes: int, preset: str) -> Callable[[], None]:
    """The work of ACM and adjacency in one step."""
    acm, targets, soft = matrix_with(n_classes)

    def step() -> None:
        acm.update(targets, soft)
        adjacency(acm, preset)

    return step


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=5))
