"""Tables and plots of coco18, and the settings of `--defaults small`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coco18.declaration import CONVENTIONS, HERE, OF_CONVENTIONS, STREAM, base_settings, frozen, of_head
from declare import Choices, chosen_settings
from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.methods import FULL, METHODS, Label, name_of
from avalanche_agcn.experiments.report import RUNS, SCORES, comparison_table, paired_table
from avalanche_agcn.experiments.results import METRICS, Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.tables import (
    METHOD,
    Column,
    Table,
    choices_table,
    last_stage,
    make_table,
    quality_table,
    score,
    stage_table,
)

TITLE = "Every method on photos of COCO"
SPREAD = "In percent, mean ± standard deviation over seeds"
PAIRED = ("streaming_ridge", "agcn statistics")
PAIRED_WITH = ("finetuning", "ewc", "lwf", "agcn orthogonal words", "l3a")
"""Rows with which those of `PAIRED` are compared, run by run."""
IN_CURVES = (
    "multitask_ridge",
    "streaming_ridge",
    "agcn statistics",
    "finetuning + statistics",
    "er + negatives",
    "l3a",
    "csc",
    "lwf",
    "agcn",
    "finetuning",
)
"""Rows of the plots; more could not be distinguished."""
IN_HTML = ("frozen", "b0c3", "memory", "agcn", "whole")
DEPENDENCE = {
    "memory": ("mem_size", "number of photos in memory", "coco18-mAP-by-photos-in-memory"),
    "experiences": ("n_experiences", "number of experiences", "coco18-mAP-by-number-of-experiences"),
    "photos": ("limit", "number of photos of each experience", "coco18-mAP-by-photos-per-experience"),
}
"""Setting that varies in a part, its description, and the file name of its plot."""
REGIMES = {"frozen": "frozen", "whole": "trained"}
"""Parts with plots of all methods, and how file names call them."""
CONVENTION_NAMES = {"crowds no labels": "crowd boxes give no labels"}
"""How the table shows conventions whose labels in the stored results read otherwise."""
RELATIONS = HERE / "relations.json"
DRIFT = HERE / "drift.json"
LAST = {metric: score(metric, "last") for metric in METRICS}
SMALL_NETWORKS = {
    "photos": {
        "backbone": "efficientnet_lite0", "pretrained": True, "pool": "avg", "image_size": 224,
        "freeze_backbone": True, "lr": 1e-5, "eval_mb_size": 32,
    },
    "scenes": {
        "backbone": "small", "pretrained": True, "image_size": 64, "freeze_backbone": True, "lr": 1e-5,
        "n_classes": 20, "n_experiences": 5,
    },
}  # fmt: skip
"""Networks of `--defaults small`, frozen. 224 pixels are what the photos' network was trained with; that of
the scenes was trained on the other 20 drawn classes."""
SCENE_RATES = {"lr_head": 0.03, "lr_gcn": 1e-3}
"""Learning rates over the network of the scenes, whose features have another scale: the best of 1e-3 to 0.1
and 3e-5 to 3e-3 on held-out scenes, for Fine-Tuning and ER, and for AGCN with and without statistics."""


def streams_of(results: Mapping[str, Sequence[Results]]) -> dict[str, list[Results]]:
    """Results for report.html by the title of their stream: each class order is a stream."""
    streams: dict[str, list[Results]] = {}
    for part in IN_HTML:
        for result in results.get(part, ()):
            title = STREAM.parts[part].title
            order = result.settings.get("class_order")
            if order:
                title += f", {order}"
            streams.setdefault(title, []).append(result)
    return streams


def tables_of(part: str, results: Sequence[Results], choices: Choices) -> dict[str, Table]:
    """Tables of a part, by caption."""
    kinds: dict[str, tuple[str, Callable[[Sequence[Results]], Table]]] = {
        "frozen": (f"All methods. {SPREAD} and class orders", comparison_table),
        "conventions": (SPREAD, conventions_table),
        "b0c3": ("As the papers report it: CF1 is the mean of per-class F1, at p > 0.8", stage_table),
    }
    caption, make = kinds.get(part, (SPREAD, scores_table))
    tables = {caption: make(results)}
    if part == "frozen":
        tables["Paired differences, same seed and class order"] = paired_table(results, PAIRED, PAIRED_WITH)
    if part in ("frozen", "agcn"):
        tables["The correlation matrix against the train images"] = quality_table(in_data_order(results))
    if part == "agcn":
        rows = json.loads(RELATIONS.read_text(encoding="utf-8"))
        tables["Label relations in StreamingRidge, not tuned: mAP by class order"] = relations_table(rows)
    if part == "whole":
        rows = json.loads(DRIFT.read_text(encoding="utf-8"))
        cells = [[row["what"], f"{row['mAP']:.1f}"] for row in rows]
        table = Table(["StreamingRidge, whole network", "mAP"], cells)
        tables["Drifting features, on held-out photos"] = table
    if choices:
        tables["Chosen settings"] = choices_table(choices)
    return tables


def plots_of(
    results: Mapping[str, Sequence[Results]],
) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Caption of each plot and a function that draws it, by file name."""
    plots_by_name: dict[str, tuple[str, Callable[[], Figure]]] = {}
    for part in results:
        if part in REGIMES:
            shown = [result for result in in_data_order(results[part]) if result.label in IN_CURVES]
            title = STREAM.parts[part].title
            plots_by_name[f"coco18-{REGIMES[part]}-mAP-after-each-experience"] = (
                f"{title}: mAP on the classes seen, in COCO's class order",
                partial(plots.curves, shown),
            )
            plots_by_name[f"coco18-{REGIMES[part]}-AP-of-each-class"] = (
                f"{title}: AP of each class at the end",
                partial(plots.class_precision, shown),
            )
        if part in DEPENDENCE:
            setting, text, name = DEPENDENCE[part]
            draw = partial(plots.dependence, results[part], setting, text, **levels_of(part, results))
            plots_by_name[name] = (f"mAP by the {text}", draw)
    return plots_by_name


