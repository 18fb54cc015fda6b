"""ER: experience replay from a reservoir (Chaudhry et al., 2019; Rolnick et al., 2019)."""

from typing import Any

from avalanche_agcn.training.storage_policy import ReservoirBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class ER(Replay):
    """Replays from a reservoir: every image of the stream is in memory with the same probability.

    Args:
        mem_size: number of images in memory.
        seed: seed of the memory (0 if None) and of the stream.
        replay_kwargs: see `Replay`.
    """

    def __init__(self, *, mem_size: int = MEM_SIZE, seed: int | None = None, **replay_kwargs: Any) -> None:
        memory = ReservoirBuffer(mem_size, seed=seed or 0)
        super().__init__(storage_policy=memory, seed=seed, **replay_kwargs)
