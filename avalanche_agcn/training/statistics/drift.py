"""Training a network whose features are summed: decoupled from its classifiers, with the sums updated."""

from typing import Any

import torch
import torch.nn.functional as F
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_whole_experience, count_seen
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import OutputRecorder, evaluation_mode, unwrap
from avalanche_agcn.training.distributed import mean_of, own_share
from avalanche_agcn.training.loader import load_batches, make_generator
from avalanche_agcn.training.losses import at_least_float32
from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
from avalanche_agcn.training.statistics.drift_map import DriftMap
from avalanche_agcn.training.teacher import FrozenTeacher, TeacherPlugin

DISTILLATION = 0.3  # chosen on held-out train photos of coco18; 1 and 4 are worse, 0 lets features drift
RIDGE = 1000.0  # of the map; 300 to 1,000 are equally good on photos
HELD_IMAGES = 256


class DecoupledTrainingPlugin(TeacherPlugin):
    """Trains the network with an auxiliary linear head, while the classifiers learn on detached features.

    Classifiers with negatives from statistics must give low scores to old features. If they also trained the
    network, it would move the features of new images away from the old ones, and the statistics would no
    longer describe it. So an auxiliary head learns the experience's own columns and trains the network, and
    features are kept near those of the teacher: the network when the experience began.

    The model must be made with ``decoupled=True``. ``distillation`` is the weight of mean((f − f_teacher)²).
    """

    trains_auxiliary = True
    """Whether the loss of the auxiliary head is added; strategies reject a head that nothing trains."""

    def __init__(self, *, distillation: float = DISTILLATION, teacher: FrozenTeacher | None = None) -> None:
        super().__init__(teacher)
        check_range("distillation", distillation, least=0)
        self.distillation = distillation
        self.teacher.from_first = True
        self._features, self._logits = OutputRecorder(), OutputRecorder()

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check that the model has an auxiliary head; copy the teacher before the model grows."""
        model = unwrap(strategy.model)
        if getattr(model, "auxiliary", None) is None:
            raise TypeError(
                "Decoupled training needs a model with an auxiliary head: make the "
                f"{type(model).__name__} with decoupled=True."
            )
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the features and the auxiliary logits of the batch."""
        model = unwrap(strategy.model)
        self._features.start(model.backbone)
        self._logits.start(model.auxiliary)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the losses that train the network."""
        features, logits = self._features.stop(), self._logits.stop()
        loss = strategy._criterion(logits[:, : strategy.mb_output.shape[1]], strategy.mb_y)
        if self.distillation:
            drift = feature_distillation_loss(features, self.teacher.features(strategy))
            loss = loss + self.distillation * drift
        strategy.loss = strategy.loss + loss


def feature_distillation_loss(features: Tensor, teacher_features: Tensor) -> Tensor:
    """Mean squared difference of features ``[B, D]`` from the teacher's, which get no gradient."""
    student = at_least_float32(features)
    total = F.mse_loss(student, teacher_features.detach().to(student.dtype), reduction="sum")
    return mean_of(total, student.numel())


class DriftCompensationPlugin(TeacherPlugin):
    """Keeps the sums of a `FeatureStatisticsPlugin` valid for a network that is trained.

    During an experience the sums are collected in the feature space of the teacher, the network when the
    experience began. At its end, a linear map from the teacher's to the student's features moves the sums of
    all experiences. It is fitted to the features of all training steps, in which the student changed, and
    then corrected by a second map, fitted to a few images under the final student. The pairs of a step are
    added in ``after_training_iteration``: a plugin that saves states must follow.

    Args:
        n_images: images of the current experience that are held until its end for the second map, and dropped
            afterwards. With 0 there is no second map, and no image is needed twice.
        ridge: regularisation of the maps towards the identity plus a shift.
        seed: seed of the choice of held images.
    """

    def __init__(
        self,
        *,
        n_images: int = HELD_IMAGES,
        ridge: float = RIDGE,
        teacher: FrozenTeacher | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(teacher)
        check_range("n_images", n_images, least=0)
        check_range("ridge", ridge, above=0)
        self.n_images, self.ridge, self.seed = n_images, ridge, seed
        self.teacher.from_first = True
        self.drift = DriftMap()

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Copy the teacher, whose features the sums are of."""
        check_whole_experience(strategy.experience, "Drift compensation")
        collector, experience = find_statistics(strategy), strategy.experience
        if count_seen(experience) <= collector.n_finished:  # the sums are no longer in the teacher's space
            raise ValueError(
                f"Experience {experience.current_experience} was trained on before, and drift compensation "
                "needs each once: use train_epochs for several passes."
            )
        if not collector.resumed:  # if it was interrupted, its sums start again, too
            self.drift = DriftMap()
        collector.teacher = self.teacher
        super().before_train_dataset_adaptation(strategy)

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the pairs of the step, whose student's features the collector has recorded."""
        student = find_statistics(strategy).features
        if student is not None and not getattr(strategy, "is_padding", False):
            self.drift.update(self.teacher.features(strategy), student)

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Fit the maps and move the sums of all experiences."""
        statistics = find_statistics(strategy).statistics
        self.synchronize(strategy)
        first = self.drift.solve(self.ridge)
        statistics.map(*first)
        if self.n_images:
            self.drift = self._compare_held_images(strategy, *first)
            self.synchronize(strategy)
            statistics.map(*self.drift.solve(self.ridge))
        self.drift = DriftMap()

    def synchronize(self, strategy: SupervisedTemplate) -> None:
        """Collective: add up the pairs of all processes."""
        self.drift.synchronize()

    def state_dict(self) -> dict[str, Tensor]:
        """The pairs of the current experience, and the teacher unless another plugin saves it."""
        state = {f"drift.{name}": tensor for name, tensor in self.drift.state_dict().items()}
        return state | {f"teacher.{name}": tensor for name, tensor in super().state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore pairs and teacher."""
        parts: dict[str, dict[str, Tensor]] = {"drift": {}, "teacher": {}}
        for name, tensor in state.items():
            part, _, key = name.partition(".")
            parts[part][key] = tensor  # a KeyError for the state of another plugin
        self.drift.load_state_dict(parts["drift"])
        super().load_state_dict(parts["teacher"])

    def _compare_held_images(self, strategy: SupervisedTemplate, A: Tensor, shift: Tensor) -> DriftMap:
        """Pairs of the teacher's mapped features, f → fA + shift, and the final student's."""
        dataset = strategy.experience.dataset.eval()
        generator = make_generator(self.seed, strategy.experience.current_experience)
        held = own_share(torch.randperm(len(dataset), generator=generator)[: self.n_images])
        batches = load_batches(strategy, dataset.subset(held.tolist()), batch_size=strategy.eval_mb_size)
        student, pairs = unwrap(strategy.model), DriftMap()
        with torch.no_grad(), evaluation_mode(student):
            for images, _ in batches:
                mapped = self.teacher.model.features(images).to(A) @ A + shift
                pairs.update(mapped, student.features(images).to(A))
        return pairs


def find_statistics(strategy: SupervisedTemplate) -> FeatureStatisticsPlugin:
    """The plugin of a strategy that collects statistics; a ValueError if there is none."""
    for plugin in strategy.plugins:
        if isinstance(plugin, FeatureStatisticsPlugin):
            return plugin
    raise ValueError(
        f"{type(strategy).__name__} collects no feature statistics: add a StatisticalNegativesPlugin, or use "
        "StreamingRidge."
    )