def levels_of(part: str, results: Mapping[str, Sequence[Results]]) -> dict[str, list[Results]]:
    """Results that a plot shows as a horizontal line, by name: StreamingRidge beside memories."""
    if part != "memory":
        return {}
    ridge = [result for result in in_data_order(results["frozen"]) if result.label == "streaming_ridge"]
    return {"StreamingRidge, no photo": ridge}


def in_data_order(results: Sequence[Results]) -> list[Results]:
    """Results with the classes in COCO's order."""
    return [result for result in results if result.class_order == "data"]


def scores_table(results: Sequence[Results]) -> Table:
    """Scores of each row, in the order in which they were run."""
    return make_table(group_by_label(results).values(), METHOD | RUNS | SCORES)


def conventions_table(results: Sequence[Results]) -> Table:
    """Each convention alone: scores as this package defines them, and with the F1 of the other papers."""
    groups = group_by_label(results)
    rows = [groups[f"{label}, {name}"] for label in OF_CONVENTIONS for name in CONVENTIONS]
    columns: dict[str, Column] = {
        "Method": lambda group: name_of(Label.parse(group[0].label).row),
        "convention": lambda group: convention_of(group[0].label),
        **LAST,
        "mean of F1, p > 0.8": last_stage("mean_class_F1"),
        "OF1, p > 0.8": last_stage("OF1"),
    }
    return make_table(rows, columns)


def convention_of(label: str) -> str:
    """The convention in a label such as ``"finetuning, unlabelled as 0"``, as the table shows it."""
    name = Label.parse(label).case or ""
    return CONVENTION_NAMES.get(name, name)


def relations_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Scores measured by `relations.py`, by the kind of relations and β."""
    groups: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        groups.setdefault((row["relations"], row["beta"]), []).append(row["mAP"])
    cells = [
        [kind, f"{beta:g}", *(f"{score:.1f}" for score in scores), mean_and_deviation(scores)]
        for (kind, beta), scores in groups.items()
    ]
    orders = dict.fromkeys(row["class_order"] for row in rows)
    return Table(["relations", "β", *orders, "all orders"], cells)


def write_small(chosen: Choices, path: Path) -> None:
    """Write the settings of `--defaults small`: those chosen for each row over the frozen backbone.

    AGCN has orthogonal word vectors, with which it is better. StreamingRidge keeps its own defaults: it finds
    λ by itself, which suits networks and numbers of photos other than the study's.
    """
    rows = {}
    for entry in frozen(base_settings(dataset_root="ROOT"), {}).entries:
        settings = of_head({**entry.settings, **chosen_settings(chosen, entry.label)})
        for name in ("method", "preset", "negatives", "pseudo_labels"):  # which the label implies
            settings.pop(name, None)
        rows[entry.label] = settings
    rows[FULL] = rows[f"{FULL} orthogonal words"]
    rows["streaming_ridge"] = {}
    labels = [label for label in rows if "orthogonal" not in label and "," not in label]
    in_order = [method for method in METHODS if method in labels]
    in_order += sorted(set(labels) - METHODS.keys())
    methods = {label: rows[label] for label in in_order}
    write_json(path, {"networks": SMALL_NETWORKS, "scene_rates": SCENE_RATES, "methods": methods})
