"""What label relations are worth to StreamingRidge: as it estimates them, and counted in all labels.

python runs/coco18/relations.py --data ROOT    # then study.py puts the table on the page
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.results import train_cooccurrence
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import Settings, change_settings
from avalanche_agcn.training.label_relations import LabelRelations, estimate_relations, make_refinement
from avalanche_agcn.training.ridge import solve_ridge

BETAS = (0.1, 0.2, 0.4, 0.8)
SCORE = "mAP_Last/eval_phase/test_stream"


def measure(base: Settings, orders: Sequence[str]) -> list[dict[str, Any]]:
    """MAP after the last experience for each class order, kind of relations and β, in percent."""
    rows = []
    for order in orders:
        settings = change_settings(base, method="streaming_ridge", class_order=order)
        with tempfile.TemporaryDirectory() as folder:
            run = Run(settings, folder)
            run.run()
        for kind, beta, refinement in _refinements(run):
            strategy: Any = run.strategy
            solution = solve_ridge(strategy.statistics, gamma=strategy.gamma, ridge=strategy.ridge)
            strategy.model.set_classifiers(*solution.calibrated(), refinement)
            score = 100 * strategy.eval(run.benchmark.test_stream[:])[SCORE]
            rows.append({"class_order": order, "relations": kind, "beta": beta, "mAP": score})
    return rows


def _refinements(run: Run) -> Iterator[tuple[str, float, Any]]:
    strategy: Any = run.strategy
    solution = solve_ridge(strategy.statistics, gamma=strategy.gamma, ridge=strategy.ridge)
    yield "none", 0.0, None
    kinds = {
        "estimated": estimate_relations(strategy.statistics, solution),
        "counted in all labels": true_relations(run),
    }
    for kind, relations in kinds.items():
        for beta in BETAS:
            yield kind, beta, make_refinement(solution, relations, beta)


def true_relations(run: Run) -> LabelRelations:
    """Relations among all labels of the train images, which no method of the stream sees."""
    plan = run.benchmark.plan
    conditional = train_cooccurrence(plan)
    assert conditional is not None
    positions = torch.cat([torch.as_tensor(own) for own in plan.train.positions])
    return LabelRelations(conditional, plan.train.labels[positions].double().mean(dim=0))


if __name__ == "__main__":
    from study import ORDERS, RELATIONS, base_settings, relations_table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, metavar="ROOT", help="folder with COCO's folders")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen network")
    arguments = parser.parse_args()
    frozen = base_settings(dataset_root=arguments.data, cache=arguments.cache, freeze_backbone=True)
    found = measure(frozen, ORDERS)
    write_json(RELATIONS, found)
    print(relations_table(found).markdown())
