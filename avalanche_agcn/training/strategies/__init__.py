"""Strategies: each combines the template with plugins."""

from avalanche_agcn.training.strategies.agcn import AGCN
from avalanche_agcn.training.strategies.base import MultiLabelTemplate
from avalanche_agcn.training.strategies.baselines import (
    CSC,
    EWC,
    FineTuning,
    LwF,
    MultiTask,
    MultiTaskRidge,
    TrainsJointly,
    multi_task_experience,
)
from avalanche_agcn.training.strategies.closed_form import L3A, StreamingRidge
from avalanche_agcn.training.strategies.replay import AGEM, ER, OCDM, PRS, SCR, Replay

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
    "FineTuning",
    "LwF",
    "MultiLabelTemplate",
    "MultiTask",
    "MultiTaskRidge",
    "Replay",
    "StreamingRidge",
    "TrainsJointly",
    "multi_task_experience",
]
