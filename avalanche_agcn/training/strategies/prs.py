"""PRS: replay from a partitioning reservoir (Kim, Jeong and Kim, 2020)."""

from typing import Any

from avalanche_agcn.training.storage_policy import PRSBuffer
from avalanche_agcn.training.storage_policy.prs import RHO
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class PRS(Replay):
    """Replays from a memory whose class shares approach n_i^ρ, so that rare classes are kept.

    Args:
        mem_size: number of images in memory.
        rho: see `PRSBuffer`.
        seed: seed of the memory (0 if None) and of the stream.
        replay_kwargs: see `Replay`.
    """

    def __init__(
        self, *, mem_size: int = MEM_SIZE, rho: float = RHO, seed: int | None = None, **replay_kwargs: Any
    ) -> None:
        memory = PRSBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)
