"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017)."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin
from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.plugins.ewc import EWCPlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

EWC_LAMBDA = 1e3  # no source gives one for multi-label images: ours, from the embedded benchmark


class EWC(MultiLabelTemplate):
    """Holds back the parameters that mattered to earlier experiences.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        ewc_lambda: see `EWCPlugin`, as for the next two.
        fisher_images: images of an experience that the importance is measured on; all if None.
        seed: of their choice (0 if None) and of the stream; see `MultiLabelTemplate`.
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
        ewc_lambda: float = EWC_LAMBDA,
        fisher_images: int | None = None,
        seed: int | None = None,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.ewc = EWCPlugin(ewc_lambda=ewc_lambda, fisher_images=fisher_images, seed=seed or 0)
        super().__init__(
            model=model, optimizer=optimizer, plugins=[*(plugins or []), self.ewc], seed=seed, **base_kwargs
        )
