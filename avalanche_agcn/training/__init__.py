"""Strategies, plugins and losses for multi-label continual learning."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_getattr

if TYPE_CHECKING:
    from .acm import AugmentedCorrelationMatrix
    from .distributed import process_group
    from .feature_statistics import FeatureStatistics
    from .graph import adjacency
    from .losses import AsymmetricLoss, MultiLabelContrastiveLoss, PartialBCEWithLogitsLoss
    from .storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer
    from .strategies import (
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

__getattr__ = lazy_getattr(
    __name__, "distributed", "acm", "graph", "losses", "feature_statistics", "storage_policy", "strategies"
)
