"""Speed and memory of the evaluation against its peers.

    python speed/evaluation.py

Random scores and labels of the size of Split-COCO's test set: 27,173 images, 40 classes, ten nested sets.
mAP is compared with scikit-learn and torchmetrics; the nested evaluation (mAP, CF1 and OF1 of ten sets)
with one `numpy.sort` of each set's score matrix, class by class; the memory of NUS-WIDE's size (269,648
images, 81 classes) with a bound. All sides use the threads that torch uses.
"""

from __future__ import annotations

import argparse
import resource
import sys

import numpy as np
import torch
from measure import Row, Topic, best_times, in_child, run_script
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from avalanche_agcn.evaluation.functional import mean_average_precision, nested_scores, precision_recall_f1

N_IMAGES, N_CLASSES, N_SETS = 27_173, 40, 10
LARGE_IMAGES, LARGE_CLASSES = 269_648, 81
DENSITY = 2.9 / 80  # labels of an image by classes, as in COCO

SKLEARN_BOUND, TORCHMETRICS_BOUND = 6.0, 30.0  # at least so many times faster
SORT_NOTE = (
    "three quarters of the time are NumPy's sort; on AMD's Zen 4 its AVX512 code takes four times as long as "
    'that for AVX2: with NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" this row is 19×'
)
NESTED_BOUND = 3.0  # at most so many sorts
MEMORY_BOUND = 2048.0  # MB at most, of the whole process


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=10, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    memory = measure_memory()  # before torch has threads
    rows = [*measure_map(arguments.repeats), measure_nested(arguments.repeats), memory]
    about = (
        f"Scores of {N_IMAGES:,} images and {N_CLASSES} classes, as many as Split-COCO's test set has; the "
        f"last row has as many as NUS-WIDE, {LARGE_IMAGES:,} and {LARGE_CLASSES}."
    )
    return [Topic("Metrics", about, rows)]


def measure_map(repeats: int) -> list[Row]:
    """MAP of one set against scikit-learn and torchmetrics."""
    scores, targets = random_case(N_IMAGES, N_CLASSES)
    labels, array = targets.long(), scores.numpy()
    seconds = best_times(
        {
            "ours": lambda: mean_average_precision(scores, targets),
            "scikit-learn": lambda: average_precision_score(labels.numpy(), array, average="macro"),
            "torchmetrics": lambda: multilabel_average_precision(scores, labels, num_labels=N_CLASSES),
        },
        repeats,
    )
    return [
        Row(
            what=f"mAP, faster than {peer}",
            measured=seconds[peer] / seconds["ours"],
            bound=bound,
            at_least=True,
            unit="×",
            note=note,
        )
        for peer, bound, note in (
            ("scikit-learn", SKLEARN_BOUND, ""),
            ("torchmetrics", TORCHMETRICS_BOUND, SORT_NOTE),
        )
    ]


def measure_nested(repeats: int) -> Row:
    """MAP, CF1 and OF1 of ten nested sets against one sort of each set."""
    scores, targets = random_case(N_IMAGES, N_CLASSES)
    sizes, classes = nested_sizes(N_IMAGES, N_CLASSES)
    array = scores.numpy()

    def sort_each_set() -> None:
        for n, c in zip(sizes, classes, strict=True):
            np.sort(array[:n, :c], axis=0)

    def evaluate() -> None:
        nested_scores(scores, targets, set_sizes=sizes, class_counts=classes, threshold=0.0)

    seconds = best_times({"ours": evaluate, "sort": sort_each_set}, repeats)
    return Row(
        what="mAP, CF1 and OF1 of ten nested sets / sorting each set's scores",
        measured=seconds["ours"] / seconds["sort"],
        bound=NESTED_BOUND,
    )


def measure_memory() -> Row:
    """Peak memory of a process that evaluates NUS-WIDE's size and does nothing else."""
    peak = in_child(peak_memory)
    return Row(what="peak memory of the whole process", measured=peak, bound=MEMORY_BOUND, unit=" MB")


def peak_memory() -> float:
    """In MB; for a process of its own."""
    scores, targets = random_case(LARGE_IMAGES, LARGE_CLASSES)
    sizes, classes = nested_sizes(LARGE_IMAGES, LARGE_CLASSES)
    mean_average_precision(scores, targets)
    precision_recall_f1(scores, targets, threshold=0.0)
    nested_scores(scores, targets, set_sizes=sizes, class_counts=classes, threshold=0.0)
    in_bytes = sys.platform == "darwin"  # elsewhere in kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if in_bytes else 1024)


def random_case(n_images: int, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels."""
    return torch.randn(n_images, n_classes), (torch.rand(n_images, n_classes) < DENSITY).float()


def nested_sizes(n_images: int, n_classes: int) -> tuple[list[int], list[int]]:
    """Images and classes of ten nested sets, of equal increments."""
    steps = range(1, N_SETS + 1)
    return [n_images * i // N_SETS for i in steps], [n_classes * i // N_SETS for i in steps]


if __name__ == "__main__":
    sys.exit(main())
