"""Tables in the form of the paper's, made from results, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from avalanche_agcn.experiments.ablations import FULL, OF_OUR_OWN, VARIANTS, WEIGHTS, WITHOUT_CROSS_BLOCKS
from avalanche_agcn.experiments.paper import STREAMS, TABLE_1, TABLE_2, TABLE_3, Figures
from avalanche_agcn.experiments.results import METRICS, Results
from avalanche_agcn.experiments.settings import differences

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

SCORES = [f"{metric} {kind}" for metric in METRICS for kind in ("last", "nested")]
ABLATED = "SplitCOCO"
"""What the paper's Tables 2 and 3 are of."""


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


def all_tables(results: Sequence[Results]) -> dict[str, Table]:
    """The tables that the results of one benchmark give, by caption: 1 of methods, 2 and 3 of ablations."""
    tables = {
        "Table 1": table_1([result for result in results if is_method(result)]),
        "Table 2": table_2(results),
        "Table 3": table_3(results),
        "Variants of ours": table_1(_labelled(results, [FULL, *OF_OUR_OWN])),
    }
    return {caption: table for caption, table in tables.items() if table.rows}


def is_method(result: Results) -> bool:
    """Whether the result is of a method, not of a variant from the ablations."""
    return result.label == FULL or result.label not in VARIANTS


def table_1(results: Sequence[Results]) -> Table:
    """Every method of one benchmark: mean ± standard deviation over seeds, in percent.

    ``last`` is the score on all test images after the last experience, ``nested`` the mean over the nested
    test sets, which is what the paper's program reports. Forgetting is that of mAP. Where the paper has
    figures for the same stream they stand in columns of their own.

    Raises:
        ValueError: If the results are of several benchmarks or classes.
    """
    published = TABLE_1[results[0].benchmark] if _is_papers_stream(results) else {}
    header = ["Method", "seeds", *SCORES, "forgetting", "forgetting %", "seconds"]
    header += [f"paper: {metric}" for metric in (*METRICS, "forgetting %")] if published else []
    rows = []
    for label, group in group_by_label(results).items():
        cells = [name_of(label), str(len(group)), *_scores(group)]
        cells += [_summary(group, "mAP", f"forgetting_{kind}") for kind in ("absolute", "relative")]
        cells.append(mean_and_deviation([result.seconds["total"] for result in group], digits=0))
        cells += _published(published.get(label), n_forgetting=1) if published else []
        rows.append(cells)
    return Table(header, rows)


def table_2(results: Sequence[Results]) -> Table:
    """AGCN without and with the blocks R and Q of its correlation matrix; no row if neither was left out.

    Raises:
        ValueError: If the results are of several benchmarks or classes.
    """
    chosen = _labelled(results, [WITHOUT_CROSS_BLOCKS, FULL])
    published = _has_papers_ablations(chosen)
    header = ["A & B", "R & Q", "seeds", *SCORES]
    header += [f"paper: {metric}" for metric in METRICS] if published else []
    rows = []
    for label, group in _in_order(chosen, [WITHOUT_CROSS_BLOCKS, FULL]):
        cells = ["√", "√" if label == FULL else "×", str(len(group)), *_scores(group)]
        rows.append(cells + (_published(TABLE_2[label == FULL]) if published else []))
    return Table(header, rows)


def table_3(results: Sequence[Results]) -> Table:
    """AGCN with other loss weights, with the relative forgetting of each metric; no row if there are none.

    The weights are those that were used. The paper's figures stand beside the same weights only.

    Raises:
        ValueError: If the results are of several benchmarks or classes.
    """
    chosen = _labelled(results, WEIGHTS)
    published = _has_papers_ablations(chosen)
    header = ["λ₁", "λ₂", "λ₃", "seeds", *SCORES, *(f"forgetting % {metric}" for metric in METRICS)]
    columns = [*METRICS, *(f"forgetting % {metric}" for metric in METRICS)]
    header += [f"paper: {name}" for name in columns] if published else []
    rows = []
    for _, group in _in_order(chosen, WEIGHTS):
        used = group[0].settings
        weights = (used["lambda_cls"], used["lambda_dst"], used["lambda_gph"])
        cells = [*map(_weight, weights), str(len(group)), *_scores(group)]
        cells += [_summary(group, metric, "forgetting_relative") for metric in METRICS]
        rows.append(cells + (_published(TABLE_3.get(weights), n_forgetting=3) if published else []))
    return Table(header, rows)


