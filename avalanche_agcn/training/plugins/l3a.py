"""Adds the random features of the stream to the weighted sums of L3A."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen, origin_of
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.l3a import RIDGE, THRESHOLD, L3AStatistics


class L3APlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds the features and labels of each image of the stream to `L3AStatistics`, once.

    Features are those that the model computed for its logits; later epochs do not count.

    Args:
        ridge: see `L3AStatistics`.
        threshold: see `L3AStatistics`.
    """

    def __init__(self, *, ridge: float = RIDGE, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.statistics = L3AStatistics(ridge=ridge, threshold=threshold)
        self._recorder = OutputRecorder()
        self._features: Tensor | None = None  # of the current batch, [B, D]
        self._counted: list[int] = []  # experiences whose images are all in the sums

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Open the experience with the counts of its labels, unless it is open already."""
        n_old, n_seen = self.statistics.n_seen, count_seen(strategy.experience)
        if n_seen > n_old:
            targets = origin_of(strategy.experience).dataset.targets[:]
            self.statistics.begin((targets[:, n_old:n_seen] == 1).sum(0))

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._recorder.start(unwrap(strategy.model).backbone)

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Keep the recorded features for the end of the step."""
        self._features = self._recorder.stop()

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the batch to the sums."""
        if strategy.experience.current_experience not in self._counted:
            assert self._features is not None
            own = slice(self.statistics.n_old, self.statistics.n_seen)
            self.statistics.update(self._features, strategy.mb_y[:, own])

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """All images of the experience are counted."""
        self._features = None
        if strategy.experience.current_experience not in self._counted:
            self._counted.append(strategy.experience.current_experience)
            self.statistics.synchronize()
            self.statistics.flush()

    def state_dict(self) -> dict[str, Tensor]:
        """The sums; see `L3AStatistics`."""
        return self.statistics.state_dict() | {"counted": torch.tensor(self._counted, dtype=torch.long)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the sums."""
        self._counted = state["counted"].tolist()
        self.statistics.load_state_dict({name: sums for name, sums in state.items() if name != "counted"})
