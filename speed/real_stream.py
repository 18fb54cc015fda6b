"""Split-COCO as published: memory, first batch, features and evaluation at the size of a real stream.

    python speed/real_stream.py --data ROOT --split-lists LISTS [--cache DIR]

ROOT has COCO's folders, LISTS the published lists. Without them nothing is measured. Features of all photos
come from the cache; if it has none they are computed first, in a process that is not measured.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from features import measure_time
from measure import Row, Topic, best_times, run_script
from pycocotools.coco import COCO
from sklearn.metrics import average_precision_score

from avalanche_agcn.benchmarks.image_files import load_image
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.experiments.build import make_backbone, make_benchmark
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.methods import CHOICES, small_settings
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.models import MultiLabelClassifier, Precomputed
from avalanche_agcn.training import StreamingRidge

METHOD = "streaming_ridge"
IMPORTS = "import avalanche_agcn.experiments.run, avalanche_agcn.training"
PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
RUN = "import sys, runpy; sys.argv = sys.argv[1:]\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n"
RUN += "except SystemExit as end: assert not end.code, end.code\n"
SCRIPT = Path(__file__).parents[1] / "runs" / "split_coco.py"
N_SAMPLE, QUICK_SAMPLE = 1000, 100  # photos whose features are timed
BATCH = 8


def measure(arguments: argparse.Namespace) -> list[Topic]:
    if data.data is None:
        print("Skipped: give --data ROOT and --split-lists LISTS.")
        return []
    given = {"dataset_root": data.data, "split_lists": data.split_lists, "cache": data.cache}
    settings = make_settings("coco", small_settings("coco", CHOICES[METHOD]), method=METHOD, **given)
    backbone = make_backbone(settings)
    benchmark = make_benchmark(settings, backbone, log=ignore)
    n_sample = QUICK_SAMPLE if arguments.quick else N_SAMPLE
    source = benchmark.plan.train.source
    sample = [Path(source.path(k)) for k in range(0, len(source), len(source) // n_sample)][:n_sample]
    features = feature_benchmark(benchmark, backbone, settings.cache, log=ignore)
    n_photos = sum(len(plan.source) for plan in (features.plan.train, features.plan.evaluation["test"]))
    rows = [
        measure_memory(features, n_photos),
        measure_first_batch(settings, backbone, sample, arguments.repeats),
        measure_features(sample, settings.image_size, arguments.repeats),
        measure_evaluation(features, arguments.repeats),
    ]
    about = (
        f"StreamingRidge, EfficientNet-Lite0 at {settings.image_size} px, {n_photos:,} train and test photos."
    )
    return [Topic("Split-COCO as published", about, rows)]


def ignore(message: str) -> None:
    """Take no notice of a message."""


def measure_memory(features: Any, n_photos: int) -> Row:
    """Peak of a whole run against what it must hold: features, sums, and the imported modules."""
    width = features.plan.train.source[0][0].numel()
    sizes = [1 + width + n_classes for n_classes in features.classes_per_experience]
    needed = (4 * n_photos * width + 8 * sum(size**2 for size in sizes)) / 2**20
    imported = float(subprocess.check_output([sys.executable, "-c", f"{IMPORTS}\n{PEAK}"]))
    with tempfile.TemporaryDirectory() as out:
        options = ["--data", data.data, "--split-lists", data.split_lists, "--defaults", "small"]
        options += ["--method", METHOD, "--out", out, *(["--cache", data.cache] if data.cache else [])]
        command = [sys.executable, "-c", RUN + PEAK, str(SCRIPT), *options]
        peak = float(subprocess.check_output(command, text=True).splitlines()[-1])
    note = f"{peak:,.0f} MB / ({needed:,.0f} MB of features and sums + {imported:,.0f} MB of modules)"
    return Row(
        "peak memory of a run / (features + sums + import)", peak / (needed + imported), 1.5, note=note
    )


def measure_first_batch(settings: Any, backbone: Any, sample: list[Path], repeats: int) -> Row:
    """From nothing to the first train batch of photos, against reading what it needs.

    The lists are matched with COCO's own labels, so both annotation files are read as well.
    """

    def ours() -> None:
        benchmark = make_benchmark(settings, backbone, log=ignore)
        dataset = benchmark.train_stream[0].dataset
        torch.stack([row[0] for row in islice(dataset, BATCH)])

    def plain() -> None:
        for file in sorted(Path(data.data, "annotations").glob("instances_*2014.json")):
            with redirect_stdout(StringIO()):  # pycocotools prints
                COCO(file)
        for file in Path(data.split_lists).rglob("*.csv"):
            with file.open(newline="") as lines:
                list(csv.reader(lines))
        torch.stack([settings_transform(load_image(path)) for path in sample[:BATCH]])

    settings_transform = make_benchmark(settings, backbone, log=ignore).plan.train_transform
    seconds = best_times({"ours": ours, "plain": plain}, repeats, clock=time.perf_counter)
    note = f"{seconds['ours']:.2f} s"
    what = "time to the first batch / `pycocotools`, parsing the lists and reading 8 photos"
    return Row(what, seconds["ours"] / seconds["plain"], 1.5, note=note)


def measure_features(sample: list[Path], size: int, repeats: int) -> Row:
    """Photos are linked into one folder, as `features.py` has them."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        links = [Path(folder) / f"{k}{path.suffix}" for k, path in enumerate(sample)]
        for link, path in zip(links, sample, strict=True):
            link.symlink_to(path.resolve())
        row = measure_time(links, size, repeats)
    torch.set_num_threads(n_threads)
    return row


def measure_evaluation(features: Any, repeats: int) -> Row:
    """All metrics of the ten nested test sets against logits and scikit-learn's mAP of the same sets."""
    width = features.plan.train.source[0][0].numel()
    strategy = StreamingRidge(
        model=MultiLabelClassifier(Precomputed(width), features.n_classes),
        train_mb_size=256,
        eval_mb_size=256,
        evaluator=multilabel_evaluator(loggers=[]),
    )
    for experience in features.train_stream:
        strategy.train(experience, eval_streams=[])
    strategy.solve()
    weight, bias = (part.detach() for part in strategy.model.classifiers())
    test = features.plan.evaluation["test"]

    def plain() -> None:
        for t, columns in enumerate(features.plan.columns):
            positions = torch.cat(list(test.positions[: t + 1]))
            logits = torch.nn.functional.linear(test.source.tensors[0][positions], weight, bias)
            targets = test.labels[positions][:, : columns.stop]
            average_precision_score(targets.numpy(), logits[:, : columns.stop].double().numpy())

    sides = {"ours": lambda: strategy.eval(features.test_stream), "plain": plain}
    seconds = best_times(sides, repeats, clock=time.perf_counter)
    note = f"{seconds['ours']:.2f} s for {len(test.source):,} photos"
    what = "evaluation after the last experience / logits and scikit-learn's mAP of each nested set"
    return Row(what, seconds["ours"] / seconds["plain"], 1, note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", metavar="ROOT")
    parser.add_argument("--split-lists", metavar="LISTS")
    parser.add_argument("--cache", metavar="DIR")
    data, sys.argv[1:] = parser.parse_known_args()
    raise SystemExit(run_script(__doc__, measure, repeats=3))
