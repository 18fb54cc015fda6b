"""Replay memories that are updated batch by batch, one file each."""

from avalanche_agcn.training.storage_policy.base import OnlineBuffer
from avalanche_agcn.training.storage_policy.ocdm import OCDMBuffer
from avalanche_agcn.training.storage_policy.prs import PRSBuffer
from avalanche_agcn.training.storage_policy.reservoir import ExperienceReservoirBuffer, ReservoirBuffer

__all__ = ["ExperienceReservoirBuffer", "OCDMBuffer", "OnlineBuffer", "PRSBuffer", "ReservoirBuffer"]
