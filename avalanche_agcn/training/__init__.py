"""Strategies, plugins and losses for multi-label continual learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avalanche_agcn.training.acm import AugmentedCorrelationMatrix
    from avalanche_agcn.training.distributed import process_group
    from avalanche_agcn.training.feature_statistics import FeatureStatistics
    from avalanche_agcn.training.graph import adjacency
    from avalanche_agcn.training.losses import (
        AsymmetricLoss,
        MultiLabelContrastiveLoss,
        PartialBCEWithLogitsLoss,
    )
    from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer
    from avalanche_agcn.training.strategies import (
        AGCN,
        AGEM,
        CSC,
        ER,
        EWC,
        L3A,
        OCDM,
        PRS,
        SCR,
        FineTuning,
        LwF,
        MultiTask,
        MultiTaskRidge,
        StreamingRidge,
    )

__all__ = [
    "AGCN",
    "AGEM",
    "CSC",
    "ER",
    "EWC",
    "L3A",
    "OCDM",
    "PRS",
    "SCR",
    "AsymmetricLoss",
    "AugmentedCorrelationMatrix",
    "FeatureStatistics",
    "FineTuning",
    "LwF",
    "MultiLabelContrastiveLoss",
    "MultiTask",
    "MultiTaskRidge",
    "OCDMBuffer",
    "PRSBuffer",
    "PartialBCEWithLogitsLoss",
    "ReservoirBuffer",
    "StreamingRidge",
    "adjacency",
    "process_group",
]

# Imported at first use: losses and statistics do not need Avalanche, which takes seconds.
_MODULES = {
    "AGCN": "strategies",
    "AGEM": "strategies",
    "CSC": "strategies",
    "ER": "strategies",
    "EWC": "strategies",
    "L3A": "strategies",
    "OCDM": "strategies",
    "PRS": "strategies",
    "SCR": "strategies",
    "AsymmetricLoss": "losses",
    "AugmentedCorrelationMatrix": "acm",
    "FineTuning": "strategies",
    "LwF": "strategies",
    "MultiLabelContrastiveLoss": "losses",
    "MultiTask": "strategies",
    "MultiTaskRidge": "strategies",
    "OCDMBuffer": "storage_policy",
    "PRSBuffer": "storage_policy",
    "PartialBCEWithLogitsLoss": "losses",
    "FeatureStatistics": "feature_statistics",
    "ReservoirBuffer": "storage_policy",
    "StreamingRidge": "strategies",
    "adjacency": "graph",
    "process_group": "distributed",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
