"""LwF: learning without forgetting (Li and Hoiem, 2016), with sigmoids."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin
from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.plugins.lwf import LwFPlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate


class LwF(MultiLabelTemplate):
    """Keeps the logits of old classes near those of the model before the experience.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        alpha: see `LwFPlugin`, as for the next.
        temperature: softens both sets of logits.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        alpha: float = 1.0,
        temperature: float = 1.0,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.lwf = LwFPlugin(alpha=alpha, temperature=temperature)
        super().__init__(
            model=model, optimizer=optimizer, plugins=[*(plugins or []), self.lwf], **base_kwargs
        )
