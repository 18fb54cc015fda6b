"""Nested evaluation against evaluating every set separately, and frozen backbones against trained ones.

    python speed/streams.py

Uses drawn scenes, so that no data is needed.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from measure import Row, Topic, best_times, run_script
from steps import IMAGE_SIZE

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.models import AGCNModel, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN

N_EXPERIENCES = 10  # as many as Split-COCO
N_TEST = 200


def measure(arguments: argparse.Namespace) -> list[Topic]:
    return [
        Topic(
            "Nested evaluation",
            f"mAP, CF1, OF1 and forgetting of {N_EXPERIENCES} nested test sets after the last experience, "
            "from one pass over all test images, against one pass per set.",
            measure_nested(arguments.repeats),
        ),
        Topic(
            "Frozen backbone",
            "`--freeze-backbone`: a complete run of AGCN on features that are computed once, "
            f"EfficientNet-Lite0 at {IMAGE_SIZE} px, against a run that trains all weights.",
            measure_frozen(quick=arguments.quick),
        ),
    ]


def measure_nested(repeats: int) -> list[Row]:
    benchmark = SplitScenes(n_experiences=N_EXPERIENCES, n_train=400, n_test=N_TEST)
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
    batches: list[int] = []  # sizes of the batches that the network received

    def images_of(run: Callable[[], object]) -> int:
        batches.clear()
        run()
        return sum(batches)

    model.backbone.register_forward_hook(lambda module, inputs, output: batches.append(len(output)))
    sides: dict[str, Callable[[], object]] = {
        "nested": lambda: strategy.eval(benchmark.test_stream),
        "each": lambda: [strategy.eval(benchmark.test_stream[: i + 1]) for i in range(N_EXPERIENCES)],
    }
    images = {name: images_of(run) for name, run in sides.items()}
    seconds = best_times(sides, repeats)
    share = images["nested"] / images["each"]
    ratio = seconds["nested"] / seconds["each"]
    return [
        Row("images through the network, one pass / one pass per set", share),
        Row("seconds, one pass / one pass per set", ratio, 1.05 * share, note="the ratio of images"),
    ]


def measure_frozen(*, quick: bool) -> list[Row]:
    settings = make_settings(
        "scenes",
        backbone="efficientnet_lite0",
        n_classes=8,
        n_experiences=4,
        image_size=IMAGE_SIZE,
        n_train=120 if quick else 400,
        n_test=60 if quick else 200,
    )
    with tempfile.TemporaryDirectory() as folder:
        frozen = replace(settings, freeze_backbone=True, cache=f"{folder}/cache")
        runs = {"whole": settings, "first": frozen, "again": frozen}
        quiet: dict[str, Any] = {"overwrite": True, "log": lambda message: None}
        sides = {name: lambda own=own: Run(own, folder, **quiet).run() for name, own in runs.items()}
        seconds = best_times(sides, 1)
    note = "one forward pass per image, instead of a step and several evaluations"
    return [
        Row("frozen, cached features / all weights trained", seconds["again"] / seconds["whole"], 0.2),
        Row(
            "frozen, features computed / all weights trained", seconds["first"] / seconds["whole"], note=note
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=2))
