"""Training a network apart from its classifiers, near the network it started from."""

from typing import Any

import torch.nn.functional as F
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.distributed import mean_of
from avalanche_agcn.training.plugins.distillation import TeacherPlugin
from avalanche_agcn.training.teacher import FrozenTeacher

DISTILLATION = 0.3  # chosen on held-out train photos of coco18; 1 and 4 are worse, 0 lets features drift


class DecoupledTrainingPlugin(TeacherPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Trains the network with an auxiliary linear head, while the classifiers learn on detached features.

    Classifiers with negatives from statistics must stay silent on old features. If they also train the
    network, it moves the features of new images away from the old ones, and the statistics no longer describe
    it. So an auxiliary head, which only trains the network, learns the experience's own columns, and features
    are kept near those of the teacher: the network as it was when the experience began.

    The model must be made with ``decoupled=True``.

    Args:
        distillation: weight of mean((f − f_teacher)²).
        teacher: teacher to share with another plugin, such as that of `AGCNPlugin`; its own if None.

    Raises:
        ValueError: if ``distillation`` is negative.
    """

    def __init__(self, *, distillation: float = DISTILLATION, teacher: FrozenTeacher | None = None) -> None:
        super().__init__(teacher)
        check_range("distillation", distillation, least=0)
        self.distillation = distillation
        self.teacher.from_first = True
        self._features, self._logits = OutputRecorder(), OutputRecorder()

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher before the model grows.

        Raises:
            TypeError: if the model has no auxiliary head.
        """
        model = unwrap(strategy.model)
        if getattr(model, "auxiliary", None) is None:
            raise TypeError(
                "Decoupled training needs a model with an auxiliary head: make the "
                f"{type(model).__name__} with decoupled=True."
            )
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Record the features and the auxiliary logits of the batch."""
        model = unwrap(strategy.model)
        self._features.start(model.backbone)
        self._logits.start(model.auxiliary)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the losses that train the network."""
        features, logits = self._features.stop(), self._logits.stop()
        assert features is not None
        assert logits is not None
        n_seen = strategy.mb_output.shape[1]
        loss = strategy._criterion(logits[:, :n_seen], strategy.mb_y)
        if self.distillation:
            moved = F.mse_loss(features, self.teacher.features(strategy), reduction="sum")
            loss = loss + self.distillation * mean_of(moved, features.numel())
        strategy.loss = strategy.loss + loss
