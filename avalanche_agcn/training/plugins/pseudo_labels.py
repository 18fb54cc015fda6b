"""Pseudo-labels: old classes of a new image get the previous model's answer."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss, add_pseudo_labels
from avalanche_agcn.training.plugins.replay import find_memory
from avalanche_agcn.training.teacher import FrozenTeacher

THRESHOLD = 0.7  # of L3A's program


class PseudoLabelPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Gives each image of the stream labels of the old classes: those that the frozen teacher finds.

    KRT, CSC and L3A use forms of it. The labels are there for the loss only: after the step the targets are
    as they were, so that metrics do not count them. Replayed images keep their own labels. It works with any
    criterion of logits and targets and whether unlabelled cells are NaN or 0.

    Args:
        threshold: probability above which the label is 1, else 0.
        soft: whether the label is the probability itself.
        teacher: teacher to share with another plugin, such as that of `AGCNPlugin`; its own if None.

    Raises:
        ValueError: if ``threshold`` is not between 0 and 1.
    """

    def __init__(
        self, *, threshold: float = THRESHOLD, soft: bool = False, teacher: FrozenTeacher | None = None
    ) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be a probability between 0 and 1, but is {threshold}.")
        self.threshold, self.soft = threshold, soft
        self.owns_teacher = teacher is None
        self.teacher = teacher or FrozenTeacher()
        self._hidden: Tensor | None = None  # targets that pseudo-labels stand in for, [rows, n_old]

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher before the model grows; let the loss take probabilities if they are asked for."""
        if self.soft and isinstance(strategy._criterion, PartialBCEWithLogitsLoss):
            strategy._criterion.soft = True
        if self.owns_teacher:
            self.teacher.begin_experience(strategy)

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Label the images of the stream."""
        if not self.teacher.n_old:
            return
        memory = find_memory(strategy)
        n_stream = len(strategy.mb_y) if memory is None else memory.n_stream
        stream, others = strategy.mb_y[:n_stream], strategy.mb_y[n_stream:]
        logits = self.teacher.logits(strategy)[:n_stream]
        labelled = add_pseudo_labels(stream, logits, threshold=self.threshold, soft=self.soft)
        self._hidden = stream[:, : self.teacher.n_old]
        strategy.mbatch[1] = torch.cat([labelled, others])

    def after_update(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Restore the targets."""
        if self._hidden is not None:
            targets = strategy.mb_y.clone()
            targets[: len(self._hidden), : self.teacher.n_old] = self._hidden
            strategy.mbatch[1], self._hidden = targets, None

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state, unless another plugin saves it."""
        return self.teacher.state_dict() if self.owns_teacher else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        if self.owns_teacher:
            self.teacher.load_state_dict(state)
