"""Plugins that turn any Avalanche strategy into a multi-label one."""

from avalanche_agcn.training.plugins.agcn import ACMPlugin, AGCNPlugin
from avalanche_agcn.training.plugins.distillation import ConfidencePenaltyPlugin, LwFPlugin, PseudoLabelPlugin
from avalanche_agcn.training.plugins.drift import DecoupledTrainingPlugin, DriftCompensationPlugin
from avalanche_agcn.training.plugins.ewc import EWCPlugin
from avalanche_agcn.training.plugins.replay import (
    AGEMPlugin,
    ContrastivePlugin,
    MemoryPlugin,
    OnlineReplayPlugin,
)
from avalanche_agcn.training.plugins.statistics import (
    FeatureStatisticsPlugin,
    L3APlugin,
    StatisticalNegativesPlugin,
)

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
