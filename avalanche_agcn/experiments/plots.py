"""Figures from results: learning curves, AP of each class, correlation matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from avalanche_agcn.evaluation.figures import COLOURS, MARKERS, correlation_heatmap, learning_curve
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.tables import METHOD_NAMES, group_by_label


def curves(results: Sequence[Results], metric: str = "mAP") -> Figure:
    """The metric on all classes seen, after each experience: mean over seeds in a band of one deviation."""
    rows = {}
    for label, group in group_by_label(results).items():
        if all(group[0].nested[metric]):  # Multi-Task has a last row only
            rows[METHOD_NAMES.get(label, label)] = [
                [_fraction(row[-1]) for row in result.nested[metric]] for result in group
            ]
    return learning_curve(rows, ylabel=f"{metric} on classes seen (%)", title=results[0].benchmark)


def class_precision(results: Sequence[Results]) -> Figure:
    """AP of each class after the last experience, a marker for each method: mean over seeds."""
    names = results[0].class_names
    groups = group_by_label(results)
    figure = Figure(figsize=(7.0, 1.5 + 0.2 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    rows = np.arange(len(names))
    for k, (label, group) in enumerate(groups.items()):
        values = [[_fraction(result.per_class_ap[name]) for name in names] for result in group]
        axes.plot(
            100 * np.mean(values, axis=0), rows, linestyle="none", alpha=0.85, markersize=5,
            color=COLOURS[k % len(COLOURS)], marker=MARKERS[(k + k // len(COLOURS)) % len(MARKERS)],
            label=METHOD_NAMES.get(label, label),
        )  # fmt: skip
    axes.set_yticks(rows, names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="AP (%)", xlim=(0, 100), title=f"{results[0].benchmark}: AP of each class at the end")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def correlation(result: Results) -> Figure:
    """The final correlation matrix of an AGCN run, beside the truth where it is known."""
    matrices = {"ACM": result.acm}
    if result.benchmark == "SplitScenes":
        from avalanche_agcn.benchmarks.scenes import true_cooccurrence

        matrices["true co-occurrence"] = true_cooccurrence(result.class_names).tolist()
    n, t = len(result.class_names), len(result.nested["mAP"])
    sizes = [n // t] * t if n % t == 0 else []
    return correlation_heatmap(matrices, class_names=result.class_names, block_sizes=sizes)


def _fraction(percent: float | None) -> float:
    return math.nan if percent is None else percent / 100
