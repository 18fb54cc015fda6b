"""L3A: classifiers in closed form from weighted random features, without a backward pass."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.l3a import RIDGE, THRESHOLD
from avalanche_agcn.training.plugins.l3a import L3APlugin
from avalanche_agcn.training.strategies.closed_form import ClosedForm

DECISION = 0.1  # L3A's program predicts a class where sigmoid(z·w) is above 0.525: z·w above 0.1


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
        decision: float = DECISION,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.decision = decision
        self.collector = L3APlugin(ridge=ridge, threshold=threshold)
        super().__init__(plugins=[self.collector, *(plugins or [])], **base_kwargs)

    def _set_solution(self) -> None:
        weight = self.collector.statistics.solve().T
        unwrap(self.model).set_classifiers(weight, weight.new_full((len(weight),), -self.decision))
