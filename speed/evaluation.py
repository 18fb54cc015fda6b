"""Speed and memory of the metrics, and of evaluating nested test sets.

python speed/evaluation.py
"""

import argparse
import itertools

import numpy as np
import torch
from measure import Row, Topic, best_times, in_child, peak_megabytes, ratio, run_script
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.evaluation.functional import mean_average_precision, nested_scores, precision_recall_f1
from avalanche_agcn.models import AGCNModel, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN

N_IMAGES, N_CLASSES, N_SETS = 27_173, 40, 10  # Split-COCO
LARGE_IMAGES, LARGE_CLASSES = 269_648, 81  # NUS-WIDE
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
    nested = (
        f"mAP, CF1, OF1 and forgetting of {N_SETS} nested sets of drawn scenes after the last experience, "
        "from one pass over all test images, against one pass per set."
    )
    return [
        Topic("Metrics", about, rows),
        Topic("Nested evaluation", nested, [measure_passes(arguments.repeats)]),
    ]


def measure_map(repeats: int) -> list[Row]:
    scores, targets, _ = random_case(N_IMAGES, N_CLASSES)
    labels, array = targets.long(), scores.numpy()
    sides = {
        "ours": lambda: mean_average_precision(scores, targets),
        "scikit-learn": lambda: average_precision_score(labels.numpy(), array, average="macro"),
        "torchmetrics": lambda: multilabel_average_precision(scores, labels, num_labels=N_CLASSES),
    }
    seconds = best_times(sides, repeats)
    rows = []
    for name, bound, note in (("scikit-learn", 6.0, ""), ("torchmetrics", 30.0, SORT_NOTE)):
        faster = seconds[name] / seconds["ours"]
        rows.append(Row(f"mAP, faster than {name}", faster, bound, at_least=True, unit="×", note=note))
    return rows


def measure_nested(repeats: int) -> Row:
    scores, targets, sets = random_case(N_IMAGES, N_CLASSES)
    array = scores.numpy()

    def sort_each_set() -> None:
        for n, c in zip(sets["set_sizes"], sets["class_counts"], strict=True):
            np.sort(array[:n, :c], axis=0)

    def evaluate() -> None:
        nested_scores(scores, targets, **sets, threshold=0.0)

    what = "mAP, CF1 and OF1 of ten nested sets / sorting each set's scores"
    return ratio(what, evaluate, sort_each_set, bound=3.0, repeats=repeats)


def measure_passes(repeats: int) -> Row:
    benchmark = SplitScenes(n_experiences=N_SETS, n_train=400, n_test=200)
    model = AGCNModel(create_backbone("small"), load_word_vectors(benchmark.class_names))
    strategy = AGCN(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        train_mb_size=40,
        eval_mb_size=64,
        evaluator=multilabel_evaluator(loggers=[]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    sets = [benchmark.test_stream[: t + 1] for t in range(N_SETS)]

    def one_pass() -> None:
        strategy.eval(sets[-1])

    def one_pass_per_set() -> None:
        for experiences in sets:
            strategy.eval(experiences)

    increments = [len(experience.dataset) for experience in benchmark.test_stream]
    bound = 1.05 * sum(increments) / sum(itertools.accumulate(increments))
    what, note = "seconds, one pass / one pass per set", "the ratio of images"
    return ratio(what, one_pass, one_pass_per_set, bound=bound, repeats=repeats, note=note)


def peak_memory() -> float:
    """Peak memory in MB of a process that only evaluates as many scores as NUS-WIDE has."""
    scores, targets, sets = random_case(LARGE_IMAGES, LARGE_CLASSES)
    mean_average_precision(scores, targets)
    precision_recall_f1(scores, targets, threshold=0.0)
    nested_scores(scores, targets, **sets, threshold=0.0)
    return peak_megabytes()


def random_case(n_images: int, n_classes: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, list[int]]]:
    """Logits, labels, and the images and classes of nested sets of equal increments."""
    steps = range(1, N_SETS + 1)
    images, classes = [n_images * i // N_SETS for i in steps], [n_classes * i // N_SETS for i in steps]
    targets = (torch.rand(n_images, n_classes) < DENSITY).float()
    return torch.randn(n_images, n_classes), targets, {"set_sizes": images, "class_counts": classes}


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=10))
