"""Nested evaluation against scoring every set by itself, and frozen networks against whole ones.

    python speed/streams.py

On drawn scenes, so that no data is needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace

import torch
from measure import Row, Topic, best_times, run_script
from steps import IMAGE_SIZE

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.experiments.run import Run, keep_freed_memory
from avalanche_agcn.experiments.settings import Settings, make_settings
from avalanche_agcn.models import AGCNModel, create_backbone, load_word_vectors
from avalanche_agcn.training import AGCN

N_EXPERIENCES = 10  # as many as Split-COCO
N_TEST = 200
NESTED_BOUND = 1.05  # of the images' share: the metrics of one pass score all sets
FROZEN_BOUND = 0.2


def main(argv: list[str] | None = None) -> int:
    return run_script(__doc__, measure, repeats=2, argv=argv)


def measure(arguments: argparse.Namespace) -> list[Topic]:
    keep_freed_memory()  # as the runs do
    return [
        Topic(
            "Nested evaluation",
            f"mAP, CF1, OF1 and forgetting of {N_EXPERIENCES} nested test sets after the last experience, in "
            "one pass over all test images, against a pass over each set.",
            measure_nested(arguments.repeats),
        ),
        Topic(
            "Frozen network",
            "`--freeze-backbone`: a whole run of AGCN on features that are computed once, EfficientNet-Lite0 "
            f"at {IMAGE_SIZE} px, against a run that trains all weights.",
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
    seen = 0

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal seen
        seen += len(output)

    def images_of(run: Callable[[], object]) -> int:
        before = seen
        run()
        return seen - before

    model.backbone.register_forward_hook(count)
    sides: dict[str, Callable[[], object]] = {
        "nested": lambda: strategy.eval(benchmark.test_stream),
        "each": lambda: [strategy.eval(benchmark.test_stream[: i + 1]) for i in range(N_EXPERIENCES)],
    }
    images = {name: images_of(run) for name, run in sides.items()}
    seconds = best_times(sides, repeats)
    share = images["nested"] / images["each"]
    return [
        Row(what="images through the network, one pass / a pass for each set", measured=share),
        Row(
            what="seconds, one pass / a pass for each set",
            measured=seconds["nested"] / seconds["each"],
            bound=share * NESTED_BOUND,
            note="the images' share",
        ),
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
        seconds = best_times({name: _run(chosen, folder) for name, chosen in runs.items()}, 1)
    return [
        Row(
            what="frozen, features from the cache / all weights trained",
            measured=seconds["again"] / seconds["whole"],
            bound=FROZEN_BOUND,
        ),
        Row(
            what="frozen, features computed / all weights trained",
            measured=seconds["first"] / seconds["whole"],
            note="one forward pass of each image, instead of a step and several evaluations",
        ),
    ]


def _run(settings: Settings, folder: str) -> Callable[[], object]:
    return lambda: Run(settings, folder, overwrite=True, log=lambda message: None).run()


if __name__ == "__main__":
    sys.exit(main())
