"""Speed and memory of the evaluation, each number as a ratio against a peer in one run.

    python speed/evaluation.py

Random scores and labels of the size of Split-COCO's test set: 27,173 images, 40 classes, ten nested sets.
mAP is compared with scikit-learn and torchmetrics; the nested evaluation (mAP, CF1 and OF1 of ten sets)
with one `numpy.sort` of each set's score matrix, class by class; the memory of NUS-WIDE's size (269,648
images, 81 classes) with a bound. All sides use the threads that torch uses; they take turns and the best
time of each counts, so that other work on the machine shows little. Exits with 1 if a bound is missed.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from avalanche_agcn.evaluation.functional import mean_average_precision, precision_recall_f1
from avalanche_agcn.evaluation.nested import nested_scores

N_IMAGES, N_CLASSES, N_SETS = 27_173, 40, 10
LARGE_IMAGES, LARGE_CLASSES = 269_648, 81
DENSITY = 2.9 / 80  # labels of an image by classes, as in COCO

SKLEARN_BOUND, TORCHMETRICS_BOUND = 6.0, 30.0  # at least so many times faster
NESTED_BOUND = 3.0  # at most so many sorts
MEMORY_BOUND = 2048.0  # MB at most, of the whole process
# Seconds before each turn: OpenMP's threads keep a processor busy for some milliseconds after their work, in
# case more comes, so that without a pause torchmetrics' turn would be felt in the next.
PAUSE = 0.03


def main() -> int:
    """Measure, print the table, and tell whether all bounds hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="how often each side has its turn")
    parser.add_argument("--threads", type=int, help="threads of all sides; as torch has it by default")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_only:
        return print_peak_memory()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [*measure_map(arguments.repeats), measure_nested(arguments.repeats), measure_memory()]
    print(f"{torch.get_num_threads()} threads, best of {arguments.repeats}\n")
    print("| what | measured | bound | |")
    print("| --- | --- | --- | --- |")
    for what, measured, bound, held in rows:
        print(f"| {what} | {measured} | {bound} | {'ok' if held else 'MISSED'} |")
    return 0 if all(held for *_, held in rows) else 1


Row = tuple[str, str, str, bool]


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
    rows = []
    for peer, bound in (("scikit-learn", SKLEARN_BOUND), ("torchmetrics", TORCHMETRICS_BOUND)):
        ratio = seconds[peer] / seconds["ours"]
        times = f"{1000 * seconds['ours']:.1f} ms against {1000 * seconds[peer]:.0f} ms"
        rows.append((f"mAP, faster than {peer}", f"{ratio:.1f}× ({times})", f"≥ {bound:g}×", ratio >= bound))
    return rows


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
    ratio = seconds["ours"] / seconds["sort"]
    times = f"{1000 * seconds['ours']:.1f} ms against {1000 * seconds['sort']:.1f} ms"
    what = "nested evaluation of ten sets, in sorts of each set"
    return what, f"{ratio:.2f} ({times})", f"≤ {NESTED_BOUND:g}", ratio <= NESTED_BOUND


def measure_memory() -> Row:
    """Peak memory of a process that evaluates NUS-WIDE's size and does nothing else."""
    command = [sys.executable, __file__, "--memory-only"]
    peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    what = f"peak memory, {LARGE_IMAGES:,} × {LARGE_CLASSES}"
    return what, f"{peak:.0f} MB", f"≤ {MEMORY_BOUND:.0f} MB", peak <= MEMORY_BOUND


def print_peak_memory() -> int:
    """What `measure_memory` starts in a process of its own."""
    scores, targets = random_case(LARGE_IMAGES, LARGE_CLASSES)
    sizes, classes = nested_sizes(LARGE_IMAGES, LARGE_CLASSES)
    mean_average_precision(scores, targets)
    precision_recall_f1(scores, targets, threshold=0.0)
    nested_scores(scores, targets, set_sizes=sizes, class_counts=classes, threshold=0.0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return 0


def random_case(n_images: int, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels."""
    return torch.randn(n_images, n_classes), (torch.rand(n_images, n_classes) < DENSITY).float()


def nested_sizes(n_images: int, n_classes: int) -> tuple[list[int], list[int]]:
    """Images and classes of ten nested sets, of equal increments."""
    steps = range(1, N_SETS + 1)
    return [n_images * i // N_SETS for i in steps], [n_classes * i // N_SETS for i in steps]


def best_times(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each side, in seconds; sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats):
            for name, run in sides.items():
                time.sleep(PAUSE)
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


if __name__ == "__main__":
    sys.exit(main())
