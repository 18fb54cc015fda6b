"""Strategies with the same network and optimizer, and the time of their training steps."""

import statistics
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
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


def make_plain(network: str, batch: int, **backbone_options: Any) -> Naive:
    """Avalanche's own strategy with a linear classifier, the baseline of all steps."""
    return make_method(Naive, network, batch, {"criterion": PartialBCEWithLogitsLoss()}, **backbone_options)


def make_method(
    method: Any, network: str, batch: int, settings: Mapping[str, Any] | None = None, **backbone_options: Any
) -> Any:
    """A strategy with settings of its own; all else is the same for all strategies."""
    options = {"channels_last": True, **backbone_options}  # as in the runs
    backbone = create_backbone(network, pretrained=False, **options)
    model: Any
    if method in (AGCN, CSC):
        model = AGCNModel(backbone, torch.randn(N_OLD + N_NEW, WORD_DIMENSION))
        optimizer = Adam(model.parameter_groups(), fused=True)
    else:
        model = MultiLabelClassifier(backbone, N_OLD + N_NEW)
        optimizer = Adam(model.parameters(), lr=1e-4, fused=True)
    return method(
        model=model,
        optimizer=optimizer,
        train_mb_size=batch,
        evaluator=EvaluationPlugin(),
        **(settings or {}),
    )


class StepStart(SupervisedPlugin):
    """The first plugin of a strategy: notes when a step starts, after the batch was loaded."""

    time = 0.0

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.time = now()


class StepEnd(SupervisedPlugin):
    """The last plugin of a strategy: notes how long each step took, with all plugins."""

    def __init__(self, start: StepStart) -> None:
        super().__init__()
        self.start = start
        self.steps: list[float] = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Note the seconds of the step."""
        self.steps.append(now() - self.start.time)


def step_times(
    strategies: Mapping[str, Any], benchmark: MultiLabelBenchmark, repeats: int
) -> dict[str, float]:
    """Seconds per step of each strategy in the second experience: the best turn's median."""
    experiences, ends = {}, {}
    for name, strategy in strategies.items():
        experiences[name] = _timed_experience(strategy, benchmark)
        start = StepStart()
        ends[name] = StepEnd(start)
        strategy.plugins = [start, *strategy.plugins, ends[name]]
    medians: dict[str, list[float]] = {name: [] for name in strategies}
    for _ in range(repeats):
        for name, strategy in strategies.items():
            ends[name].steps.clear()
            strategy.train(experiences[name], eval_streams=[])
            medians[name].append(statistics.median(ends[name].steps))
    return {name: min(taken) for name, taken in medians.items()}


def _timed_experience(strategy: Any, benchmark: MultiLabelBenchmark) -> Any:
    """The second experience, after training on the first; for joint training, images with all labels."""
    if isinstance(strategy, TrainsJointly):
        images = benchmark.complete_train_dataset.subset(range(strategy.train_mb_size * STEPS))
        return multi_task_experience(
            SimpleNamespace(complete_train_dataset=images, n_classes=benchmark.n_classes)
        )
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    return benchmark.train_stream[1]
