"""PRS: replay from a partitioning reservoir (Kim, Jeong and Kim, 2020)."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.storage_policy.prs import RHO, PRSBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class PRS(Replay):
    """Replays from a memory whose shares of the classes are near n_i^ρ, so that rare ones are kept.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        mem_size: images in memory.
        rho: see `PRSBuffer`.
        seed: of the memory (0 if None) and of the stream; see `MultiLabelTemplate`.
        replay_kwargs: ``batch_size_mem`` and ``newer_as_negative``, see `OnlineReplayPlugin`; the rest see
            `MultiLabelTemplate`.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        mem_size: int = MEM_SIZE,
        rho: float = RHO,
        seed: int | None = None,
        **replay_kwargs: Any,
    ) -> None:
        buffer = PRSBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(model=model, optimizer=optimizer, storage_policy=buffer, seed=seed, **replay_kwargs)
