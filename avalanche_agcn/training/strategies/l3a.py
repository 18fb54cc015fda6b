"""L3A: classifiers in closed form from weighted random features, without a backward pass."""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.core import BasePlugin
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.models.linear import MultiLabelClassifier
from avalanche_agcn.training.l3a import RIDGE, THRESHOLD
from avalanche_agcn.training.plugins.l3a import L3APlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

DECISION = 0.1  # L3A's program predicts a class where sigmoid(z·w) is above 0.525: z·w above 0.1


class L3A(MultiLabelTemplate):
    """The published closed-form method: ridge regression with class weights and pseudo-labels.

    Training only adds to sums (`L3AStatistics`); the classifiers of all classes are solved when `train` ends
    or evaluation begins. The network is frozen. Differences from the authors' program: sums are in float64
    and added up over processes, images without labels weigh 1, and the network is not trained on the first
    experience beforehand; to do so, train another strategy on it and give its backbone to this one.

    **Scores.** A logit is z·w − 0.1, so that the package's decision p ≥ 0.5 is the published one. z·w is
    near 0 for negatives and 1 for positives: its sigmoid ranks images, but as a probability it is far too
    timid, and no class reaches p > 0.8.

    Args:
        model: a `MultiLabelClassifier`, whose classifier is replaced by the solution; over `RandomFeatures`
            for the published method: ``MultiLabelClassifier(RandomFeatures(backbone), n_classes)``.
        optimizer: not used; strategies are made with one.
        ridge: γ.
        threshold: probability sigmoid(z·w) above which an old class is a label of a new image.
        decision: z·w at which a class is predicted; logits are shifted by it.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.

    Raises:
        ValueError: if ``ridge`` or ``threshold`` is out of range.
        TypeError: if the model is not a `MultiLabelClassifier`.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        ridge: float = RIDGE,
        threshold: float = THRESHOLD,
        decision: float = DECISION,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        if not isinstance(unwrap(model), MultiLabelClassifier):
            raise TypeError(
                f"L3A needs a linear classifier, not {type(unwrap(model)).__name__}: use "
                "MultiLabelClassifier(RandomFeatures(backbone), n_classes)."
            )
        self.decision = decision
        self.collector = L3APlugin(ridge=ridge, threshold=threshold)
        self._solved = True
        super().__init__(
            model=model,
            optimizer=optimizer or SGD(model.parameters(), lr=0.0),
            plugins=[self.collector, *(plugins or [])],
            **base_kwargs,
        )

    def solve(self) -> None:
        """Replace the model's classifiers by the solution of the current sums."""
        weight = self.collector.statistics.solve().T
        unwrap(self.model).set_classifiers(weight, weight.new_full((len(weight),), -self.decision))
        self._solved = True

    def forward(self) -> Tensor:
        """Logits of the batch, without gradient."""
        if not self.is_training:
            return super().forward()
        with torch.no_grad(), evaluation_mode(self.model):
            return super().forward()

    def criterion(self) -> Tensor:
        """Loss of the batch: 0 in training."""
        return torch.zeros((), device=self.device) if self.is_training else super().criterion()

    def backward(self) -> None:
        """Nothing: there are no gradients."""

    def optimizer_step(self) -> None:
        """Nothing: the network is frozen."""

    def _before_training_exp(self, **kwargs: Any) -> None:
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
