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
from torch.utils.data import TensorDataset

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


def noise_benchmark(batch: int) -> MultiLabelBenchmark:
    """Images of noise in two experiences; the second, which is timed, has `STEPS` batches."""
    classes = torch.arange(N_OLD + N_NEW)
    old = (classes % N_FIRST == torch.arange(N_FIRST)[:, None]) & (classes < N_OLD)
    new = (classes >= N_OLD).expand(batch * STEPS, -1)
    targets = torch.cat([old, new]).long()
    images = TensorDataset(torch.randn(3, IMAGE_SIZE, IMAGE_SIZE).expand(len(targets), -1, -1, -1))
    images.targets = targets
    return multilabel_benchmark(images, images, classes_per_experience=[N_OLD, N_NEW])


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
    evaluator = EvaluationPlugin()
    return method(
        model=model, optimizer=optimizer, train_mb_size=batch, evaluator=evaluator, **(settings or {})
    )


class Clock(SupervisedPlugin):
    """Notes when steps start, after their batch is loaded, and when they end."""

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Forget earlier steps."""
        self.starts: list[float] = []
        self.ends: list[float] = []

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.starts.append(now())

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.ends.append(now())


def step_times(
    strategies: Mapping[str, Any], benchmark: MultiLabelBenchmark, repeats: int
) -> dict[str, float]:
    """Seconds per step of each strategy in the second experience: the best turn's median."""
    medians: dict[str, list[float]] = {name: [] for name in strategies}
    experiences = {name: _timed_experience(strategy, benchmark) for name, strategy in strategies.items()}
    for strategy in strategies.values():
        strategy.plugins = [Clock(), *strategy.plugins, Clock()]  # a step includes all other plugins
    for _ in range(repeats):
        for name, strategy in strategies.items():
            strategy.train(experiences[name], eval_streams=[])
            first, *_, last = strategy.plugins
            steps = [end - start for start, end in zip(first.starts, last.ends, strict=True)]
            medians[name].append(statistics.median(steps))
    return {name: min(taken) for name, taken in medians.items()}


def _timed_experience(strategy: Any, benchmark: MultiLabelBenchmark) -> Any:
    """The second experience, after training on the first; for joint training, images with all labels."""
    if isinstance(strategy, TrainsJointly):
        images = benchmark.complete_train_dataset.subset(range(strategy.train_mb_size * STEPS))
        joint = SimpleNamespace(complete_train_dataset=images, n_classes=benchmark.n_classes)
        return multi_task_experience(joint)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    return benchmark.train_stream[1]
