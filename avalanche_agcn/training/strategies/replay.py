"""Replay from any memory: the base of ER, PRS, OCDM and SCR."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import OnlineBuffer
from avalanche_agcn.training.strategies.base import MultiLabelTemplate

MEM_SIZE = 2000  # of PRS on COCO and NUS-WIDE; the AGCN paper gives none


class Replay(MultiLabelTemplate):
    """Trains on the stream and on images from a memory that is updated after each step.

    Args:
        storage_policy: the memory.
        batch_size_mem: see `OnlineReplayPlugin`.
        newer_as_negative: see `OnlineReplayPlugin`.
        views: see `OnlineReplayPlugin`.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.
    """

    def __init__(
        self,
        *,
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
        super().__init__(plugins=[*(plugins or []), self.replay], **base_kwargs)
