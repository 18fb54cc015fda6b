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
SIZES = (40, 200, 1000, 2000)
SHARE_BOUND = 0.05  # of an AGCN step


def measure(arguments: argparse.Namespace) -> list[Topic]:
    return [
        Topic(
            "ACM, adjacency and GCN",
            "Forward and backward, against a whole AGCN step at 128 px; then with more classes, where the "
            "bound grows like the number of relations, the square of the number of classes.",
            [*measure_share(arguments.repeats), *measure_growth(arguments.repeats)],
        ),
        Topic("Memory of AGCN", "Bytes of tensors.", measure_memory()),
    ]


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
    sides = {
        (f"ACM and `{preset}` adjacency", n): statistics_step(n, preset)
        for preset in ("paper", "official")
        for n in SIZES
    }
    sides |= {("with the GCN", n): graph_step(n, FEATURES) for n in (SIZES[0], SIZES[-1])}
    seconds = best_times(sides, repeats)
    few = SIZES[0]
    return [
        Row(f"{what}, {n:,} / {few} classes", taken / seconds[what, few], (n / few) ** 2)
        for (what, n), taken in seconds.items()
        if n > few
    ]


def measure_memory() -> list[Row]:
    strategy, benchmark = make_method(AGCN, "resnet18", BATCH), noise_benchmark(BATCH)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    extra = bytes_of(strategy.agcn.state_dict()) + bytes_of(strategy.acm.state_dict())
    acm, targets, soft = matrix_with(SIZES[0])
    before = bytes_of(acm.state_dict())
    for _ in range(1000):
        acm.update(targets, soft)
    growth, share = bytes_of(acm.state_dict()) / before, extra / bytes_of(strategy.model.state_dict())
    return [
        Row(
            "teacher and statistics / model, ResNet-18",
            share,
            1.01,
            note="the teacher is a copy of the model",
        ),
        Row("statistics after 8,000 more images / before", growth, 1.0, note="statistics are sums"),
    ]


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


def bytes_of(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=5))
