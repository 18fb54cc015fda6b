"""Plugins that turn any Avalanche strategy into a multi-label one."""

from .agcn import ACMPlugin, AGCNPlugin
from .distillation import ConfidencePenaltyPlugin, LwFPlugin, PseudoLabelPlugin
from .drift import DecoupledTrainingPlugin, DriftCompensationPlugin
from .ewc import EWCPlugin
from .replay import AGEMPlugin, ContrastivePlugin, MemoryPlugin, OnlineReplayPlugin
from .statistics import FeatureStatisticsPlugin, L3APlugin, StatisticalNegativesPlugin

__all__ = [
    "ACMPlugin",
    "AGCNPlugin",
    "AGEMPlugin",
    "ConfidencePenaltyPlugin",
    "ContrastivePlugin",
    "DecoupledTrainingPlugin",
    "DriftCompensationPlugin",
    "EWCPlugin",
    "FeatureStatisticsPlugin",
    "L3APlugin",
    "LwFPlugin",
    "MemoryPlugin",
    "OnlineReplayPlugin",
    "PseudoLabelPlugin",
    "StatisticalNegativesPlugin",
]
