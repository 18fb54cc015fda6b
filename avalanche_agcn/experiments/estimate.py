"""How long a run will take and how much disk it needs, estimated from its first batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.models.forward import unwrap

WARM_UP, MEASURED = 3, 10
"""Batches before the measurement, which are slower, and batches that are measured."""
FORWARD_SHARE = 1 / 3
"""Time of an image in evaluation as a share of that in training, whose backward pass takes twice as long."""
LONG_SECONDS = 60.0


class EstimatePlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Logs one line about a long run, once.

    Args:
        n_batches: number of train batches that are left.
        n_evaluated: number of images that are left to evaluate, each counted whenever it is evaluated.
        folder: folder of the run.
        log: receives the line.
        clock: seconds that pass.
    """

    def __init__(
        self,
        n_batches: int,
        n_evaluated: int,
        folder: Path,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.n_batches, self.n_evaluated, self.folder = n_batches, n_evaluated, folder
        self.log, self.clock = log, clock
        self._batch, self._started = 0, 0.0

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Measure the first batches, then log."""
        self._batch += 1
        if self._batch == WARM_UP:
            self._started = self.clock()
        if self._batch == WARM_UP + MEASURED:
            per_batch = (self.clock() - self._started) / MEASURED
            evaluated = FORWARD_SHARE * self.n_evaluated / strategy.train_mb_size
            seconds = per_batch * (self.n_batches - self._batch + evaluated)
            if seconds >= LONG_SECONDS:
                self.log(self._describe(seconds, count_bytes(_states(strategy))))

    def _describe(self, seconds: float, state_bytes: int) -> str:
        needed = 2 * state_bytes  # a new state is written before the old one is removed
        free = shutil.disk_usage(self.folder).free
        warning = f", of which only {free / 1e6:.0f} MB are free" if free < needed else ""
        return (
            f"about {seconds / 60:.0f} minutes for {self.n_batches} batches and the evaluations, and "
            f"{max(1, needed / 1e6):.0f} MB of disk in {self.folder}{warning}"
        )


def _states(strategy: Any) -> Iterable[Any]:
    """What a saved state is mostly made of."""
    yield unwrap(strategy.model).state_dict()
    yield strategy.optimizer.state_dict()
    yield from (plugin.state_dict() for plugin in strategy.plugins if hasattr(plugin, "state_dict"))


def count_bytes(content: Any) -> int:
    """Bytes of all tensors in nested containers.

    Example:
        >>> import torch
        >>> count_bytes({"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64), 1]})
        28
    """
    if isinstance(content, Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, dict):
        return sum(map(count_bytes, content.values()))
    if isinstance(content, Iterable) and not isinstance(content, (str, bytes)):
        return sum(map(count_bytes, content))
    return 0
