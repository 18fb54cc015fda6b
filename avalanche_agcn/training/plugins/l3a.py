"""Adds the random features of the stream to the weighted sums of L3A."""

from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen, origin_of
from avalanche_agcn.training.l3a import RIDGE, THRESHOLD, L3AStatistics
from avalanche_agcn.training.plugins.statistics import FeatureCollector


class L3APlugin(FeatureCollector, supports_distributed=True):  # type: ignore[call-arg]
    """Adds the features and labels of each image of the stream to `L3AStatistics`, once.

    Features are those that the model computed for its logits; later epochs do not count.

    Args:
        ridge: see `L3AStatistics`.
        threshold: see `L3AStatistics`.
    """

    def __init__(self, *, ridge: float = RIDGE, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.statistics = L3AStatistics(ridge=ridge, threshold=threshold)

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Open the experience with the counts of its labels, unless it is open already."""
        n_old, n_seen = self.statistics.n_seen, count_seen(strategy.experience)
        if n_seen > n_old:
            targets = origin_of(strategy.experience).dataset.targets[:]
            self.statistics.begin((targets[:, n_old:n_seen] == 1).sum(0))

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the batch to the sums."""
        if not self._is_counted(strategy):
            assert self._features is not None
            own = slice(self.statistics.n_old, self.statistics.n_seen)
            self.statistics.update(self._features, strategy.mb_y[:, own])

    def state_dict(self) -> dict[str, Tensor]:
        """The sums; see `L3AStatistics`."""
        return self.statistics.state_dict() | {"counted": torch.tensor(self._counted, dtype=torch.long)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the sums."""
        self._counted = state["counted"].tolist()
        self.statistics.load_state_dict({name: sums for name, sums in state.items() if name != "counted"})
