"""SCR: supervised contrastive replay (Mai et al., 2021), our adaptation to several labels."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.training.losses import TEMPERATURE
from avalanche_agcn.training.plugins.scr import ContrastivePlugin
from avalanche_agcn.training.strategies.er import ER

BATCH_SIZE_MEM = 100  # of the SCR paper
CONTRAST_WEIGHT = 0.1  # ours, from the embedded benchmark: the criterion must keep its influence


class SCR(ER):
    """Contrasts features of stream and memory by the overlap of their labels.

    SCR is for one label per image, and the AGCN paper does not say how it was made multi-label. Here:

    - the loss is `MultiLabelContrastiveLoss`, whose weights are the overlap of labels where both are
      annotated;
    - each batch has two views of each image, as in SCR, with their own augmentation;
    - a linear classifier with the strategy's criterion gives scores, instead of the nearest class mean;
    - the features themselves are contrasted, without a projection head, so that no parameter is added.

    A step sees ``2 * (train_mb_size + batch_size_mem)`` images.

    Args:
        batch_size_mem: replayed images per step.
        contrast_weight: weight of the contrastive loss beside the criterion.
        temperature: τ.
        views: number of views of each image in a batch.
        plugins: further plugins; the list is not changed.
        replay_kwargs: see `ER` and `Replay`.
    """

    def __init__(
        self,
        *,
        batch_size_mem: int | None = BATCH_SIZE_MEM,
        contrast_weight: float = CONTRAST_WEIGHT,
        temperature: float = TEMPERATURE,
        views: int = 2,
        plugins: Sequence[BasePlugin] | None = None,
        **replay_kwargs: Any,
    ) -> None:
        self.contrast = ContrastivePlugin(weight=contrast_weight, temperature=temperature)
        plugins = [*(plugins or []), self.contrast]
        super().__init__(batch_size_mem=batch_size_mem, views=views, plugins=plugins, **replay_kwargs)
