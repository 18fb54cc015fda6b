"""ER: experience replay from a reservoir (Chaudhry et al., 2019; Rolnick et al., 2019)."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.storage_policy.reservoir import ReservoirBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class ER(Replay):
    """Replays from a reservoir: every image of the stream is in memory with the same probability.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        mem_size: images in memory.
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
        seed: int | None = None,
        **replay_kwargs: Any,
    ) -> None:
        buffer = ReservoirBuffer(mem_size, seed=seed or 0)
        super().__init__(model=model, optimizer=optimizer, storage_policy=buffer, seed=seed, **replay_kwargs)
