"""SCR: supervised contrastive replay (Mai et al., 2021), our adaptation to several labels."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin
from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.contrastive import TEMPERATURE
from avalanche_agcn.training.plugins.scr import ContrastivePlugin
from avalanche_agcn.training.storage_policy.reservoir import ReservoirBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay

BATCH_SIZE_MEM = 100  # of the SCR paper
CONTRAST_WEIGHT = 0.1  # ours, from the embedded benchmark: the criterion must keep its say


class SCR(Replay):
    """Learns features that draw images together as far as they share labels, on stream and memory.

    SCR is for one label an image, and the AGCN paper does not say how it was made multi-label. Here:

    - the loss is `MultiLabelContrastiveLoss`, whose weights are the overlap of labels where both are
      annotated;
    - two views of each image, as in SCR: each is loaded twice, with augmentations of its own;
    - a linear classifier with the strategy's criterion gives scores, instead of the nearest class mean;
    - the features themselves are contrasted, without a projection head, so that no parameter is added.

    A step sees ``2 * (train_mb_size + batch_size_mem)`` images.

    Args:
        model: a network with a ``backbone``.
        optimizer: over the model's parameters.
        mem_size: images in memory, a reservoir.
        batch_size_mem: images from memory a step.
        contrast_weight: weight of the contrastive loss beside the criterion.
        temperature: τ.
        views: augmented copies of each image in a batch.
        seed: of the memory (0 if None) and of the stream; see `MultiLabelTemplate`.
        plugins: further plugins; the list is not changed.
        replay_kwargs: ``newer_as_negative``, see `OnlineReplayPlugin`; the rest see `MultiLabelTemplate`.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        mem_size: int = MEM_SIZE,
        batch_size_mem: int | None = BATCH_SIZE_MEM,
        contrast_weight: float = CONTRAST_WEIGHT,
        temperature: float = TEMPERATURE,
        views: int = 2,
        seed: int | None = None,
        plugins: Sequence[BasePlugin] | None = None,
        **replay_kwargs: Any,
    ) -> None:
        self.contrast = ContrastivePlugin(weight=contrast_weight, temperature=temperature)
        super().__init__(
            model=model,
            optimizer=optimizer,
            storage_policy=ReservoirBuffer(mem_size, seed=seed or 0),
            batch_size_mem=batch_size_mem,
            views=views,
            plugins=[*(plugins or []), self.contrast],
            seed=seed,
            **replay_kwargs,
        )
