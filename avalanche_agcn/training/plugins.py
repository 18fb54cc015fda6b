"""Plugins that turn any Avalanche strategy into a multi-label one, by name."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from avalanche_agcn.agcn.plugins import ACMPlugin, AGCNPlugin
    from avalanche_agcn.methods.agem import AGEMPlugin
    from avalanche_agcn.methods.csc import ConfidencePenaltyPlugin
    from avalanche_agcn.methods.ewc import EWCPlugin
    from avalanche_agcn.methods.l3a import L3APlugin
    from avalanche_agcn.methods.lwf import LwFPlugin
    from avalanche_agcn.methods.replay import ContrastivePlugin
    from avalanche_agcn.training.memory import MemoryPlugin, OnlineReplayPlugin
    from avalanche_agcn.training.statistics.collector import FeatureStatisticsPlugin
    from avalanche_agcn.training.statistics.drift import DecoupledTrainingPlugin, DriftCompensationPlugin
    from avalanche_agcn.training.statistics.negatives import StatisticalNegativesPlugin
    from avalanche_agcn.training.teacher import PseudoLabelPlugin

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "agcn.plugins": "ACMPlugin AGCNPlugin",
        "methods.agem": "AGEMPlugin",
        "methods.csc": "ConfidencePenaltyPlugin",
        "methods.ewc": "EWCPlugin",
        "methods.l3a": "L3APlugin",
        "methods.lwf": "LwFPlugin",
        "methods.replay": "ContrastivePlugin",
        "training.memory": "MemoryPlugin OnlineReplayPlugin",
        "training.statistics.collector": "FeatureStatisticsPlugin",
        "training.statistics.drift": "DecoupledTrainingPlugin DriftCompensationPlugin",
        "training.statistics.negatives": "StatisticalNegativesPlugin",
        "training.teacher": "PseudoLabelPlugin",
    },
)
