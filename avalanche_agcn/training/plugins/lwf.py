"""Learning without forgetting, with sigmoids."""

from contextlib import nullcontext
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.training.losses import distillation_loss
from avalanche_agcn.training.plugins.agcn import frozen_copy, unwrap


class LwFPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds a loss that keeps the logits of old classes near those of the previous model.

    When an experience with new classes begins, a frozen copy of the model becomes the teacher. Avalanche's
    own LwF has a softmax over old classes, which makes one label exclude the others; here each class is a
    decision of its own.

    Args:
        alpha: weight of the loss; 1 in the LwF paper.
        temperature: see `lwf_loss`.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(self, *, alpha: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        if alpha < 0:
            raise ValueError(f"alpha must not be negative, but is {alpha}.")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, but is {temperature}.")
        self.alpha, self.temperature = alpha, temperature
        self.teacher: nn.Module | None = None
        self.n_old = 0  # classes the teacher knows
        self._n_seen = 0
        self._saved_teacher: dict[str, Tensor] = {}
        self._teacher_logits: Tensor | None = None

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher: Avalanche's first call, when the model has not grown yet."""
        seen = count_seen(strategy.experience)
        if 0 < self._n_seen < seen:
            self.n_old = self._n_seen
            self.teacher = None  # free its memory before the copy
            self.teacher = frozen_copy(unwrap(strategy.model))
        elif self._saved_teacher:
            self.teacher = frozen_copy(unwrap(strategy.model))
            self.teacher.load_state_dict(self._saved_teacher)
        self._n_seen, self._saved_teacher = max(seen, self._n_seen), {}

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Ask the teacher about the batch."""
        if self.teacher is not None:
            with torch.no_grad(), getattr(strategy, "autocast", nullcontext)():
                self._teacher_logits = self.teacher(strategy.mb_x)[:, : self.n_old]

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the loss."""
        if self._teacher_logits is not None:
            loss = lwf_loss(strategy.mb_output, self._teacher_logits, temperature=self.temperature)
            strategy.loss = strategy.loss + self.alpha * loss
            self._teacher_logits = None

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's tensors, and how many classes were seen."""
        teacher = self._saved_teacher if self.teacher is None else self.teacher.state_dict()
        counts = torch.tensor([self.n_old, self._n_seen])
        return {"counts": counts} | {f"teacher.{name}": tensor for name, tensor in teacher.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over a teacher; it is built from the strategy's model when training goes on."""
        self.n_old, self._n_seen = state["counts"].tolist()
        self.teacher = self._teacher_logits = None
        self._saved_teacher = {
            name.removeprefix("teacher."): tensor for name, tensor in state.items() if name != "counts"
        }


def lwf_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Cross-entropy of the student with the teacher's soft labels, the mean over images and old classes.

    Its gradient is zero when student and teacher agree.

    Args:
        logits: the student's, ``[B, n_seen]``; the first ``n_old`` columns are used.
        teacher_logits: ``[B, n_old]``; no gradient flows into them.
        temperature: both logits are divided by it. The loss is multiplied by its square, which keeps the size
            of the gradient (Hinton et al., 2015). 1 is AGCN's ℓ_dst.

    Example:
        >>> round(lwf_loss(torch.zeros(1, 3), torch.zeros(1, 2)).item(), 4)
        0.6931
    """
    return temperature**2 * distillation_loss(logits / temperature, teacher_logits / temperature)
