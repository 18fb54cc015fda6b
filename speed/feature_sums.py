"""Cost of statistics instead of stored images: negatives in AGCN's step, sums, and the closed-form solution.

python speed/feature_sums.py
"""

import argparse
from typing import Any

import torch
from measure import Row, Topic, best_times, run_script
from steps import make_method, noise_benchmark, step_times

from avalanche_agcn.training import AGCN, FeatureStatistics
from avalanche_agcn.training.plugins import StatisticalNegativesPlugin
from avalanche_agcn.training.statistics.ridge import solve_ridge

NETWORK, BATCH, WIDTH = "efficientnet_lite0", 8, 1280
N_OLDER = 5  # in the last of six experiences
SOLVED_WIDTH, SOLVED_CLASSES = 2048, 2000


class FilledPlugin(StatisticalNegativesPlugin):
    """The plugin in the last of six experiences."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Open the experience, and draw the Gaussians of the earlier ones."""
        super().before_training_exp(strategy, **kwargs)
        factor = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        covariances = (factor @ factor.T).repeat(N_OLDER, 1, 1)
        self._older = [torch.randn(N_OLDER, WIDTH), covariances, torch.full((N_OLDER,), 1000)]


def measure(arguments: argparse.Namespace) -> list[Topic]:
    sums = [measure_memory()]
    if not arguments.quick:
        sums += measure_solution(arguments.repeats)
    return [
        Topic(
            "Negatives from statistics",
            f"In AGCN's step with {NETWORK} at 128 px, batch {BATCH}, {WIDTH} features.",
            [measure_step(arguments.repeats)],
        ),
        Topic(
            "Sums and their solution",
            "Sums in float64; λ by generalised cross-validation, one eigendecomposition per experience.",
            sums,
        ),
    ]


def measure_step(repeats: int) -> Row:
    sides = {
        "without": make_method(AGCN, NETWORK, BATCH),
        "with": make_method(AGCN, NETWORK, BATCH, {"plugins": [FilledPlugin()]}),
    }
    seconds = step_times(sides, noise_benchmark(BATCH), repeats)
    what = f"AGCN's step with negatives of {N_OLDER} older experiences / without"
    return Row(what, seconds["with"] / seconds["without"], 1.15, note="the whole network is trained")


def measure_memory() -> Row:
    statistics = random_statistics(WIDTH, [3] * 6)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in statistics.state_dict().values())
    return Row("bytes of the sums of 6 experiences / T·D²·8", stored / (6 * WIDTH**2 * 8), 0.53)


def measure_solution(repeats: int) -> list[Row]:
    statistics = random_statistics(SOLVED_WIDTH, [SOLVED_CLASSES])
    sides = {
        "by cross-validation": lambda: solve_ridge(statistics),
        "with λ given": lambda: solve_ridge(statistics, ridge=3000.0),
    }
    times = best_times(sides, min(repeats, 2))
    what = f"solving {SOLVED_CLASSES} classes of {SOLVED_WIDTH} features"
    return [Row(f"{what}, {name}", seconds, 10, unit=" s") for name, seconds in times.items()]


def random_statistics(width: int, class_counts: list[int], n: int = 3000) -> FeatureStatistics:
    statistics = FeatureStatistics()
    for n_classes in class_counts:
        statistics.begin(n_classes)
        statistics.update(torch.randn(n, width), (torch.rand(n, n_classes) < 0.1).float())
    statistics.flush()
    return statistics


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=5))
