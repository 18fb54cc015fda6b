"""Steps of Avalanche strategies, timed from within."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate
from measure import now
from torch.optim import Adam
from torch.utils.data import Dataset

from avalanche_agcn.benchmarks import MultiLabelBenchmark, multilabel_benchmark
from avalanche_agcn.models import AGCNModel, Backbone, MultiLabelClassifier, create_backbone
from avalanche_agcn.training import AGCN, CSC, PartialBCEWithLogitsLoss

NETWORKS = {"efficientnet_lite0": "EfficientNet-Lite0", "resnet18": "ResNet-18"}
IMAGE_SIZE = 128
N_OLD, N_NEW = 36, 4  # Split-COCO's last experience
N_FIRST = 16  # images of the first experience: enough for a memory to replay from
WORD_DIMENSION = 300
STEPS = 3  # a turn

HOOKS = (
    "before_training_iteration",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_update",
    "after_update",
    "after_training_iteration",
)
"""Avalanche's, in the order of a step."""


class Noise(Dataset):
    """Images of noise: a few for the old classes, then those of the experience that is timed."""

    def __init__(self, n_timed: int) -> None:
        first, classes = torch.arange(N_FIRST)[:, None], torch.arange(N_OLD + N_NEW)
        old = ((classes % N_FIRST == first) & (classes < N_OLD)).long()
        self.targets = torch.cat([old, (classes >= N_OLD).long().expand(n_timed, -1)])
        self.image = torch.randn(3, IMAGE_SIZE, IMAGE_SIZE)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.image, self.targets[index]


def noise_benchmark(batch: int) -> MultiLabelBenchmark:
    """Two experiences; the second has `STEPS` batches."""
    return multilabel_benchmark(Noise(batch * STEPS), Noise(8), classes_per_experience=[N_OLD, N_NEW])


def make_plain(network: str, batch: int, **backbone: Any) -> Naive:
    """Avalanche's own strategy over a linear classifier: what a step is compared with."""
    model = MultiLabelClassifier(_make_backbone(network, backbone), N_OLD + N_NEW)
    return Naive(
        model=model,
        optimizer=Adam(model.parameters(), lr=1e-4, fused=True),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=batch,
        evaluator=EvaluationPlugin(),
    )


def make_method(
    method: Any, network: str, batch: int, settings: Mapping[str, Any] | None = None, **backbone: Any
) -> Any:
    """A strategy of the package over the same network."""
    body = _make_backbone(network, backbone)
    if method in (AGCN, CSC):
        model: Any = AGCNModel(body, torch.randn(N_OLD + N_NEW, WORD_DIMENSION))
        optimizer = Adam(model.parameter_groups(), fused=True)
    else:
        model = MultiLabelClassifier(body, N_OLD + N_NEW)
        optimizer = Adam(model.parameters(), lr=1e-4, fused=True)
    return method(
        model=model,
        optimizer=optimizer,
        train_mb_size=batch,
        evaluator=EvaluationPlugin(),
        **(settings or {}),
    )


def _make_backbone(network: str, settings: Mapping[str, Any]) -> Backbone:
    return create_backbone(network, **{"channels_last": True, **settings})  # as in the runs


class Stopwatch:
    """Times what a strategy does between its hooks, without the loading of data.

    Two plugins, before and behind all others, note the time at every hook. So a step ends when the last
    plugin is done, and what plugins do within a hook is told apart from what the strategy does between.
    """

    def __init__(self, strategy: SupervisedTemplate) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.steps: list[float] = []
        self._start = self._last = 0.0
        first, last = SupervisedPlugin(), SupervisedPlugin()
        for hook in HOOKS:
            setattr(first, hook, partial(self._note, f"until {hook}"))
            setattr(last, hook, partial(self._note, f"plugins {hook}"))
        strategy.plugins = [first, *strategy.plugins, last]

    def _note(self, part: str, *args: Any, **kwargs: Any) -> None:
        time = now()
        if part == f"until {HOOKS[0]}":
            self._start = time
        else:
            self.parts[part].append(time - self._last)
        if part == f"plugins {HOOKS[-1]}":
            self.steps.append(time - self._start)
        self._last = time


def step_times(
    strategies: Mapping[str, Any], experiences: Mapping[str, Any], repeats: int
) -> dict[str, float]:
    """Seconds of a step of each strategy: the median of a turn, and the best of the turns.

    Args:
        strategies: By name; they have been trained on what comes before.
        experiences: What each is trained on, again in every turn.
        repeats: How many turns.
    """
    watches = {name: Stopwatch(strategy) for name, strategy in strategies.items()}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for name, strategy in strategies.items():
            watches[name].steps.clear()
            strategy.train(experiences[name], eval_streams=[])
            times[name].append(statistics.median(watches[name].steps))
    return {name: min(medians) for name, medians in times.items()}
