"""Tables in the form of the paper's, made from results, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from avalanche_agcn.experiments.paper import STREAMS, TABLE_1, Figures
from avalanche_agcn.experiments.results import METRICS, Results

METHOD_NAMES = {
    "multitask": "Multi-Task",
    "finetuning": "Fine-Tuning",
    "ewc": "EWC",
    "lwf": "LwF",
    "agem": "A-GEM",
    "er": "ER",
    "prs": "PRS",
    "ocdm": "OCDM",
    "scr": "SCR",
    "agcn": "AGCN",
}
"""Methods in the order of the paper's Table 1, as they are written there."""


class Table(NamedTuple):
    """Text cells under a header."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.header, ["---"] + ["---:"] * (len(self.header) - 1), *self.rows]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """The table as a LaTeX ``tabular`` for the package booktabs."""
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.header, *self.rows)]
        columns = "l" + "r" * (len(self.header) - 1)
        body = "\n".join(["\\toprule", lines[0], "\\midrule", *lines[1:], "\\bottomrule"])
        return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


def table_1(results: Sequence[Results]) -> Table:
    """Every method of one benchmark: mean ± standard deviation over seeds, in percent.

    ``last`` is the score on all test images after the last experience, ``nested`` the mean over the nested
    test sets, which is what the paper's program reports. Forgetting is that of mAP. Where the paper has
    figures for the same stream they stand in columns of their own.

    Raises:
        ValueError: If the results are of several benchmarks or classes.
    """
    benchmarks = {result.benchmark for result in results}
    if len(benchmarks) != 1:
        raise ValueError(f"one table is for one benchmark, but the results are of {sorted(benchmarks)}")
    if len({(tuple(result.class_names), len(result.nested["mAP"])) for result in results}) != 1:
        raise ValueError(
            "one table is for one stream, but the results are of different classes or experiences; "
            "give folders of comparable runs"
        )
    stream = (len(results[0].class_names), len(results[0].nested["mAP"]))
    benchmark = benchmarks.pop()
    published = TABLE_1[benchmark] if STREAMS.get(benchmark) == stream else {}
    header = ["Method", "seeds"]
    header += [f"{metric} {kind}" for metric in METRICS for kind in ("last", "nested")]
    header += ["forgetting", "forgetting %", "seconds"]
    header += [f"paper: {metric}" for metric in (*METRICS, "forgetting %")] if published else []
    rows = []
    for label, group in group_by_label(results).items():
        cells = [METHOD_NAMES.get(label, label), str(len(group))]
        cells += [_summary(group, metric, kind) for metric in METRICS for kind in ("last", "nested")]
        cells += [_summary(group, "mAP", f"forgetting_{kind}") for kind in ("absolute", "relative")]
        cells.append(mean_and_deviation([result.seconds["total"] for result in group], digits=0))
        cells += _published(published.get(label)) if published else []
        rows.append(cells)
    return Table(header, rows)


def group_by_label(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Results of the same method and settings, but for the seed; methods in the paper's order."""
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    order = list(METHOD_NAMES)
    rank = {
        label: order.index(group[0].method) for label, group in groups.items() if group[0].method in order
    }
    return {
        label: groups[label]
        for label in sorted(groups, key=lambda label: (rank.get(label, len(order)), label))
    }


def mean_and_deviation(values: Sequence[float | None], *, digits: int = 1) -> str:
    """``"41.3 ± 0.7"``; the sample deviation, left out for one value; ``"–"`` for none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def _summary(group: Sequence[Results], metric: str, figure: str) -> str:
    return mean_and_deviation([result.summary[metric][figure] for result in group])


def _published(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["–"] * 4
    scores = [f"{value:.2f}" for value in (figures.mAP, figures.CF1, figures.OF1)]
    return [*scores, f"{figures.forgetting[0]:.2f}" if figures.forgetting else "–"]


def _latex(cell: str) -> str:
    for symbol, command in (("%", r"\%"), ("±", r"$\pm$"), ("–", "--"), ("_", r"\_"), ("&", r"\&")):
        cell = cell.replace(symbol, command)
    return cell
