"""OCDM: replay from a memory with an optimised class distribution (Liang and Li, 2022)."""

from typing import Any

from avalanche_agcn.training.storage_policy import OCDMBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class OCDM(Replay):
    """Replays from a memory that greedily keeps its label distribution near n_i^ρ.

    Args:
        mem_size: number of images in memory.
        rho: see `OCDMBuffer`.
        seed: seed of the memory (0 if None) and of the stream.
        replay_kwargs: see `Replay`.
    """

    def __init__(
        self, *, mem_size: int = MEM_SIZE, rho: float = 0.0, seed: int | None = None, **replay_kwargs: Any
    ) -> None:
        memory = OCDMBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)
