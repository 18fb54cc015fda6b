"""Measure what label relations add to StreamingRidge: its own estimates, and those counted from all labels.

python runs/studies/coco18/relations.py --data ROOT    # study.py then adds the table to the page
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.results import train_cooccurrence
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import Settings, change_settings
from avalanche_agcn.training.statistics.ridge import (
    LabelRelations,
    RidgeClassifiers,
    estimate_relations,
    make_refinement,
    solve_ridge,
)

BETAS = (0.1, 0.2, 0.4, 0.8)
SCORE = "mAP_Last/eval_phase/test_stream"


def measure(base: Settings, orders: Sequence[str]) -> list[dict[str, Any]]:
    """Last mAP for each class order, kind of relations and β, in percent."""
    return [row for order in orders for row in _measure_order(change_settings(base, class_order=order))]


def _measure_order(settings: Settings) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(settings, folder)
        run.run()
    strategy: Any = run.strategy
    solution = solve_ridge(strategy.statistics, gamma=strategy.gamma, ridge=strategy.ridge)
    for kind, beta, relations in _relations(run, solution):
        refinement = make_refinement(solution, relations, beta) if relations else None
        strategy.model.set_classifiers(*solution.calibrated(), refinement)
        score = 100 * strategy.eval(run.benchmark.test_stream[:])[SCORE]
        yield {"class_order": settings.class_order, "relations": kind, "beta": beta, "mAP": score}


def _relations(run: Run, solution: RidgeClassifiers) -> Iterator[tuple[str, float, LabelRelations | None]]:
    yield "none", 0.0, None
    strategy: Any = run.strategy
    estimated = estimate_relations(strategy.statistics, solution)
    for kind, relations in {"estimated": estimated, "counted in all labels": true_relations(run)}.items():
        for beta in BETAS:
            yield kind, beta, relations


def true_relations(run: Run) -> LabelRelations:
    """Relations among all labels of the train images, which no method of the stream sees."""
    plan = run.benchmark.plan
    conditional = train_cooccurrence(plan)
    assert conditional is not None
    positions = torch.cat([torch.as_tensor(part) for part in plan.train.positions])
    return LabelRelations(conditional, plan.train.labels[positions].double().mean(dim=0))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from coco18.declaration import ORDERS, base_settings
    from coco18.page import RELATIONS, relations_table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, metavar="ROOT", help="folder with COCO's folders")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen backbone")
    arguments = parser.parse_args()
    base = base_settings(
        method="streaming_ridge",
        freeze_backbone=True,
        dataset_root=arguments.data,
        cache=arguments.cache,
    )
    found = measure(base, ORDERS)
    write_json(RELATIONS, found)
    print(relations_table(found).markdown())
