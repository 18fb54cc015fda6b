"""Replay memories that are updated batch by batch, by name."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from avalanche_agcn.methods.replay import OCDMBuffer, PRSBuffer
    from avalanche_agcn.training.buffers import ExperienceReservoirBuffer, OnlineBuffer, ReservoirBuffer

__all__ = [
    "ExperienceReservoirBuffer",
    "OCDMBuffer",
    "OnlineBuffer",
    "PRSBuffer",
    "ReservoirBuffer",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "methods.replay": "OCDMBuffer PRSBuffer",
        "training.buffers": "ExperienceReservoirBuffer OnlineBuffer ReservoirBuffer",
    },
)
