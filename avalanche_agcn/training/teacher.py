"""The frozen teacher: the model as it was before the current experience."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.models.base import MultiLabelModel
from avalanche_agcn.models.forward import frozen_copy, unwrap


class FrozenTeacher:
    """A frozen copy of a strategy's model, made when an experience with new classes begins.

    A plugin keeps it, not the model: a submodule would be trained. Several plugins may share one; the batch
    then goes through it once.

    Attributes:
        model: the copy, in evaluation mode and without gradients, or None.
        n_old: number of classes that it knows.
        from_first: whether there is a teacher in the first experience too: the model before any training.
    """

    def __init__(self) -> None:
        self.from_first = False
        self.model: Any = None
        self.n_old = 0
        self._n_seen = 0
        self._saved: dict[str, Tensor] = {}
        self._batch: Tensor | None = None  # images that `_features` and `_logits` belong to
        self._features: Tensor | None = None
        self._logits: Tensor | None = None

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
        self._batch = self._features = self._logits = None

    def features(self, strategy: Any) -> Tensor:
        """Features of the current batch, ``[B, D]``; computed once per batch."""
        if self._batch is not strategy.mb_x:
            self._batch, self._features = strategy.mb_x, self._forward(self.model.features, strategy)
            self._logits = None
        assert self._features is not None
        return self._features

    def logits(self, strategy: Any) -> Tensor:
        """Logits of the current batch over the old classes, ``[B, n_old]``; computed once per batch."""
        if not isinstance(self.model, MultiLabelModel):
            return self._forward(self.model, strategy)[:, : self.n_old]
        features = self.features(strategy)
        if self._logits is None:
            with torch.no_grad(), torch.autocast(features.device.type, enabled=False):  # as in its forward
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
        self._saved = {
            name.removeprefix("model."): tensor for name, tensor in state.items() if name != "counts"
        }