def group_by_label(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Results of the same method and settings, but for the seed; in the order of `METHOD_NAMES`.

    Variants follow their method, in the order of the ablations.

    Raises:
        ValueError: If results of one label are not such: their mean would say nothing.
    """
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    for label, group in groups.items():
        _check_comparable(label, group)
    methods, variants = list(METHOD_NAMES), list(VARIANTS)

    def place(label: str) -> tuple[int, int, str]:
        return _index(methods, groups[label][0].method), _index(variants, label), label

    return {label: groups[label] for label in sorted(groups, key=place)}


MAY_DIFFER = {"seed", "data", "device"}
"""Settings in which results differ that have a common mean: seeds may be run on several machines."""


def _check_comparable(label: str, group: Sequence[Results]) -> None:
    seeds = sorted(result.seed for result in group)
    if len(set(seeds)) != len(seeds):
        raise ValueError(
            f"{label!r} has several results of one seed (seeds {seeds}); give folders with one of each"
        )
    first, *others = (
        {name: value for name, value in result.settings.items() if name not in MAY_DIFFER} for result in group
    )
    changed = [change for other in others for change in differences(first, other)]
    if changed:
        raise ValueError(
            f"the results of {label!r} have different settings ({'; '.join(dict.fromkeys(changed))}) and no "
            "common mean: report their folders one by one, or run them with labels of their own "
            "(--set label=NAME)"
        )


def name_of(label: str) -> str:
    """How a method or variant is written: ``"A-GEM"``, ``"AGCN without R and Q"``, ``"AGCN + ER"``."""
    if label.startswith(f"{FULL} "):
        return METHOD_NAMES[FULL] + name_of(label.removeprefix(FULL))
    return " + ".join(METHOD_NAMES.get(part, part) for part in label.split(" + "))


def mean_and_deviation(values: Sequence[float | None], *, digits: int = 1) -> str:
    """``"41.3 ± 0.7"``; the sample deviation, left out for one value; ``"–"`` for none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):z.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def _index(names: list[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _scores(group: Sequence[Results]) -> list[str]:
    return [_summary(group, metric, kind) for metric in METRICS for kind in ("last", "nested")]


def _weight(value: float) -> str:
    """``"0.07"``, ``"1e5"``."""
    if value < 1e3:
        return f"{value:.3g}"
    return np.format_float_scientific(value, precision=2, trim="-", exp_digits=1).replace("e+", "e")


def _summary(group: Sequence[Results], metric: str, figure: str) -> str:
    return mean_and_deviation([result.summary[metric][figure] for result in group])


def _published(figures: Figures | None, *, n_forgetting: int = 0) -> list[str]:
    """The paper's cells, dashes where it has none."""
    known = [*figures[: len(METRICS)], *(figures.forgetting or ())[:n_forgetting]] if figures else []
    cells = [f"{value:.2f}" for value in known]
    return cells + ["–"] * (len(METRICS) + n_forgetting - len(cells))


def _is_papers_stream(results: Sequence[Results]) -> bool:
    """Whether the paper has figures of the stream of the results, which must be one."""
    if not results:
        return False
    benchmarks = {result.benchmark for result in results}
    if len(benchmarks) != 1:
        raise ValueError(f"one table is for one benchmark, but the results are of {sorted(benchmarks)}")
    if len({(tuple(result.class_names), len(result.nested["mAP"])) for result in results}) != 1:
        raise ValueError(
            "one table is for one stream, but the results are of different classes or experiences; "
            "give folders of comparable runs"
        )
    if any(result.settings.get("limit") or result.settings.get("validation") for result in results):
        return False  # a part of it
    stream = (len(results[0].class_names), len(results[0].nested["mAP"]))
    return STREAMS.get(results[0].benchmark) == stream


def _has_papers_ablations(results: Sequence[Results]) -> bool:
    return _is_papers_stream(results) and results[0].benchmark == ABLATED


def _labelled(results: Sequence[Results], labels: Collection[str]) -> list[Results]:
    """Results with some of the labels; none if there is nothing to compare with the full method."""
    chosen = [result for result in results if result.label in labels]
    return chosen if any(result.label != FULL for result in chosen) else []


def _in_order(results: Sequence[Results], labels: Iterable[str]) -> list[tuple[str, list[Results]]]:
    groups = group_by_label(results)
    return [(label, groups[label]) for label in labels if label in groups]


_LATEX = {
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "√": r"$\surd$",
    "λ₁": r"$\lambda_1$",
    "λ₂": r"$\lambda_2$",
    "λ₃": r"$\lambda_3$",
}


def _latex(cell: str) -> str:
    for symbol, command in _LATEX.items():
        cell = cell.replace(symbol, command)
    return cell
