"""Nested evaluation against evaluating every set separately, and frozen backbones against trained ones.

    python speed/streams.py

Uses drawn scenes, so that no data is needed.
"""

import argparse
import tempfile

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
            [measure_nested(arguments.repeats)],
        ),
        Topic(
            "Frozen backbone",
            "`--freeze-backbone`: a complete run of AGCN on features that are computed once, "
            f"EfficientNet-Lite0 at {IMAGE_SIZE} px, against a run that trains all weights.",
            [measure_frozen(quick=arguments.quick)],
        ),
    ]


def measure_nested(repeats: int) -> Row:
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

    def one_pass() -> None:
        strategy.eval(benchmark.test_stream)

    def one_pass_per_set() -> None:
        for t in range(N_EXPERIENCES):
            strategy.eval(benchmark.test_stream[: t + 1])

    seconds = best_times({"one": one_pass, "each": one_pass_per_set}, repeats)
    increments = [len(experience.dataset) for experience in benchmark.test_stream]
    images_of_each = [sum(increments[: t + 1]) for t in range(N_EXPERIENCES)]
    bound = 1.05 * sum(increments) / sum(images_of_each)
    what = "seconds, one pass / one pass per set"
    return Row(what, seconds["one"] / seconds["each"], bound, note="the ratio of images")


def measure_frozen(*, quick: bool) -> Row:
    with tempfile.TemporaryDirectory() as folder:

        def run(*, freeze_backbone: bool) -> None:
            settings = make_settings(
                "scenes",
                backbone="efficientnet_lite0",
                n_classes=8,
                n_experiences=4,
                image_size=IMAGE_SIZE,
                n_train=120 if quick else 400,
                n_test=60 if quick else 200,
                freeze_backbone=freeze_backbone,
                cache=f"{folder}/cache",
            )
            Run(settings, folder, overwrite=True, log=lambda message: None).run()

        run(freeze_backbone=True)  # computes the features
        sides = {frozen: lambda frozen=frozen: run(freeze_backbone=frozen) for frozen in (True, False)}
        seconds = best_times(sides, 1)
    return Row("frozen, cached features / all weights trained", seconds[True] / seconds[False], 0.2)


if __name__ == "__main__":
    raise SystemExit(run_script(__doc__, measure, repeats=2))
