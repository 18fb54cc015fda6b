"""Class-incremental benchmarks of images with several labels."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from .coco import SplitCOCO
    from .csv_files import multilabel_csv
    from .download import download_coco, download_voc
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
    "download_coco",
    "download_voc",
    "multilabel_benchmark",
    "multilabel_csv",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "benchmarks.coco": "SplitCOCO",
        "benchmarks.csv_files": "multilabel_csv",
        "benchmarks.download": "download_coco download_voc",
        "benchmarks.experience": "MultiLabelAttribute MultiLabelExperience",
        "benchmarks.multilabel": "MultiLabelBenchmark multilabel_benchmark",
        "benchmarks.nus_wide": "SplitWIDE",
        "benchmarks.photos": "SplitPhotos",
        "benchmarks.scenes": "SplitScenes",
        "benchmarks.voc": "SplitVOC",
    },
)
