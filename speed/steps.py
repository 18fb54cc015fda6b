"""Timing of the training steps of Avalanche strategies, by plugins."""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
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
from avalanche_agcn.methods.multi_task import TrainsJointly, multi_task_experience
from avalanche_agcn.models import AGCNModel, MultiLabelClassifier, create_backbone
from avalanche_agcn.training import AGCN, CSC, PartialBCEWithLogitsLoss

NETWORKS = {"efficientnet_lite0": "EfficientNet-Lite0", "resnet18": "ResNet-18"}
IMAGE_SIZE = 128
N_OLD, N_NEW = 36, 4  # as in Split-COCO's last experience
N_FIRST = 16  # images of the first experience: enough for a memory to replay from
WORD_DIMENSION = 300
STEPS = 3  # per turn

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
"""Avalanche's hooks, in the order of a step."""


class Noise(Dataset):
    """Images of noise: a few of the old classes, then those of the timed experience."""

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
    """Avalanche's own strategy with a linear classifier, the baseline of all steps."""
    return make_method(Naive, network, batch, {"criterion": PartialBCEWithLogitsLoss()}, **backbone)


def make_method(
    method: Any, network: str, batch: int, settings: Mapping[str, Any] | None = None, **backbone: Any
) -> Any:
    """A strategy with the same network and optimizer."""
    body = create_backbone(network, **{"channels_last": True, **backbone})  # as in the runs
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


class Stopwatch:
    """Times the parts of a strategy's steps, without loading data.

    Two plugins, the first and the last of the strategy, record the time at every hook. So a step ends after
    the last plugin, and time spent by plugins within a hook is told apart from time spent between hooks.
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
    strategies: Mapping[str, Any], benchmark: MultiLabelBenchmark, repeats: int
) -> dict[str, float]:
    """Seconds per step of each strategy in the second experience: the best turn's median."""
    experiences = {name: _timed_experience(strategy, benchmark) for name, strategy in strategies.items()}
    watches = {name: Stopwatch(strategy) for name, strategy in strategies.items()}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for name, strategy in strategies.items():
            watches[name].steps.clear()
            strategy.train(experiences[name], eval_streams=[])
            times[name].append(statistics.median(watches[name].steps))
    return {name: min(medians) for name, medians in times.items()}


def _timed_experience(strategy: Any, benchmark: MultiLabelBenchmark) -> Any:
    """The second experience, after training on the first; for joint training, images with all labels."""
    if isinstance(strategy, TrainsJointly):
        images = benchmark.complete_train_dataset.subset(range(strategy.train_mb_size * STEPS))
        return multi_task_experience(
            SimpleNamespace(complete_train_dataset=images, n_classes=benchmark.n_classes)
        )
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    return benchmark.train_stream[1]
