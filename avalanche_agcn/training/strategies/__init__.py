"""Strategies, one short file per method."""

from avalanche_agcn.training.strategies.agcn import AGCN
from avalanche_agcn.training.strategies.agem import AGEM
from avalanche_agcn.training.strategies.base import MultiLabelTemplate
from avalanche_agcn.training.strategies.csc import CSC
from avalanche_agcn.training.strategies.er import ER
from avalanche_agcn.training.strategies.ewc import EWC
from avalanche_agcn.training.strategies.fine_tuning import FineTuning
from avalanche_agcn.training.strategies.l3a import L3A
from avalanche_agcn.training.strategies.lwf import LwF
from avalanche_agcn.training.strategies.multi_task import (
    MultiTask,
    MultiTaskRidge,
    TrainsJointly,
    multi_task_experience,
)
from avalanche_agcn.training.strategies.ocdm import OCDM
from avalanche_agcn.training.strategies.prs import PRS
from avalanche_agcn.training.strategies.replay import Replay
from avalanche_agcn.training.strategies.scr import SCR
from avalanche_agcn.training.strategies.streaming_ridge import StreamingRidge

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
