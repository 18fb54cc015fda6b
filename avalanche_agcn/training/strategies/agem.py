"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from collections.abc import Sequence
from typing import Any

from avalanche.core import BasePlugin
from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.plugins.agem import AGEMPlugin
from avalanche_agcn.training.storage_policy.reservoir import ExperienceReservoirBuffer
from avalanche_agcn.training.strategies.base import MultiLabelTemplate
from avalanche_agcn.training.strategies.replay import MEM_SIZE


class AGEM(MultiLabelTemplate):
    """Does not let a step raise the loss on a batch from memory.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        mem_size: images in memory, equally many of each experience.
        sample_size: images of the reference batch; as many as of the stream if None. The paper has 256,
            which would make a step of 8 images 33 times as long.
        seed: of the memory (0 if None) and of the stream; see `MultiLabelTemplate`.
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
        mem_size: int = MEM_SIZE,
        sample_size: int | None = None,
        seed: int | None = None,
        plugins: Sequence[BasePlugin] | None = None,
        **base_kwargs: Any,
    ) -> None:
        buffer = ExperienceReservoirBuffer(mem_size, seed=seed or 0)
        self.agem = AGEMPlugin(buffer, sample_size=sample_size)
        super().__init__(
            model=model, optimizer=optimizer, plugins=[*(plugins or []), self.agem], seed=seed, **base_kwargs
        )
