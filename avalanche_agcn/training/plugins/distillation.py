"""Plugins with a frozen teacher, the model before the experience: LwF, CSC's losses, pseudo-labels."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.models.base import MultiLabelModel
from avalanche_agcn.models.forward import frozen_copy, unwrap
from avalanche_agcn.training import losses
from avalanche_agcn.training.plugins.replay import find_memory

BETA, ALPHA = 0.04, 0.5  # of CSC's program
THRESHOLD = 0.7  # of L3A's program


class FrozenTeacher:
    """A frozen copy of a strategy's model, made when an experience with new classes begins.

    A plugin holds it, not the model: a submodule would be trained. Several plugins may share one; each batch
    then goes through it once.
    """

    def __init__(self) -> None:
        self.from_first = False  # whether the untrained model is the teacher in the first experience
        self.model: Any = None  # the copy, in evaluation mode and without gradients
        self.n_old = 0  # classes that it knows
        self._n_seen = 0
        self._saved: dict[str, Tensor] = {}  # state to build the copy from, when training resumes
        self._embeddings: Any = None
        self._batch: Any = None  # images that the next two belong to
        self._features: Any = None
        self._logits: Any = None

    def begin_experience(self, strategy: Any) -> None:
        """Copy the model; call this in ``before_train_dataset_adaptation``, before the model grows."""
        model, n_seen = unwrap(strategy.model), count_seen(strategy.experience)
        n_trained = getattr(model, "n_seen", self._n_seen)
        first = self.from_first and self._n_seen == 0 and not self._saved
        if first or 0 < n_trained < n_seen:
            self.model = None  # free its memory before the copy
            self.model, self.n_old = frozen_copy(model), 0 if first else n_trained
        elif self._saved:
            self.model = frozen_copy(model)
            self.model.load_state_dict(self._saved)
        self._n_seen, self._saved = max(n_seen, self._n_seen), {}
        self._embeddings = self._batch = self._features = self._logits = None

    def embeddings(self) -> Tensor:
        """Embeddings of the old classes, ``[n_old, D]``, if the model is an `AGCNModel`; computed once."""
        if self._embeddings is None:
            with torch.no_grad():
                self._embeddings = self.model.embeddings()
        return self._embeddings

    def features(self, strategy: Any) -> Tensor:
        """Features of the current batch, ``[B, D]``; computed once per batch."""
        if self._batch is not strategy.mb_x:
            self._batch, self._features = strategy.mb_x, self._forward(self.model.features, strategy)
            self._logits = None
        return self._features

    def logits(self, strategy: Any) -> Tensor:
        """Logits of the current batch over the old classes, ``[B, n_old]``; computed once per batch."""
        if not isinstance(self.model, MultiLabelModel):
            return self._forward(self.model, strategy)[:, : self.n_old]
        features = self.features(strategy)
        if self._logits is None:
            with torch.no_grad(), torch.autocast(features.device.type, enabled=False):  # as in its forward
                if isinstance(self.model, AGCNModel):
                    self._logits = features.to(self.embeddings().dtype) @ self.embeddings().T
                else:
                    self._logits = self.model.logits(features)[:, : self.n_old]
        return self._logits

    def _forward(self, function: Callable[[Tensor], Tensor], strategy: Any) -> Tensor:
        with torch.no_grad(), getattr(strategy, "autocast", nullcontext)():
            return function(strategy.mb_x)

    def state_dict(self) -> dict[str, Tensor]:
        """The copy's tensors and the numbers of classes."""
        model = self._saved if self.model is None else self.model.state_dict()
        counts = torch.tensor([self.n_old, self._n_seen])
        return {"counts": counts} | {f"model.{name}": tensor for name, tensor in model.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a teacher; the copy is built from the strategy's model when training resumes."""
        self.n_old, self._n_seen = state["counts"].tolist()
        self.model = None
        self._saved = {key.removeprefix("model."): value for key, value in state.items() if key != "counts"}


class TeacherPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Base of plugins with a frozen teacher, copied when an experience begins, and saved with its plugin.

    A ``teacher`` that is passed belongs to another plugin, which copies and saves it.
    """

    def __init__(self, teacher: FrozenTeacher | None = None) -> None:
        super().__init__()
        self.owns_teacher = teacher is None
        self.teacher = teacher or FrozenTeacher()

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Copy the teacher before the model grows."""
        if self.owns_teacher:
            self.teacher.begin_experience(strategy)

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state, unless another plugin saves it."""
        return self.teacher.state_dict() if self.owns_teacher else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        if self.owns_teacher:
            self.teacher.load_state_dict(state)


class LwFPlugin(TeacherPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds a loss that keeps the logits of old classes near those of the previous model.

    Avalanche's own LwF has a softmax over old classes, where one label excludes the others; here each class
    is a decision of its own. ``alpha`` is the weight of `lwf_loss`, 1 in the LwF paper.
    """

    def __init__(self, *, alpha: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        check_range("alpha", alpha, least=0)
        check_range("temperature", temperature, above=0)
        self.alpha, self.temperature = alpha, temperature

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the loss."""
        if self.teacher.n_old:
            logits = self.teacher.logits(strategy)
            loss = losses.lwf_loss(strategy.mb_output, logits, temperature=self.temperature)
            strategy.loss = strategy.loss + self.alpha * loss


class ConfidencePenaltyPlugin(TeacherPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Makes the loss α ℓ + (1 − α) ℓ_dst + β Σ p log p from the second experience on.

    The losses of CSC (Du et al., 2024): ℓ is the value of the criterion, ℓ_dst the distillation of old
    classes (`distillation_loss`; none at ``alpha`` 1), and the last term, `confidence_penalty`, keeps outputs
    from becoming confident. This plugin must precede others that add to the loss, or α scales them too.
    """

    def __init__(
        self, *, beta: float = BETA, alpha: float = ALPHA, teacher: FrozenTeacher | None = None
    ) -> None:
        super().__init__(teacher)
        check_range("beta", beta, least=0)
        check_range("alpha", alpha, least=0, most=1)
        self.beta, self.alpha = beta, alpha

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the loss."""
        if not self.teacher.n_old:
            return
        strategy.loss = self.alpha * strategy.loss + self.beta * losses.confidence_penalty(strategy.mb_output)
        if self.alpha < 1:
            distillation = losses.distillation_loss(strategy.mb_output, self.teacher.logits(strategy))
            strategy.loss = strategy.loss + (1 - self.alpha) * distillation


class PseudoLabelPlugin(TeacherPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Labels each image of the stream with the old classes that the frozen teacher finds.

    KRT, CSC and L3A use forms of it. Only the loss sees these labels: after the step the targets are
    restored, so that metrics do not count them. Replayed images keep their own labels. It works with any
    criterion of logits and targets, whether unlabelled cells are NaN or 0. A label is 1 where the probability
    is above the threshold, else 0; with ``soft`` it is the probability itself.
    """

    def __init__(
        self, *, threshold: float = THRESHOLD, soft: bool = False, teacher: FrozenTeacher | None = None
    ) -> None:
        super().__init__(teacher)
        check_range("threshold", threshold, least=0, most=1)
        self.threshold, self.soft = threshold, soft
        self._hidden: Tensor | None = None  # targets that pseudo-labels replace, [rows, n_old]

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Copy the teacher; let the loss take probabilities if labels are soft."""
        if self.soft and isinstance(strategy._criterion, losses.PartialBCEWithLogitsLoss):
            strategy._criterion.soft = True
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Label the images of the stream."""
        if not self.teacher.n_old:
            return
        memory = find_memory(strategy)
        n_stream = len(strategy.mb_y) if memory is None else memory.n_stream
        stream, others = strategy.mb_y[:n_stream], strategy.mb_y[n_stream:]
        logits = self.teacher.logits(strategy)[:n_stream]
        labelled = losses.add_pseudo_labels(stream, logits, threshold=self.threshold, soft=self.soft)
        self._hidden = stream[:, : self.teacher.n_old]
        strategy.mbatch[1] = torch.cat([labelled, others])

    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Restore the targets."""
        if self._hidden is not None:
            targets = strategy.mb_y.clone()
            targets[: len(self._hidden), : self.teacher.n_old] = self._hidden
            strategy.mbatch[1], self._hidden = targets, None
