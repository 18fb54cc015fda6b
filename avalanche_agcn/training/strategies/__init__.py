"""Strategies: each combines the template with plugins."""

from .agcn import AGCN
from .base import MultiLabelTemplate
from .baselines import (
    CSC,
    EWC,
    FineTuning,
    LwF,
    MultiTask,
    MultiTaskRidge,
    TrainsJointly,
    multi_task_experience,
)
from .closed_form import L3A, StreamingRidge
from .replay import AGEM, ER, OCDM, PRS, SCR, Replay

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
