"""The memories under the name that Avalanche has for them."""

from avalanche_agcn.training.storage import (
    ExperienceReservoirBuffer,
    OCDMBuffer,
    OnlineBuffer,
    PRSBuffer,
    ReservoirBuffer,
)

__all__ = ["ExperienceReservoirBuffer", "OCDMBuffer", "OnlineBuffer", "PRSBuffer", "ReservoirBuffer"]
