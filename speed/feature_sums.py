"""Cost of statistics instead of stored images: negatives in AGCN's step, sums, and the closed-form solution.

python speed/feature_sums.py
"""

import argparse
from typing import Any

import torch
from measure import Row, Topic, best_times, run_script
from steps import make_method, noise_benchmark, step_times
from torch import Tensor

from avalanche_agcn.training import AGCN
from avalanche_agcn.training.feature_statistics import FeatureStatistics
from avalanche_agcn.training.losses import statistical_negative_loss
from avalanche_agcn.training.plugins import StatisticalNegativesPlugin
from avalanche_agcn.training.ridge import solve_ridge

NETWORK, BATCH, WIDTH = "efficientnet_lite0", 8, 1280
N_OLDER = 5  # in the last of six experiences
N_NEW = 4
SOLVED_WIDTH, SOLVED_CLASSES = 2048, 2000


class FilledPlugin(StatisticalNegativesPlugin):
    """The plugin in the last of six experiences."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Open the experience, and draw the Gaussians of the earlier ones."""
        super().before_training_exp(strategy, **kwargs)
        self._older = [*random_gaussians(N_OLDER)]


def measure(arguments: argparse.Namespace) -> list[Topic]:
    return [
        Topic(
            "Negatives from statistics",
            f"In AGCN's step with {NETWORK} at 128 px, batch {BATCH}, {WIDTH} features.",
            [*measure_step(arguments.repeats), *measure_growth(arguments.repeats)],
        ),
        Topic(
            "Sums and their solution",
            "Sums in float64; λ by generalised cross-validation, one eigendecomposition per experience.",
            [*measure_memory(), *([] if arguments.quick else measure_solution(arguments.repeats))],
        ),
    ]


def measure_step(repeats: int) -> list[Row]:
    sides = {"without": make_method(AGCN, NETWORK, BATCH)}
    sides["with"] = make_method(AGCN, NETWORK, BATCH, {"plugins": [FilledPlugin()]})
    seconds = step_times(sides, noise_benchmark(BATCH), repeats)
    what = f"AGCN's step with negatives of {N_OLDER} older experiences / without"
    return [Row(what, seconds["with"] / seconds["without"], 1.15, note="the whole network is trained")]


def measure_growth(repeats: int) -> list[Row]:
    few = (N_OLDER, N_NEW)
    notes = {(39, N_NEW): "eight times the experiences", (39, 50): "and twelve times the classes"}
    times = best_times({size: negatives(*size) for size in (few, *notes)}, repeats)
    what = f"negatives of {{}} older experiences and {{}} new classes / {N_OLDER} and {N_NEW}"
    return [Row(what.format(*size), times[size] / times[few], note=note) for size, note in notes.items()]


def negatives(n_older: int, n_new: int) -> Any:
    gaussians = random_gaussians(n_older)
    weight = torch.randn(n_new, WIDTH, requires_grad=True)
    return lambda: statistical_negative_loss(weight, None, *gaussians).backward()


def random_gaussians(n: int) -> tuple[Tensor, Tensor, Tensor]:
    factor = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    return torch.randn(n, WIDTH), (factor @ factor.T).repeat(n, 1, 1), torch.full((n,), 1000)


def measure_memory() -> list[Row]:
    statistics = random_statistics(WIDTH, [3] * 6)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in statistics.state_dict().values())
    return [Row("bytes of the sums of 6 experiences / T·D²·8", stored / (6 * WIDTH**2 * 8), 1.05)]


def measure_solution(repeats: int) -> list[Row]:
    statistics = random_statistics(SOLVED_WIDTH, [SOLVED_CLASSES])
    sides = {
        "by cross-validation": lambda: solve_ridge(statistics),
        "with λ given": lambda: solve_ridge(statistics, ridge=3000.0),
    }
    times = best_times(sides, min(repeats, 2))
    what = f"solving {SOLVED_CLASSES} classes of {SOLVED_WIDTH} features"
    return [Row(f"{what}, {name}", seconds, 10, unit=" s") for name, seconds in times.items()]


def random_statistics(width: int, sizes: list[int], n: int = 3000) -> FeatureStatistics:
    statistics = FeatureStatistics()
    for size in sizes:
        statistics.begin(size)
        statistics.update(torch.randn(n, width), (torch.rand(n, size) < 0.1).float())
    statistics.flush()
    return statistics


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=5))
