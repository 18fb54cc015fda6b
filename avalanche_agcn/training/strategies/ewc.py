"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017)."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.training.plugins.ewc import EWCPlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

EWC_LAMBDA = 1e3  # no source gives one for multi-label images: ours, from the embedded benchmark


class EWC(MultiLabelTemplate):
    """Penalises changes of parameters that mattered to earlier experiences.

    Args:
        ewc_lambda: weight of the penalty; see `EWCPlugin`.
        fisher_images: number of images per experience that importance is measured on; all if None.
        seed: seed of their choice (0 if None) and of the stream.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.
    """

    def __init__(
        self,
        *,
        ewc_lambda: float = EWC_LAMBDA,
        fisher_images: int | None = None,
        seed: int | None = None,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.ewc = EWCPlugin(ewc_lambda=ewc_lambda, fisher_images=fisher_images, seed=seed or 0)
        super().__init__(plugins=[*(plugins or []), self.ewc], seed=seed, **base_kwargs)
