"""How long a run will take and how much disk it needs, estimated from its first batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.experiments.checkpoint import count_bytes
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
                self.log(self._describe(seconds, strategy))

    def _describe(self, seconds: float, strategy: Any) -> str:
        # A saved state is mostly made of these; a new one is written before the old one is removed.
        plugins = [plugin for plugin in strategy.plugins if hasattr(plugin, "state_dict")]
        parts = (unwrap(strategy.model), strategy.optimizer, *plugins)
        needed = 2 * sum(count_bytes(part.state_dict()) for part in parts)
        free = shutil.disk_usage(self.folder).free
        warning = f", of which only {free / 1e6:.0f} MB are free" if free < needed else ""
        return (
            f"about {seconds / 60:.0f} minutes for {self.n_batches} batches and the evaluations, and "
            f"{max(1, needed / 1e6):.0f} MB of disk in {self.folder}{warning}"
        )
