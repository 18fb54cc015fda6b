"""The base of strategies that solve their classifiers from sums."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.models.linear import MultiLabelClassifier
from avalanche_agcn.training.strategies.base import MultiLabelTemplate


class ClosedForm(MultiLabelTemplate):
    """Collects sums in training and solves the classifiers when `train` ends or evaluation begins.

    Subclasses implement `_set_solution`, and a plugin of theirs collects the sums.

    Args:
        model: a `MultiLabelClassifier`, whose classifier is replaced by the solution.
        optimizer: optimizer of the network; needed only if it is trained.
        base_kwargs: see `MultiLabelTemplate`.

    Raises:
        TypeError: if the model is not a `MultiLabelClassifier`.
        ValueError: if the network is trained without an optimizer.
    """

    trains_network = False  # unless plugins add a loss that does; it is frozen otherwise

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        **base_kwargs: Any,
    ) -> None:
        if not isinstance(unwrap(model), MultiLabelClassifier):
            raise TypeError(
                f"{type(self).__name__} needs a linear classifier, not {type(unwrap(model)).__name__}: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )
        if self.trains_network and optimizer is None:
            raise ValueError("A network that is trained needs an optimizer: pass optimizer=.")
        self._solved = True
        unwrap(model).classifier.requires_grad_(False)
        optimizer = optimizer or SGD(model.parameters(), lr=0.0)  # Avalanche requires one
        super().__init__(model=model, optimizer=optimizer, **base_kwargs)

    def solve(self) -> None:
        """Replace the model's classifiers by the solution of the current sums."""
        self._set_solution()
        self._solved = True

    def _set_solution(self) -> None:
        raise NotImplementedError

    def forward(self) -> Tensor:
        """Logits of the batch; without gradient where the network is frozen."""
        if self.trains_network or not self.is_training:
            return super().forward()
        with torch.no_grad(), evaluation_mode(self.model):
            return super().forward()

    def criterion(self) -> Tensor:
        """Loss of the batch: 0 in training, where plugins add what trains the network."""
        return torch.zeros((), device=self.device) if self.is_training else super().criterion()

    def backward(self) -> None:
        """Compute gradients, if the network is trained."""
        if self.trains_network:
            super().backward()

    def optimizer_step(self) -> None:
        """Update the network, if it is trained."""
        if self.trains_network:
            super().optimizer_step()

    def _before_training_exp(self, **kwargs: Any) -> None:
        unwrap(self.model).refinement = None  # it covers the classes that were solved, not the new ones
        self._solved = False
        super()._before_training_exp(**kwargs)

    def _after_training(self, **kwargs: Any) -> None:
        super()._after_training(**kwargs)
        self._solve_if_needed()

    def _before_eval(self, **kwargs: Any) -> None:
        self._solve_if_needed()
        super()._before_eval(**kwargs)

    def _solve_if_needed(self) -> None:
        if not self._solved:
            self.solve()
