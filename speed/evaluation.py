"""Speed and memory of the metrics against scikit-learn and torchmetrics.

    python speed/evaluation.py

Scores and labels are random, as many as in Split-COCO's test set: 27,173 images, 40 classes, ten nested sets.
mAP is compared with scikit-learn and torchmetrics; the nested evaluation (mAP, CF1 and OF1 of ten sets) with
one `numpy.sort` of each set's scores, class by class; peak memory for NUS-WIDE's size (269,648 images, 81
classes) with a bound. All sides use as many threads as torch does.
"""

import argparse

import numpy as np
import torch
from measure import Row, Topic, best_times, in_child, peak_megabytes, run_script
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from avalanche_agcn.evaluation.functional import mean_average_precision, nested_scores, precision_recall_f1

N_IMAGES, N_CLASSES, N_SETS = 27_173, 40, 10
LARGE_IMAGES, LARGE_CLASSES = 269_648, 81
DENSITY = 2.9 / 80  # labels per image and class, as in COCO
SORT_NOTE = (
    "three quarters of the time is NumPy's sort, whose AVX512 code is four times as slow as its AVX2 code on "
    'AMD\'s Zen 4: with NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" this row is 19×'
)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    peak = in_child(peak_memory)  # before torch has threads
    memory = Row("peak memory of the whole process", peak, 2048.0, unit=" MB")
    rows = [*measure_map(arguments.repeats), measure_nested(arguments.repeats), memory]
    about = (
        f"Scores of {N_IMAGES:,} images and {N_CLASSES} classes, as in Split-COCO's test set; in the last "
        f"row {LARGE_IMAGES:,} images and {LARGE_CLASSES} classes, as in NUS-WIDE."
    )
    return [Topic("Metrics", about, rows)]


def measure_map(repeats: int) -> list[Row]:
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
    over_sklearn = seconds["scikit-learn"] / seconds["ours"]
    over_torchmetrics = seconds["torchmetrics"] / seconds["ours"]
    return [
        Row("mAP, faster than scikit-learn", over_sklearn, 6.0, at_least=True, unit="×"),
        Row(
            "mAP, faster than torchmetrics", over_torchmetrics, 30.0, at_least=True, unit="×", note=SORT_NOTE
        ),
    ]


def measure_nested(repeats: int) -> Row:
    scores, targets = random_case(N_IMAGES, N_CLASSES)
    sizes, classes = nested_sizes(N_IMAGES, N_CLASSES)
    array = scores.numpy()

    def sort_each_set() -> None:
        for n, c in zip(sizes, classes, strict=True):
            np.sort(array[:n, :c], axis=0)

    def evaluate() -> None:
        nested_scores(scores, targets, set_sizes=sizes, class_counts=classes, threshold=0.0)

    seconds = best_times({"ours": evaluate, "sort": sort_each_set}, repeats)
    what = "mAP, CF1 and OF1 of ten nested sets / sorting each set's scores"
    return Row(what, seconds["ours"] / seconds["sort"], 3.0)


def peak_memory() -> float:
    """Peak memory in MB of a process that only evaluates as many scores as NUS-WIDE has."""
    scores, targets = random_case(LARGE_IMAGES, LARGE_CLASSES)
    sizes, classes = nested_sizes(LARGE_IMAGES, LARGE_CLASSES)
    mean_average_precision(scores, targets)
    precision_recall_f1(scores, targets, threshold=0.0)
    nested_scores(scores, targets, set_sizes=sizes, class_counts=classes, threshold=0.0)
    return peak_megabytes()


def random_case(n_images: int, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels."""
    return torch.randn(n_images, n_classes), (torch.rand(n_images, n_classes) < DENSITY).float()


def nested_sizes(n_images: int, n_classes: int) -> tuple[list[int], list[int]]:
    """Images and classes of ten nested sets, of equal increments."""
    steps = range(1, N_SETS + 1)
    return [n_images * i // N_SETS for i in steps], [n_classes * i // N_SETS for i in steps]


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=10))
