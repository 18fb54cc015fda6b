"""Class-incremental benchmarks of images with several labels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avalanche_agcn.benchmarks.coco import SplitCOCO
    from avalanche_agcn.benchmarks.csv_files import multilabel_csv
    from avalanche_agcn.benchmarks.experience import MultiLabelExperience
    from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark, multilabel_benchmark
    from avalanche_agcn.benchmarks.nus_wide import SplitWIDE
    from avalanche_agcn.benchmarks.photos import SplitPhotos
    from avalanche_agcn.benchmarks.scenes import SplitScenes
    from avalanche_agcn.benchmarks.targets import MultiLabelAttribute
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

# Imported at first use: models and metrics need experiences, but no data source.
_MODULES = {
    "MultiLabelAttribute": "targets",
    "MultiLabelBenchmark": "multilabel",
    "MultiLabelExperience": "experience",
    "SplitCOCO": "coco",
    "SplitPhotos": "photos",
    "SplitScenes": "scenes",
    "SplitVOC": "voc",
    "SplitWIDE": "nus_wide",
    "multilabel_benchmark": "multilabel",
    "multilabel_csv": "csv_files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
