"""What the strategies with replay share."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin
from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.storage_policy.base import OnlineBuffer
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

MEM_SIZE = 2000  # of PRS on COCO and NUS-WIDE; the AGCN paper gives none


class Replay(MultiLabelTemplate):
    """Trains on the stream and on images from a memory that is updated after each step.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        storage_policy: the memory.
        batch_size_mem: see `OnlineReplayPlugin`, as for the next two.
        newer_as_negative: whether replayed images count as negatives of newer classes.
        views: how often each image stands in a batch.
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
        storage_policy: OnlineBuffer,
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        views: int = 1,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        self.replay = OnlineReplayPlugin(
            storage_policy, batch_size_mem=batch_size_mem, newer_as_negative=newer_as_negative, views=views
        )
        super().__init__(
            model=model, optimizer=optimizer, plugins=[*(plugins or []), self.replay], **base_kwargs
        )
