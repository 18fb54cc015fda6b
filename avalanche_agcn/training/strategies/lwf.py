"""LwF: learning without forgetting (Li and Hoiem, 2016), with sigmoids."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.training.plugins.lwf import LwFPlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate


class LwF(MultiLabelTemplate):
    """Keeps the logits of old classes near those of the model before the experience.

    Args:
        alpha: weight of the distillation; see `LwFPlugin`.
        temperature: see `LwFPlugin`.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        temperature: float = 1.0,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.lwf = LwFPlugin(alpha=alpha, temperature=temperature)
        super().__init__(plugins=[*(plugins or []), self.lwf], **base_kwargs)
