"""Confidence self-calibration: distillation and a penalty on confident outputs."""

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.training.losses import confidence_penalty, distillation_loss
from avalanche_agcn.training.teacher import FrozenTeacher

BETA, ALPHA = 0.04, 0.5  # of CSC's program


class ConfidencePenaltyPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Makes the loss α ℓ + (1 − α) ℓ_dst + β Σ p log p from the second experience on.

    The losses of CSC (Du et al., 2024): ℓ is what the criterion returned, ℓ_dst the distillation of old
    classes (`distillation_loss`), and the last term, `confidence_penalty`, keeps outputs from becoming
    confident. This plugin must precede others that add to the loss, or α scales them too.

    Args:
        beta: β, weight of the penalty.
        alpha: α, weight of the criterion; 1 leaves out the distillation.
        teacher: teacher to share with another plugin, such as `PseudoLabelPlugin`; its own if None.

    Raises:
        ValueError: if ``beta`` is negative or ``alpha`` not between 0 and 1.
    """

    def __init__(
        self, *, beta: float = BETA, alpha: float = ALPHA, teacher: FrozenTeacher | None = None
    ) -> None:
        super().__init__()
        if not 0 <= beta < float("inf"):
            raise ValueError(f"beta must be a finite number of 0 or more, but is {beta}.")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, but is {alpha}.")
        self.beta, self.alpha = beta, alpha
        self.owns_teacher = teacher is None
        self.teacher = teacher or FrozenTeacher()

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher before the model grows."""
        if self.owns_teacher:
            self.teacher.begin_experience(strategy)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Compute the loss."""
        if not self.teacher.n_old:
            return
        strategy.loss = self.alpha * strategy.loss + self.beta * confidence_penalty(strategy.mb_output)
        if self.alpha < 1:
            distillation = distillation_loss(strategy.mb_output, self.teacher.logits(strategy))
            strategy.loss = strategy.loss + (1 - self.alpha) * distillation

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state, unless another plugin saves it."""
        return self.teacher.state_dict() if self.owns_teacher else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        if self.owns_teacher:
            self.teacher.load_state_dict(state)
