"""Strategies, losses and statistics for multi-label continual learning.

What all methods share is in this package; AGCN is in `avalanche_agcn.agcn`, every other method in a file of
`avalanche_agcn.methods`. All names can be imported from here.
"""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
    from avalanche_agcn.agcn.graph import GraphOptions, adjacency
    from avalanche_agcn.agcn.strategy import AGCN
    from avalanche_agcn.methods.agem import AGEM
    from avalanche_agcn.methods.csc import CSC
    from avalanche_agcn.methods.ewc import EWC
    from avalanche_agcn.methods.fine_tuning import FineTuning
    from avalanche_agcn.methods.l3a import L3A
    from avalanche_agcn.methods.lwf import LwF
    from avalanche_agcn.methods.multi_task import MultiTask, MultiTaskRidge
    from avalanche_agcn.methods.replay import (
        ER,
        OCDM,
        PRS,
        SCR,
        MultiLabelContrastiveLoss,
        OCDMBuffer,
        PRSBuffer,
    )
    from avalanche_agcn.methods.streaming_ridge import StreamingRidge
    from avalanche_agcn.training.buffers import ReservoirBuffer
    from avalanche_agcn.training.distributed import process_group
    from avalanche_agcn.training.losses import AsymmetricLoss, PartialBCEWithLogitsLoss
    from avalanche_agcn.training.statistics.features import FeatureStatistics

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
    "GraphOptions",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "agcn.correlation": "AugmentedCorrelationMatrix",
        "agcn.graph": "GraphOptions adjacency",
        "agcn.strategy": "AGCN",
        "methods.agem": "AGEM",
        "methods.csc": "CSC",
        "methods.ewc": "EWC",
        "methods.fine_tuning": "FineTuning",
        "methods.l3a": "L3A",
        "methods.lwf": "LwF",
        "methods.multi_task": "MultiTask MultiTaskRidge",
        "methods.replay": "ER MultiLabelContrastiveLoss OCDM OCDMBuffer PRS PRSBuffer SCR",
        "methods.streaming_ridge": "StreamingRidge",
        "training.buffers": "ReservoirBuffer",
        "training.distributed": "process_group",
        "training.losses": "AsymmetricLoss PartialBCEWithLogitsLoss",
        "training.statistics.features": "FeatureStatistics",
    },
)
