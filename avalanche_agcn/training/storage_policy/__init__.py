"""Replay memories that are updated batch by batch."""

from avalanche_agcn.training.storage_policy.balanced import OCDMBuffer, PRSBuffer
from avalanche_agcn.training.storage_policy.base import (
    ExperienceReservoirBuffer,
    OnlineBuffer,
    ReservoirBuffer,
)

__all__ = ["ExperienceReservoirBuffer", "OCDMBuffer", "OnlineBuffer", "PRSBuffer", "ReservoirBuffer"]
