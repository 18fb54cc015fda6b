"""Multi-Task: training on all images and labels at once, the upper bound."""

from collections.abc import Iterable, Sequence
from typing import Any

from avalanche.benchmarks.scenarios.generic_scenario import EagerCLStream

from avalanche_agcn.benchmarks.experience import MultiLabelExperience
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.methods.streaming_ridge import StreamingRidge
from avalanche_agcn.training.template import MultiLabelTemplate


class TrainsJointly:
    """Mixin of strategies that train on all images of the stream at once: ``strategy.train(benchmark)``."""

    def train(
        self, experiences: Any, eval_streams: Sequence[Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Train on a benchmark, or on an experience from `multi_task_experience`."""
        if not isinstance(experiences, Iterable) and hasattr(experiences, "complete_train_dataset"):
            experiences = multi_task_experience(experiences)
        for experience in experiences if isinstance(experiences, Iterable) else [experiences]:
            targets = experience.dataset.targets[:]
            n_labelled = getattr(experience, "n_own_classes", targets.shape[1])
            if targets.isnan().any() or n_labelled < targets.shape[1]:
                raise ValueError(
                    "Multi-Task needs all labels of every image, but the stream has only some of them: call "
                    "train(benchmark), not train(benchmark.train_stream)."
                )
        return super().train(experiences, eval_streams, **kwargs)  # type: ignore[misc]


class MultiTask(TrainsJointly, MultiLabelTemplate):
    """Trains on all images and labels at once: the paper's upper bound."""


class MultiTaskRidge(TrainsJointly, StreamingRidge):
    """Ridge regression on all images and labels at once: the upper bound of `StreamingRidge`, without γ."""


def multi_task_experience(benchmark: MultiLabelBenchmark) -> MultiLabelExperience:
    """One experience of all training images, each once, with all their labels."""
    experience = MultiLabelExperience(
        dataset=benchmark.complete_train_dataset,
        current_experience=0,
        own_columns=range(benchmark.n_classes),
        n_classes=benchmark.n_classes,
    )
    EagerCLStream("train", [experience])  # names the experience's stream, as metrics need it
    return experience
