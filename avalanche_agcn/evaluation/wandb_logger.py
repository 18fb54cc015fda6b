"""Weights & Biases: Avalanche's logger, made to work with the wandb of today."""

from __future__ import annotations

import io
import os
import uuid
from typing import Any

from avalanche.evaluation.metric_results import AlternativeValues
from avalanche.logging import WandBLogger
from matplotlib.figure import Figure
from PIL import Image

__all__ = ["MultiLabelWandBLogger"]


class MultiLabelWandBLogger(WandBLogger):
    """Logs numbers and figures to Weights & Biases, online or (``params={"mode": "offline"}``) to a folder.

    Avalanche 0.6's `WandBLogger` calls functions that wandb no longer has. This one gives the run an id of
    its own, unless ``params["id"]`` or the variable WANDB_RUN_ID does, and logs figures as pictures.

    Args:
        project_name: Name of the project.
        run_name: Name of the run.
        params: Further arguments of ``wandb.init``.
        **settings: Further arguments of `WandBLogger`. With ``log_artifacts=True`` and Avalanche's
            `WeightCheckpoint` among the metrics, the model of each experience is logged as an artifact.

    Raises:
        ImportError: If wandb is not installed.
        RuntimeError: If it is made in any but the main process.
    """

    def __init__(
        self,
        project_name: str = "avalanche-agcn",
        run_name: str = "run",
        *,
        params: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
        super().__init__(project_name, run_name, params={"id": run_id, **(params or {})}, **settings)

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Log a number, a figure or (if asked for) a checkpoint at step ``x_plot``, and nothing else."""
        if name.startswith("WeightCheckpoint"):
            super().log_single_metric(name, value, x_plot)
            return
        self.step = x_plot
        if isinstance(value, AlternativeValues):
            value = value.best_supported_value(Figure, float, int)
        if isinstance(value, Figure):
            value = self.wandb.Image(_picture(value))
        elif not isinstance(value, (float, int)):
            return
        self.wandb.log({name: value}, step=x_plot)


def _picture(figure: Figure) -> Image.Image:
    """The figure drawn; wandb itself draws figures of pyplot only."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return Image.open(file)
