"""Multi-Task, the upper bound."""

from collections.abc import Iterable, Sequence
from typing import Any

from avalanche.benchmarks.scenarios.generic_scenario import EagerCLStream

from avalanche_agcn.benchmarks.experience import MultiLabelExperience
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.training.strategies.base import MultiLabelTemplate
from avalanche_agcn.training.strategies.streaming_ridge import StreamingRidge


class TrainsJointly:
    """A mixin of strategies: trains on all images of the stream at once, with all their labels.

    Give `train` the benchmark: ``strategy.train(benchmark)``. Evaluation is as for the other strategies.
    """

    def train(
        self, experiences: Any, eval_streams: Sequence[Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Train on a benchmark, or on an experience from `multi_task_experience`.

        Raises:
            ValueError: if labels are missing, as they are in the experiences of a train stream.
        """
        if not isinstance(experiences, Iterable) and hasattr(experiences, "complete_train_dataset"):
            experiences = multi_task_experience(experiences)
        for experience in experiences if isinstance(experiences, Iterable) else [experiences]:
            _check_complete_labels(experience)
        return super().train(experiences, eval_streams, **kwargs)  # type: ignore[misc]


class MultiTask(TrainsJointly, MultiLabelTemplate):
    """Trains on all images and labels at once: the paper's upper bound. Args: see `MultiLabelTemplate`."""


class MultiTaskRidge(TrainsJointly, StreamingRidge):
    """Ridge regression on all images and labels at once: the upper bound of `StreamingRidge`.

    Args: see `StreamingRidge`; γ has no effect.
    """


def multi_task_experience(benchmark: MultiLabelBenchmark) -> MultiLabelExperience:
    """One experience of all training images, each once, with all their labels.

    Example:
        >>> from avalanche_agcn.benchmarks.scenes import SplitScenes
        >>> benchmark = SplitScenes(n_classes=4, n_experiences=2, n_train=40, n_test=10)
        >>> experience = multi_task_experience(benchmark)
        >>> len(experience.dataset), experience.classes_seen_so_far
        (40, [0, 1, 2, 3])
    """
    experience = MultiLabelExperience(
        dataset=benchmark.complete_train_dataset,
        current_experience=0,
        own_columns=range(benchmark.n_classes),
        n_classes=benchmark.n_classes,
    )
    EagerCLStream("train", [experience])  # names the experience's stream, as metrics need it
    return experience


def _check_complete_labels(experience: Any) -> None:
    targets = experience.dataset.targets[:]
    n_labelled = getattr(experience, "n_own_classes", targets.shape[1])
    if targets.isnan().any() or n_labelled < targets.shape[1]:
        raise ValueError(
            "Multi-Task needs all labels of every image, but these are partly unknown. What the stream "
            "shows is not the upper bound: call train(benchmark), not train(benchmark.train_stream)."
        )
