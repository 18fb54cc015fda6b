"""Class-incremental benchmarks of images with several labels."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_getattr

if TYPE_CHECKING:
    from avalanche_agcn.benchmarks.coco import SplitCOCO
    from avalanche_agcn.benchmarks.csv_files import multilabel_csv
    from avalanche_agcn.benchmarks.experience import MultiLabelAttribute, MultiLabelExperience
    from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, multilabel_benchmark
    from avalanche_agcn.benchmarks.nus_wide import SplitWIDE
    from avalanche_agcn.benchmarks.photos import SplitPhotos
    from avalanche_agcn.benchmarks.scenes import SplitScenes
    from avalanche_agcn.benchmarks.voc import SplitVOC

__all__ = [
    "MultiLabelAttribute",
    "MultiLabelBenchmark",
    "MultiLabelExperience",
    "SplitCOCO",
    "SplitPhotos",
    "SplitScenes",
    "SplitVOC",
    "SplitWIDE",
    "multilabel_benchmark",
    "multilabel_csv",
]

__getattr__ = lazy_getattr(
    __name__, "experience", "multilabel", "scenes", "nus_wide", "voc", "csv_files", "coco", "photos"
)
