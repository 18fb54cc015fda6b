"""Plugins that turn any Avalanche strategy into a multi-label one."""

from avalanche_agcn.training.plugins.acm import ACMPlugin
from avalanche_agcn.training.plugins.agcn import AGCNPlugin
from avalanche_agcn.training.plugins.agem import AGEMPlugin
from avalanche_agcn.training.plugins.ewc import EWCPlugin
from avalanche_agcn.training.plugins.lwf import LwFPlugin
from avalanche_agcn.training.plugins.replay import MemoryPlugin, OnlineReplayPlugin
from avalanche_agcn.training.plugins.scr import ContrastivePlugin

__all__ = [
    "ACMPlugin",
    "AGCNPlugin",
    "AGEMPlugin",
    "ContrastivePlugin",
    "EWCPlugin",
    "LwFPlugin",
    "MemoryPlugin",
    "OnlineReplayPlugin",
]
