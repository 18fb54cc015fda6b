"""A long stream: StreamingRidge on a hundred experiences, evaluated after each.

    python speed/long_stream.py

Uses random features in place of images, so that no network runs.
"""

import argparse
import time

import torch
from measure import Row, Topic, run_script
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import MultiLabelBenchmark, multilabel_benchmark
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.models import MultiLabelClassifier, Precomputed
from avalanche_agcn.training import StreamingRidge

WIDTH, CLASSES = 2048, 20  # features, and classes of each experience
N_TRAIN, N_TEST = 50, 10  # images of each experience
EARLY, LATE = slice(5, 15), slice(90, 100)  # experiences around the 10th, and up to the 100th
MINUTES = 15


def measure(arguments: argparse.Namespace) -> list[Topic]:
    n_experiences = EARLY.stop if arguments.quick else LATE.stop
    seconds = run_stream(make_stream(n_experiences))
    print(" ".join(f"{taken:.1f}" for taken in seconds))
    minutes = sum(seconds) / 60
    rows = [Row(f"a whole run of {n_experiences} experiences", minutes, MINUTES, unit=" min")]
    if not arguments.quick:
        growth = sum(seconds[LATE]) / sum(seconds[EARLY])
        bound = (LATE.start + LATE.stop + 1) / (EARLY.start + EARLY.stop + 1)
        what = "an experience, the 91st to 100th / the 6th to 15th"
        rows.append(Row(what, growth, bound, note="linear in the number of experiences"))
    about = (
        f"StreamingRidge, {CLASSES} classes and {N_TRAIN} images per experience, {WIDTH} features; all "
        "classes are solved and all nested test sets evaluated after each experience."
    )
    return [Topic("Long streams", about, rows)]


def make_stream(n_experiences: int) -> MultiLabelBenchmark:
    """Images that show classes of one experience each."""
    patterns = torch.randn(n_experiences * CLASSES, WIDTH)
    train, test = (make_images(patterns, n) for n in (N_TRAIN, N_TEST))
    return multilabel_benchmark(train, test, n_experiences=n_experiences)


def make_images(patterns: torch.Tensor, n_images: int) -> TensorDataset:
    targets = torch.zeros(len(patterns) // CLASSES, n_images, len(patterns), dtype=torch.int8)
    for t, of_experience in enumerate(targets):
        labels = torch.rand(n_images, CLASSES) < 0.1
        labels[torch.arange(n_images), torch.arange(n_images) % CLASSES] = True  # none without a label
        of_experience[:, t * CLASSES : (t + 1) * CLASSES] = labels
    targets = targets.flatten(0, 1)
    images = TensorDataset(targets.float() @ patterns + 3 * torch.randn(len(targets), WIDTH))
    images.targets = targets  # type: ignore[attr-defined]
    return images


def run_stream(benchmark: MultiLabelBenchmark) -> list[float]:
    """Seconds of each experience, with its evaluation."""
    strategy = StreamingRidge(
        model=MultiLabelClassifier(Precomputed(WIDTH), benchmark.n_classes),
        train_mb_size=N_TRAIN,
        eval_mb_size=256,
        evaluator=multilabel_evaluator(loggers=[]),
    )
    seconds = []
    for t, experience in enumerate(benchmark.train_stream):
        start = time.perf_counter()
        strategy.train(experience, eval_streams=[])
        strategy.eval(benchmark.test_stream[: t + 1])
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=1))
