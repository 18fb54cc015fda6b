"""Replay memories that are updated batch by batch."""

from .balanced import OCDMBuffer, PRSBuffer
from .base import ExperienceReservoirBuffer, OnlineBuffer, ReservoirBuffer

__all__ = ["ExperienceReservoirBuffer", "OCDMBuffer", "OnlineBuffer", "PRSBuffer", "ReservoirBuffer"]
