"""OCDM: replay from a memory of optimised class distribution (Liang and Li, 2022)."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from avalanche_agcn.training.storage_policy.ocdm import OCDMBuffer
from avalanche_agcn.training.strategies.replay import MEM_SIZE, Replay


class OCDM(Replay):
    """Replays from a memory that greedily keeps its label distribution near n_i^ρ.

    Args:
        model: gives logits of the classes seen so far.
        optimizer: over the model's parameters.
        mem_size: images in memory.
        rho: see `OCDMBuffer`.
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
        rho: float = 0.0,
        seed: int | None = None,
        **replay_kwargs: Any,
    ) -> None:
        buffer = OCDMBuffer(mem_size, rho=rho, seed=seed or 0)
        super().__init__(model=model, optimizer=optimizer, storage_policy=buffer, seed=seed, **replay_kwargs)
