"""Class-incremental benchmarks of images with several labels."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_getattr

if TYPE_CHECKING:
    from .coco import SplitCOCO
    from .csv_files import multilabel_csv
    from .experience import MultiLabelAttribute, MultiLabelExperience
    from .multilabel import MultiLabelBenchmark, multilabel_benchmark
    from .nus_wide import SplitWIDE
    from .photos import SplitPhotos
    from .scenes import SplitScenes
    from .voc import SplitVOC

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
