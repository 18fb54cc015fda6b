"""Plugins that add the features and labels of the stream to sums, and where these features come from."""

import hashlib
import warnings
from typing import Any, NamedTuple

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import check_no_skipped_experience, count_seen, origin_of
from avalanche_agcn.models.forward import OutputRecorder, digest_weights, unwrap
from avalanche_agcn.training.loader import Key, StreamDataset
from avalanche_agcn.training.memory import check_replay_is_known
from avalanche_agcn.training.plugin import MultiLabelPlugin
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.teacher import FrozenTeacher


class FeatureCollector(MultiLabelPlugin):
    """Base of plugins that add the features and labels of each image of the stream to sums, once.

    Features are those that the model computed for its logits. Replayed images, further views and later epochs
    do not count.
    """

    statistics: Any
    """The sums."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher: FrozenTeacher | None = None  # its features, if any, are added instead of the model's
        self.features: Tensor | None = None  # of the current batch, [B, D]
        self._recorder = OutputRecorder()
        # Experiences, or pieces of online streams, by `number_of`:
        self._counted: list[tuple[int, int]] = []  # whose images are all in the sums
        self.started: tuple[int, int] | None = None  # the last one that this process started
        self.ended: set[tuple[int, int]] = set()  # those that this process finished

    @property
    def own_columns(self) -> slice:
        """Columns of the last experience in the sums; its end is the number of classes counted."""
        return slice(self.statistics.n_old, self.statistics.n_seen)

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience, unless it is open already; one that was interrupted starts again."""
        check_replay_is_known(strategy)
        experience = strategy.experience
        number, n_counted = number_of(experience), self.own_columns.stop
        if count_seen(experience) > n_counted:
            check_no_skipped_experience(experience, n_counted, type(self).__name__)
            self._open(experience, n_counted)
        elif number in self.ended:
            warnings.warn(
                f"The images of experience {number[0]} are in the sums already; they are not added again.",
                stacklevel=2,
            )
        elif number == self.started and number not in self._counted and origin_of(experience) is experience:
            self.statistics.restart()
        self.started = number

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._recorder.start(unwrap(strategy.model).backbone)

    def after_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Keep the recorded features for the end of the step."""
        self.features = self._recorder.stop().detach()

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the batch to the sums."""
        if number_of(strategy.experience) not in self._counted:
            features = self.features if self.teacher is None else self.teacher.features(strategy)
            self.statistics.update(features, strategy.mb_y[:, self.own_columns])

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note that all images of the experience are counted."""
        self.features = None
        number = number_of(strategy.experience)
        if number not in self._counted:
            self._counted.append(number)
            self.synchronize(strategy)
            self.statistics.flush()

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note that the experience has ended."""
        self.ended.add(number_of(strategy.experience))

    def synchronize(self, strategy: SupervisedTemplate) -> None:
        """Collective: add up the sums of all processes."""
        self.statistics.synchronize()

    def _open(self, experience: Any, n_old: int) -> None:
        """Open an experience in the sums, which have the first ``n_old`` classes."""
        raise NotImplementedError


def number_of(experience: Any) -> tuple[int, int]:
    """Number of an experience, and of its piece: pieces of online streams may be counted from 0 each time."""
    return origin_of(experience).current_experience, experience.current_experience


class FeatureStatisticsPlugin(FeatureCollector):
    """Adds features and labels to `FeatureStatistics`.

    A `DriftCompensationPlugin` replaces the model's features by those of its teacher.
    """

    def __init__(self) -> None:
        super().__init__()
        self.statistics = FeatureStatistics()
        self.provenance: Provenance | None = None  # of the features; None before training

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience, and note where its features come from."""
        model = unwrap(strategy.model)
        if not (hasattr(model, "backbone") and hasattr(model, "classifiers")):
            raise TypeError(
                f"{type(self).__name__} needs a model with a backbone and one weight vector per class, not "
                f"{type(model).__name__}: use MultiLabelClassifier or AGCNModel."
            )
        super().before_training_exp(strategy, **kwargs)
        if self.provenance is None:
            amp = getattr(strategy, "amp", None)
            self.provenance = Provenance.of(model.backbone, strategy.experience, amp)

    def _open(self, experience: Any, n_old: int) -> None:
        self.statistics.begin(count_seen(experience) - n_old)

    def state_dict(self) -> dict[str, Any]:
        """The sums, see `FeatureStatistics`, and where they come from."""
        return {
            "statistics": self.statistics.state_dict(),
            "counted": [list(number) for number in self._counted],
            "provenance": None if self.provenance is None else list(self.provenance),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        self._counted = [(origin, piece) for origin, piece in state["counted"]]
        self.provenance = None if state["provenance"] is None else Provenance(*state["provenance"])
        self.statistics.load_state_dict(state["statistics"])


class Provenance(NamedTuple):
    """What sums of features were computed with, as plain values."""

    network: str  # digest of the backbone's structure and weights
    transform: str  # description of the transform of training images
    classes: str  # their names in order of appearance
    precision: str  # type of half precision, or None
    random: bool  # whether the transform draws random numbers

    @classmethod
    def of(cls, backbone: nn.Module, experience: Any, amp: torch.dtype | None) -> "Provenance":
        """The provenance of features of an experience's images."""
        benchmark = getattr(getattr(origin_of(experience), "origin_stream", None), "benchmark", None)
        return cls(
            network=digest_module(backbone),
            transform=repr(getattr(getattr(benchmark, "plan", None), "train_transform", None)),
            classes=", ".join(getattr(benchmark, "class_names", None) or ["unnamed"]),
            precision=str(amp),
            random=is_random(experience.dataset.train()),
        )


def digest_module(module: nn.Module) -> str:
    """Digest of a module's structure, weights and buffers."""
    return hashlib.sha256(f"{module!r}\n{digest_weights(module)}".encode()).hexdigest()[:16]


def is_random(dataset: Any) -> bool:
    """Whether the images of a dataset depend on random numbers, judged by its first images."""
    loader = StreamDataset({0: dataset})
    for index in range(min(8, len(dataset))):
        first, *others = (loader.__getitems__([Key(0, index, seed)])[0][0] for seed in range(4))
        if any(not torch.equal(torch.as_tensor(first), torch.as_tensor(other)) for other in others):
            return True
    return False
