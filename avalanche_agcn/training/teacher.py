"""A frozen copy of the model as it was before an experience, and plugins that learn from it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.base import Classifiers, MultiLabelModel
from avalanche_agcn.models.forward import frozen_copy, unwrap
from avalanche_agcn.models.networks import pad_within_convolutions
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.memory import find_memory
from avalanche_agcn.training.plugin import MultiLabelPlugin

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
        self._unpadded: dict[str, Tensor] = {}  # small kernels of the model as it was before it was copied
        self._saved: dict[str, Tensor] = {}  # state to build the copy from, when training resumes
        self._classifiers: Classifiers | None = None
        self._batch: Any = None  # images that the next two belong to
        self._features: Any = None
        self._logits: Any = None

    def begin_experience(self, strategy: Any) -> None:
        """Copy the model; call this in ``before_train_dataset_adaptation``, before the model grows."""
        model = unwrap(strategy.model)
        n_seen = count_seen(strategy.experience)
        n_trained = getattr(model, "n_seen", self._n_seen)
        first = self.from_first and self._n_seen == 0 and not self._saved
        if first or 0 < n_trained < n_seen:
            self._copy(model)
            self.n_old = 0 if first else n_trained
        elif self._saved:
            self._copy(model, self._saved)
        self._n_seen = max(n_seen, self._n_seen)
        self._saved = {}
        self._classifiers = None
        self._batch = self._features = self._logits = None

    def _copy(self, model: Any, state: dict[str, Tensor] | None = None) -> None:
        """Copy the model, with the tensors of a state if it is given; it only runs forward from now on."""
        self.model = None  # free its memory before the copy
        self.model = frozen_copy(model)
        if state is not None:
            self.model.load_state_dict(state)
        self._unpadded = {}
        if any(weight.device.type != "cpu" for weight in self.model.parameters()):
            return
        before = self.model.state_dict()
        pad_within_convolutions(self.model)  # the same outputs, without copies of large maps
        self.model.requires_grad_(False)
        for name, value in self.model.state_dict().items():
            if isinstance(value, Tensor) and value.shape != before[name].shape:
                self._unpadded[name] = before[name]

    def classifiers(self) -> Classifiers:
        """Classifiers of the old classes, ``[n_old, D]``; computed once per experience."""
        if self._classifiers is None:
            with torch.no_grad():
                self._classifiers = self.model.classifiers()
        return self._classifiers

    def features(self, strategy: Any) -> Tensor:
        """Features of the current batch, ``[B, D]``; computed once per batch."""
        if self._batch is not strategy.mb_x:
            self._features = self._forward(self.model.features, strategy)
            self._batch = strategy.mb_x
            self._logits = None
        return self._features

    def logits(self, strategy: Any) -> Tensor:
        """Logits of the current batch over the old classes, ``[B, n_old]``; computed once per batch."""
        if not isinstance(self.model, MultiLabelModel):
            return self._forward(self.model, strategy)[:, : self.n_old]
        features = self.features(strategy)
        if self._logits is None:
            with torch.no_grad(), torch.autocast(features.device.type, enabled=False):  # as in its forward
                self._logits = self.model.logits(features, self.classifiers())[:, : self.n_old]
        return self._logits

    def _forward(self, function: Callable[[Tensor], Tensor], strategy: Any) -> Tensor:
        with torch.no_grad(), getattr(strategy, "autocast", nullcontext)():
            return function(strategy.mb_x)

    def state_dict(self) -> dict[str, Tensor]:
        """The copy's tensors and the numbers of classes."""
        model = self._saved if self.model is None else self.model.state_dict() | self._unpadded
        counts = torch.tensor([self.n_old, self._n_seen])
        return {"counts": counts} | {f"model.{name}": tensor for name, tensor in model.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a teacher; the copy is built from the strategy's model when training resumes."""
        self.n_old, self._n_seen = state["counts"].tolist()
        self.model = None
        self._saved = {key.removeprefix("model."): value for key, value in state.items() if key != "counts"}


class TeacherPlugin(MultiLabelPlugin):
    """Base of plugins with a frozen teacher, copied when an experience begins, and saved with its plugin.

    A ``teacher`` that is passed belongs to another plugin, which copies and saves it.
    """

    def __init__(self, teacher: FrozenTeacher | None = None) -> None:
        super().__init__()
        self.owns_teacher = teacher is None
        self.teacher = teacher or FrozenTeacher()

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Copy the teacher before the model grows."""
        super().before_train_dataset_adaptation(strategy, **kwargs)
        if self.owns_teacher:
            self.teacher.begin_experience(strategy)

    def teacher_logits(self, strategy: SupervisedTemplate) -> Tensor | None:
        """The teacher's logits of the current batch, ``[B, n_old]``; None in the first experience."""
        return self.teacher.logits(strategy) if self.teacher.n_old else None

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state, unless another plugin saves it."""
        return self.teacher.state_dict() if self.owns_teacher else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        if self.owns_teacher:
            self.teacher.load_state_dict(state)


class PseudoLabelPlugin(TeacherPlugin):
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
        if self.soft and isinstance(strategy._criterion, PartialBCEWithLogitsLoss):
            strategy._criterion.soft = True
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Label the images of the stream."""
        if not self.teacher.n_old:
            return
        memory = find_memory(strategy)
        targets = strategy.mb_y
        of_stream = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        if memory is not None:
            of_stream = memory.stream_rows(len(targets)).to(targets.device)
        labelled = add_pseudo_labels(
            targets, self.teacher.logits(strategy), threshold=self.threshold, soft=self.soft
        )
        self._hidden = targets[:, : self.teacher.n_old]
        strategy.mbatch[1] = torch.where(of_stream[:, None], labelled, targets)

    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Restore the targets."""
        if self._hidden is not None:
            targets = strategy.mb_y.clone()
            shown = ~targets.isnan().all(dim=1)  # a memory may have hidden others since
            targets[shown, : self.teacher.n_old] = self._hidden[shown]
            strategy.mbatch[1] = targets
            self._hidden = None


def add_pseudo_labels(
    targets: Tensor, teacher_logits: Tensor, *, threshold: float, soft: bool = False
) -> Tensor:
    """Return targets whose first columns, the old classes, are the teacher's predictions.

    Predictions are 1 where the probability is above the threshold, or with ``soft`` the probabilities.
    """
    probabilities = teacher_logits.detach().to(targets.dtype).sigmoid()
    predictions = probabilities if soft else (probabilities > threshold).to(targets.dtype)
    return torch.cat([predictions, targets[:, teacher_logits.shape[1] :]], dim=1)
