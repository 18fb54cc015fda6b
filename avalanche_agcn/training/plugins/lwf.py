"""Learning without forgetting, with sigmoids."""

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.training.losses import lwf_loss
from avalanche_agcn.training.teacher import FrozenTeacher


class LwFPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds a loss that keeps the logits of old classes near those of the previous model.

    Avalanche's own LwF has a softmax over old classes, where one label excludes the others; here each class
    is a decision of its own.

    Args:
        alpha: weight of the loss; 1 in the LwF paper.
        temperature: see `lwf_loss`.

    Raises:
        ValueError: if ``alpha`` is negative or ``temperature`` not positive.
    """

    def __init__(self, *, alpha: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        if alpha < 0:
            raise ValueError(f"alpha must be 0 or more, but is {alpha}.")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, but is {temperature}.")
        self.alpha, self.temperature = alpha, temperature
        self.teacher = FrozenTeacher()

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher before the model grows."""
        self.teacher.begin_experience(strategy)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the loss."""
        if self.teacher.n_old:
            logits = self.teacher.logits(strategy)
            loss = lwf_loss(strategy.mb_output, logits, temperature=self.temperature)
            strategy.loss = strategy.loss + self.alpha * loss

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state."""
        return self.teacher.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        self.teacher.load_state_dict(state)
