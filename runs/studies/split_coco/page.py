"""The table in README.md and the plots of Split-COCO."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.checkpoint import write_text
from avalanche_agcn.experiments.methods import METHODS, name_of
from avalanche_agcn.experiments.results import Results, group_by_label
from avalanche_agcn.experiments.tables import TABLE_1, Table, all_tables, score

README_MARKS = ("<!-- results -->\n", "<!-- end of results -->")
README_ROWS = (
    "multitask_ridge",
    "streaming_ridge",
    "agcn statistics",
    "finetuning + statistics",
    "er + negatives",
    "agcn",
    "finetuning",
)
PAPERS_ROWS = ("multitask", "agcn", "finetuning")
"""Rows of the paper's Table 1 that stand beside ours in README.md."""
IN_CURVES = (*README_ROWS, "l3a", "er", "lwf", "csc")
HEADINGS = ["mean over the nested test sets, in percent", "network", "stored photos", "mAP", "CF1", "OF1"]
METRICS = ("mAP", "CF1", "OF1")
MISSING_LABELS = Path(__file__).with_name("missing_labels.json")


def readme_table(results: Sequence[Results]) -> Table:
    """Our rows with a frozen network and the paper's with a trained one, by mAP."""
    rows: list[tuple[float, list[str]]] = []
    for label, group in group_by_label(results).items():
        if label in README_ROWS:
            n_stored = str(group[0].settings["method_settings"].get("mem_size", 0))
            scores = [score(metric, "nested")(group) for metric in METRICS]
            mean = sum(float(result.summary["mAP"]["nested"] or 0) for result in group) / len(group)
            rows.append((mean, [name_of(label), "frozen", n_stored, *scores]))
    for method in PAPERS_ROWS:
        scores = [f"{value:.2f}" for value in TABLE_1["SplitCOCO"][method][:3]]
        name = f"{METHODS[method].name}, the paper's own row"
        rows.append((TABLE_1["SplitCOCO"][method][0], [name, "trained", "–", *scores]))
    rows.sort(key=lambda row: row[0], reverse=True)
    return Table(HEADINGS, [cells for _, cells in rows])


def missing_labels_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Scores by the labels that photos of other experiences get, one column for each γ."""
    gammas = sorted({row["gamma"] for row in rows})
    scores: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        scores.setdefault((row["labels"], row["photos"]), {})[row["gamma"]] = row["mAP"]
    lines = []
    for (labels, photos), by_gamma in scores.items():
        cells = [f"{by_gamma[gamma]:.1f}" if gamma in by_gamma else "–" for gamma in gammas]
        lines.append([labels, photos, *cells])
    return Table(["further labels", "photos", *(f"γ = {gamma}" for gamma in gammas)], lines)


def tables_of(part: str, results: Sequence[Results]) -> dict[str, Table]:
    """Tables of a part, by caption."""
    tables = {f"{one.caption}, in percent": one.table for one in all_tables(results)}
    if part == "frozen":
        rows = json.loads(MISSING_LABELS.read_text(encoding="utf-8"))
        caption = "Ridge with labels for photos of other experiences: mAP on held-out train photos"
        tables[caption] = missing_labels_table(rows)
    return tables


def fill_readme(readme: Path, results: Sequence[Results]) -> None:
    """Replace the table of results in README.md, if there is one between its marks."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    before, start, rest = text.partition(README_MARKS[0])
    _, end, after = rest.partition(README_MARKS[1])
    if end:
        write_text(readme, before + start + readme_table(results).markdown() + end + after)


def plots_of(results: Mapping[str, Sequence[Results]]) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Caption of each plot and a function that draws it, by file name."""
    made: dict[str, tuple[str, Callable[[], Figure]]] = {}
    regimes = {
        "frozen": ("Frozen backbone at 224 pixels", IN_CURVES),
        "paper": ("Whole network, the paper's settings", tuple(TABLE_1["SplitCOCO"])),
    }
    for part, (title, labels) in regimes.items():
        shown = [result for result in results.get(part, []) if result.label in labels]
        if shown:
            name = f"split_coco-{part}-mAP-after-each-experience"
            made[name] = (f"{title}: mAP on the classes seen", partial(plots.curves, shown))
    return made
