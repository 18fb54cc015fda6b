"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin

from avalanche_agcn.training.plugins.agem import AGEMPlugin
from avalanche_agcn.training.storage_policy import ExperienceReservoirBuffer
from avalanche_agcn.training.strategies.base import MultiLabelTemplate
from avalanche_agcn.training.strategies.replay import MEM_SIZE


class AGEM(MultiLabelTemplate):
    """Does not let a step raise the loss on a batch from memory.

    Args:
        mem_size: number of images in memory, equally many of each experience.
        sample_size: number of images in a reference batch; as many as of the stream if None. The paper has
            256, which makes a step of 8 images 33 times as long.
        seed: seed of the memory (0 if None) and of the stream.
        plugins: further plugins; the list is not changed.
        base_kwargs: see `MultiLabelTemplate`.
    """

    def __init__(
        self,
        *,
        mem_size: int = MEM_SIZE,
        sample_size: int | None = None,
        seed: int | None = None,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        memory = ExperienceReservoirBuffer(mem_size, seed=seed or 0)
        self.agem = AGEMPlugin(memory, sample_size=sample_size)
        super().__init__(plugins=[*(plugins or []), self.agem], seed=seed, **base_kwargs)
