"""Strategies that solve their classifiers from sums: their base, and L3A."""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.core import BasePlugin
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.models.linear import MultiLabelClassifier
from avalanche_agcn.training.l3a import RIDGE, THRESHOLD
from avalanche_agcn.training.plugins.statistics import FeatureCollector, L3APlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

L3A_DECISION = 0.1  # L3A's program predicts a class where sigmoid(z·w) is above 0.525: z·w above 0.1


class ClosedForm(MultiLabelTemplate):
    """Collects sums in training and solves the classifiers when `train` ends or evaluation begins.

    Subclasses implement `_set_solution` and have a ``collector``.

    Args:
        model: a `MultiLabelClassifier`, whose classifier is replaced by the solution.
        optimizer: optimizer of the network; needed only if it is trained.
        base_kwargs: see `MultiLabelTemplate`.

    Raises:
        TypeError: if the model is not a `MultiLabelClassifier`.
        ValueError: if the network is trained without an optimizer.
    """

    trains_network = False  # unless plugins add a loss that does; it is frozen otherwise
    collector: FeatureCollector
    """The plugin that collects the sums."""

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
        optimizer = optimizer or SGD(model.parameters(), lr=0.0)  # Avalanche requires one
        super().__init__(model=model, optimizer=optimizer, **base_kwargs)

    def solve(self) -> None:
        """Replace the model's classifiers by the solution of the current sums: a collective call."""
        self.collector.synchronize(self)
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

    def check_model_and_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Exempt the classifiers from training: processes would wait for their gradients."""
        unwrap(self.model).classifier.requires_grad_(False)
        super().check_model_and_optimizer(*args, **kwargs)

    def _before_training_exp(self, **kwargs: Any) -> None:
        unwrap(self.model).refinement = None  # it covers the classes that were solved, not the new ones
        self._solved = False
        super()._before_training_exp(**kwargs)

    def _after_training_iteration(self, **kwargs: Any) -> None:
        super()._after_training_iteration(**kwargs)
        self._solved = False  # also if there was an evaluation within the experience

    def _after_training_exp(self, **kwargs: Any) -> None:
        super()._after_training_exp(**kwargs)
        unwrap(self.model).classifier.requires_grad_(True)

    def _after_training(self, **kwargs: Any) -> None:
        super()._after_training(**kwargs)
        self._solve_if_needed()

    def _before_eval(self, **kwargs: Any) -> None:
        self._solve_if_needed()
        super()._before_eval(**kwargs)

    def _solve_if_needed(self) -> None:
        if not self._solved:
            self.solve()


class L3A(ClosedForm):
    """The published closed-form method: ridge regression with class weights and pseudo-labels.

    Training only adds to sums (`L3AStatistics`); the classifiers of all classes are solved when `train` ends
    or evaluation begins. The network is frozen. Differences from the authors' program: sums are in float64
    and added up over processes, images without labels weigh 1, and the network is not trained on the first
    experience beforehand; to do so, train another strategy on it and give its backbone to this one.

    **Scores.** A logit is z·w − 0.1, so that the package's decision p ≥ 0.5 is the published one. z·w is
    near 0 for negatives and 1 for positives: its sigmoid ranks images, but as a probability it is far too
    timid, and no class reaches p > 0.8.

    Args:
        ridge: γ.
        threshold: probability sigmoid(z·w) above which an old class is a label of a new image.
        decision: z·w at which a class is predicted; logits are shifted by it.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `ClosedForm`, and `MultiLabelTemplate`; the model is
            ``MultiLabelClassifier(RandomFeatures(backbone), n_classes)`` for the published method.

    Raises:
        ValueError: if ``ridge`` or ``threshold`` is out of range.
        TypeError: if the model is not a `MultiLabelClassifier`.
    """

    def __init__(
        self,
        *,
        ridge: float = RIDGE,
        threshold: float = THRESHOLD,
        decision: float = L3A_DECISION,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.decision = decision
        self.collector = L3APlugin(ridge=ridge, threshold=threshold)
        super().__init__(plugins=[self.collector, *(plugins or [])], **base_kwargs)

    def _set_solution(self) -> None:
        weight = self.collector.statistics.solve().T
        unwrap(self.model).set_classifiers(weight, weight.new_full((len(weight),), -self.decision))
