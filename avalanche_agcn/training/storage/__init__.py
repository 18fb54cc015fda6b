"""Memories that are filled as the stream flows, one file each."""

from avalanche_agcn.training.storage.base import OnlineBuffer
from avalanche_agcn.training.storage.ocdm import OCDMBuffer
from avalanche_agcn.training.storage.prs import PRSBuffer
from avalanche_agcn.training.storage.reservoir import ExperienceReservoirBuffer, ReservoirBuffer

__all__ = ["ExperienceReservoirBuffer", "OCDMBuffer", "OnlineBuffer", "PRSBuffer", "ReservoirBuffer"]
