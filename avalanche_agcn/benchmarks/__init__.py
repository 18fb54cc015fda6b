"""Class-incremental benchmarks of images with several labels."""

from avalanche_agcn.benchmarks.coco import SplitCOCO
from avalanche_agcn.benchmarks.multilabel import (
    MultiLabelAttribute,
    MultiLabelBenchmark,
    multilabel_benchmark,
)
from avalanche_agcn.benchmarks.nus_wide import SplitWIDE
from avalanche_agcn.benchmarks.scenes import SplitScenes

__all__ = [
    "MultiLabelAttribute",
    "MultiLabelBenchmark",
    "SplitCOCO",
    "SplitScenes",
    "SplitWIDE",
    "multilabel_benchmark",
]
