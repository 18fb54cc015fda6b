"""Plugins that add the features and labels of the stream to sums."""

import warnings
from typing import Any

from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from avalanche_agcn.benchmarks.experience import origin_of
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.statistics.compact import StatisticsKind, make_statistics
from avalanche_agcn.training.statistics.counter import Fingerprint, StreamCounter, fingerprint
from avalanche_agcn.training.statistics.features import FeatureStatistics
from avalanche_agcn.training.statistics.places import ImagePlaces, labelled_experiences
from avalanche_agcn.training.statistics.provenance import Provenance, find_plans
from avalanche_agcn.training.teacher import FrozenTeacher


class FeatureCollector(StreamCounter):
    """Base of plugins that add the features and labels of each image of the stream to sums, once.

    Features are those that the model computed for its logits. Replayed images, further views and later epochs
    do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.teacher: FrozenTeacher | None = None  # its features, if any, are added instead of the model's
        self.features: Tensor | None = None  # of the current batch, [B, D]
        self._recorder = OutputRecorder()
        # Experiences, or pieces of online streams, whose images are all in the sums. In states of earlier
        # versions, the number of the experience and that of the piece are in place of a fingerprint.
        self._counted: list[Fingerprint] = []

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._recorder.start(unwrap(strategy.model).backbone)

    def after_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Keep the recorded features for the end of the step."""
        self.features = self._recorder.stop().detach()

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the batch to the sums."""
        if self.counting:
            features = self.features if self.teacher is None else self.teacher.features(strategy)
            self._add(features, strategy.mb_y[:, self.columns])

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Stop counting after the first epoch: later ones would count each image again."""
        self.features = None
        if not self.counting or self._running is None:
            return
        # Training that was stopped within the last batch has still seen all images.
        has_seen_all = strategy.clock.train_epoch_iterations == len(strategy.dataloader)
        if has_seen_all or not strategy._stop_training:
            self._counted.append(self._running)
        self.counting = False
        self.synchronize(strategy)
        self.statistics.flush()

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note that the experience has ended; one that was stopped starts again if it is trained on again."""
        started = self._running, self._before
        super().after_training_exp(strategy, **kwargs)
        if self._counts_running and started[0] not in self._counted:
            self._running, self._before = started

    def synchronize(self, strategy: SupervisedTemplate) -> None:
        """Collective: add up the sums of all processes."""
        self.statistics.synchronize()

    def _add(self, features: Any, targets: Tensor) -> None:
        """Add images of the current experience, with its columns of the targets."""
        self.statistics.update(features, targets)

    def _start_again(self, images: Fingerprint) -> None:
        if images in self._counted:  # it was interrupted in a later epoch
            self._counted.remove(images)
        super()._start_again(images)

    def _are_counted(self, experience: Any, images: Fingerprint) -> bool:
        number = origin_of(experience).current_experience
        n_forgotten = n_images = 0
        if images in self._counted:
            n_forgotten, n_images = self._count_forgotten(experience)
        if n_forgotten and n_forgotten == n_images:  # all can be added again
            self._counted.remove(images)
        if images not in self._counted and (number, experience.current_experience) not in self._counted:
            return True
        problem = f"The images of experience {number} are in the sums already; they are not added again."
        if n_forgotten:
            problem = (
                f"The images of experience {number} are in the sums, except {n_forgotten} that were "
                "forgotten; none is added. To add these again, train on an experience of them alone."
            )
        if n_forgotten or not self.resumed:  # it may have been interrupted in a later epoch
            warnings.warn(problem, stacklevel=4)
        return False

    def _count_forgotten(self, experience: Any) -> tuple[int, int]:
        """How many images of an experience were removed from the sums, and how many it has."""
        return 0, len(experience.dataset)


class FeatureStatisticsPlugin(FeatureCollector):
    """Adds features and labels to `FeatureStatistics`.

    Other images of classes that were counted before, as of another benchmark, are added to their sums. A
    `DriftCompensationPlugin` replaces the model's features by those of its teacher.

    ``statistics`` is ``"exact"``, or ``"compact"`` for about a tenth of the bytes (`CompactStatistics`).
    """

    def __init__(self, *, statistics: StatisticsKind = "exact") -> None:
        super().__init__()
        self.statistics = make_statistics(statistics)
        self.provenance: Provenance | None = None  # of the features; None before training
        self._places = ImagePlaces()

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience, and note where its features come from."""
        model = unwrap(strategy.model)
        if not (hasattr(model, "backbone") and hasattr(model, "classifiers")):
            raise TypeError(
                f"{type(self).__name__} needs a model with a backbone and one weight vector per class, not "
                f"{type(model).__name__}: use MultiLabelClassifier or AGCNModel."
            )
        super().before_training_exp(strategy, **kwargs)
        if getattr(strategy, "trains_network", True):  # others compute features in evaluation mode
            _warn_of_batch_normalisation(model.backbone)
        experience = strategy.experience
        is_whole = origin_of(experience) is experience
        if self.provenance is None or (self.counting and is_whole):
            found = Provenance.of(model.backbone, experience, getattr(strategy, "amp", None))
            self.provenance = found if self.provenance is None else self.provenance.joined(found)

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note that all images of the experience are counted, and where they are."""
        if self.counting:
            dataset = strategy.experience.dataset
            plans = find_plans(dataset)
            may_return = any(plan is not None and plan.protocol.repeat_images for plan in plans)
            self._places.add(dataset, self.block, may_return=may_return)
        super().after_training_epoch(strategy, **kwargs)

    def merge(self, other: "FeatureStatisticsPlugin") -> None:
        """Add the images of another plugin, whose provenance must be the same and whose images others."""
        older = range(self.statistics.n_experiences)  # first numbers in states of earlier versions
        shared = [one for one in self._counted if one in other._counted and one[0] not in older]
        if shared:
            raise ValueError(
                f"Both were trained on the images of {len(shared)} of {len(other._counted)} experiences or "
                "pieces of online streams, by names and labels, which would count twice: merge strategies "
                "that were trained on different images. If these are different ones, give them other names."
            )
        self.statistics.merge(other.statistics)
        self._counted += other._counted
        self._places.merge(other._places)

    def remaining_places(self, dataset: Any) -> dict[str, list[int]]:
        """Where images of a dataset would still be after its removal: experiences by name."""
        return self._places.remaining(self._experiences_of(dataset))

    def forget(self, removed: FeatureStatistics, dataset: Any) -> None:
        """Subtract the sums of a dataset's images, all or none of them."""
        self.statistics.subtract(removed)
        self._places.forget(dataset, self._experiences_of(dataset))
        images = fingerprint(dataset, contents=True)
        if images in self._counted:  # they may be added again
            self._counted.remove(images)

    def state_dict(self) -> dict[str, Any]:
        """The sums, see `FeatureStatistics`, and where they come from."""
        return {
            "statistics": super().state_dict(),
            "counted": [list(images) for images in self._counted],
            "provenance": None if self.provenance is None else list(self.provenance),
            **self._places.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums."""
        super().load_state_dict(state["statistics"])
        self._counted = [(first, second) for first, second in state["counted"]]
        self.provenance = None if state["provenance"] is None else Provenance(*state["provenance"])
        self._places.load_state_dict(state)

    def _count_forgotten(self, experience: Any) -> tuple[int, int]:
        return self._places.count_forgotten(experience.dataset)

    def _experiences_of(self, dataset: Any) -> dict[str, set[int]]:
        n_experiences = self.statistics.n_experiences
        return labelled_experiences(dataset, [self.statistics.columns(t) for t in range(n_experiences)])

    def _add(self, features: Any, targets: Tensor) -> None:
        self.statistics.update(features, targets, experience=self.block)


def _warn_of_batch_normalisation(backbone: nn.Module) -> None:
    """Warn if only the batch normalisation of a network learns: unnoticed, its features would change."""
    parameters = list(backbone.parameters())
    if not parameters or any(parameter.requires_grad for parameter in parameters):
        return
    if any(isinstance(module, _BatchNorm) and module.training for module in backbone.modules()):
        warnings.warn(
            "No weight of the network is trained, but its batch normalisation learns from each batch, so the "
            'sums are not those of its features: make it with create_backbone(..., frozen="all").',
            stacklevel=2,
        )
