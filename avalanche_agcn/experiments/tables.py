"""Tables of results in the layout of the paper's, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments.methods import ABLATIONS, FULL, name_of
from avalanche_agcn.experiments.results import METRICS, Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.settings import is_b_protocol


class Table(NamedTuple):
    """Text cells under a header."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = (map(_for_markdown, line) for line in (self.header, *self.rows))
        header, *rows = (f"| {' | '.join(line)} |\n" for line in lines)
        return header + "| ---" + " | ---:" * (len(self.header) - 1) + " |\n" + "".join(rows)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        lines = (map(_for_csv, line) for line in (self.header, *self.rows))
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()

    def latex(self) -> str:
        """The table as a LaTeX ``tabular`` for the package booktabs."""
        lines = (map(_for_latex, line) for line in (self.header, *self.rows))
        header, *rows = (" & ".join(line) + " \\\\\n" for line in lines)
        columns = "l" + "r" * (len(self.header) - 1)
        body = f"\\toprule\n{header}\\midrule\n{''.join(rows)}\\bottomrule"
        return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


# Names of classes and labels may contain any symbol: each format escapes its own.
_LATEX = {symbol: f"\\{symbol}" for symbol in "{}$#%_&"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "√": r"$\surd$",
    **{f"λ{index}": rf"$\lambda_{k}$" for k, index in enumerate("₁₂₃", start=1)},
}
_LATEX_SYMBOLS = re.compile("|".join(map(re.escape, _LATEX)))
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?")


def _for_markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(text.split()))
    return escaped.replace("<", "&lt;").replace(">", "&gt;")


def _for_latex(text: str) -> str:
    return _LATEX_SYMBOLS.sub(lambda match: _LATEX[match[0]], " ".join(text.split()))


def _for_csv(text: str) -> str:
    """Text that a spreadsheet does not evaluate as a formula."""
    is_formula = text.startswith(tuple("=+-@\t\r")) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


Column = Callable[[Sequence[Results]], str]
"""The cell of a group of results."""


def make_table(groups: Iterable[Sequence[Results]], columns: Mapping[str, Column]) -> Table:
    """A row for each group of results, with columns by title."""
    return Table([*columns], [[cell(group) for cell in columns.values()] for group in groups])


def score(metric: str, kind: str) -> Column:
    """Column of the mean and standard deviation over seeds of a score such as ``"mAP"``, ``"last"``."""
    return lambda group: mean_and_deviation(result.summary[metric][kind] for result in group)


def last_stage(name: str) -> Column:
    """Column of a score of `StageScores` after the last experience, over the results that have it."""
    return lambda group: mean_and_deviation(result.stages[name][-1] for result in group if result.stages)


ABLATED = "SplitCOCO"
"""Benchmark of the paper's Tables 2 and 3."""
METHOD: dict[str, Column] = {"Method": lambda group: name_of(group[0].label)}
SEEDS: dict[str, Column] = {"seeds": lambda group: str(len(group))}
SCORES = {f"{metric} {kind}": score(metric, kind) for metric in METRICS for kind in ("last", "nested")}
FORGETTING = {f"forgetting % {metric}": score(metric, "forgetting_relative") for metric in METRICS}


def all_tables(results: Sequence[Results], *, stages: bool = False) -> dict[str, Table]:
    """All tables with rows for the results of one benchmark, by caption: 1 of methods, 2 and 3 of ablations.

    Results under a B protocol also have the table of these protocols' papers, others only with ``stages``.
    """
    stages = stages or any(is_b_protocol(result.settings.get("protocol")) for result in results)
    tables = {
        "Table 1": table_1([result for result in results if result.label not in ABLATIONS]),
        "B protocols' table": stage_table(results if stages else []),
        "Table 2": table_2(results),
        "Table 3": table_3(results),
        "Variants of ours": table_1(_ablations(results, "ours")),
    }
    return {caption: table for caption, table in tables.items() if table.rows}


def table_1(results: Sequence[Results]) -> Table:
    """Every method of one benchmark: mean ± standard deviation over seeds, in percent.

    ``last`` is the score on all test images after the last experience, ``nested`` the mean over the nested
    test sets, which is what the paper's program reports. Forgetting is that of mAP. Further columns have the
    paper's scores for the same stream.
    """
    columns = {
        **METHOD,
        **SEEDS,
        **SCORES,
        "forgetting": score("mAP", "forgetting_absolute"),
        "forgetting %": score("mAP", "forgetting_relative"),
        "seconds": lambda group: mean_and_deviation((own.seconds["total"] for own in group), digits=0),
    }
    columns |= _papers_columns(results, TABLE_1, lambda group: group[0].label, [*METRICS, "forgetting %"])
    return make_table(group_by_label(results).values(), columns)


def stage_table(results: Sequence[Results]) -> Table:
    """The table of the B protocols' papers: mean mAP over the stages, and scores after the last one.

    CF1 is the mean of per-class F1, and both F1 are at p > 0.8. Results without these scores have no row.
    """

    def average(group: Sequence[Results]) -> str:
        rows: list[Any] = [result.stages["mAP"] for result in group if result.stages]
        return mean_and_deviation(None if None in row else statistics.fmean(row) for row in rows)

    groups = group_by_label(result for result in results if result.stages)
    last = zip(("mAP last", "CF1 last", "OF1 last"), map(last_stage, StageScores._fields), strict=True)
    return make_table(groups.values(), {**METHOD, **SEEDS, "mAP average": average, **dict(last)})


def table_2(results: Sequence[Results]) -> Table:
    """AGCN without and with the blocks R and Q of its correlation matrix; no rows without the former."""
    chosen = _ablations(results, "2")
    columns: dict[str, Column] = {
        "A & B": lambda _: "√",
        "R & Q": lambda group: "√" if _is_full(group) else "×",
        **SEEDS,
        **SCORES,
    }
    columns |= _papers_columns(chosen, {ABLATED: TABLE_2}, _is_full, METRICS)
    return make_table(sorted(group_by_label(chosen).values(), key=_is_full), columns)


def _is_full(group: Sequence[Results]) -> bool:
    return group[0].label == FULL


def table_3(results: Sequence[Results]) -> Table:
    """AGCN with other loss weights, with the relative forgetting of each metric; no rows without variants.

    The weights are those of the runs; the paper's scores are shown for the same weights only.
    """

    def weights(group: Sequence[Results]) -> tuple[float, ...]:
        own = group[0].settings["method_settings"]
        return own["lambda_cls"], own["lambda_dst"], own["lambda_gph"]

    def weight(k: int, group: Sequence[Results]) -> str:
        return re.sub(r"e\+0*", "e", f"{weights(group)[k]:.3g}")  # "0.07", "1e5"

    chosen = _ablations(results, "3")
    columns: dict[str, Column] = {symbol: partial(weight, k) for k, symbol in enumerate(("λ₁", "λ₂", "λ₃"))}
    columns |= SEEDS | SCORES | FORGETTING
    columns |= _papers_columns(chosen, {ABLATED: TABLE_3}, weights, [*METRICS, *FORGETTING])
    by_weights = sorted(group_by_label(chosen).values(), key=lambda group: weights(group)[::-2])  # λ₃, λ₁
    return make_table(by_weights, columns)


def _ablations(results: Sequence[Results], table: str) -> list[Results]:
    return with_full(results, [label for label, variant in ABLATIONS.items() if variant.table == table])


def with_full(results: Sequence[Results], labels: Collection[str]) -> list[Results]:
    """Results with some of the labels and of the full method; none if there are only the latter."""
    chosen = [result for result in results if result.label in (FULL, *labels)]
    return chosen if any(result.label != FULL for result in chosen) else []


def _papers_columns(
    results: Sequence[Results],
    published: Mapping[str, Mapping[Any, Scores]],
    key: Callable[[Sequence[Results]], Any],
    titles: Sequence[str],
) -> dict[str, Column]:
    """Columns of the paper's scores, which ``published`` has by benchmark and key; none for other streams."""

    def cell(k: int, group: Sequence[Results]) -> str:
        scores = published[group[0].benchmark].get(key(group), ())
        return f"{scores[k]:.2f}" if k < len(scores) else "–"

    known = _is_papers_stream(results) and results[0].benchmark in published
    return {f"paper: {title}": partial(cell, k) for k, title in enumerate(titles)} if known else {}


def _is_papers_stream(results: Sequence[Results]) -> bool:
    """Whether the paper has scores for the stream of the results, which must be one."""
    if not results:
        return False
    streams = {(own.benchmark, tuple(own.class_names), len(own.classes_per_experience)) for own in results}
    if len(streams) > 1:
        given = ", ".join(sorted({benchmark for benchmark, _, _ in streams}))
        raise ValueError(f"results of {given} have different classes or experiences: give comparable runs.")
    ((benchmark, names, n_experiences),) = streams
    return STREAMS.get(benchmark) == (len(names), n_experiences) and not any(
        own.get("limit") or own.get("validation_size") or own.get("protocol") not in (None, "paper")
        for own in (result.settings for result in results)
    )


def block_quality(result: Results) -> dict[str, tuple[float, float, float, float]]:
    """Compare the blocks B (new-new), R (old-new) and Q (new-old) of a run's matrix with the train images.

    For each block its mean, its true mean, the mean absolute error and Pearson's correlation. The diagonal,
    which is 1 in both, is skipped. Empty blocks give NaN, as does the correlation if either side is constant.
    """
    found, true = np.asarray(result.acm, dtype=float), np.asarray(result.cooccurrence, dtype=float)
    experience = np.asarray(result.experience_of_class)
    row, column = experience[:, None], experience[None, :]
    blocks = {"B": (row == column) & ~np.eye(len(found), dtype=bool), "R": row < column, "Q": row > column}
    quality = {}
    for name, mask in blocks.items():
        x, y = found[mask], true[mask]
        mean, true_mean, error = (float(v.mean()) if v.size else math.nan for v in (x, y, np.abs(x - y)))
        varies = x.size and np.ptp(x) and np.ptp(y)
        quality[name] = mean, true_mean, error, float(np.corrcoef(x, y)[0, 1]) if varies else math.nan
    return quality


def quality_table(results: Sequence[Results]) -> Table:
    """Blocks of each AGCN's matrix compared with the co-occurrence of the train images: means over seeds."""
    header = [f"{block}: {what}" for block in "BRQ" for what in ("mean (true)", "error", "correlation")]
    rows = []
    measured = [result for result in results if result.acm is not None and result.cooccurrence is not None]
    for label, group in group_by_label(measured).items():
        cells = []
        for blocks in zip(*(block_quality(result).values() for result in group), strict=True):
            mean, true_mean, error, correlation = map(statistics.fmean, zip(*blocks, strict=True))
            cells += [f"{mean:.3f} ({true_mean:.3f})", f"{error:.3f}", f"{correlation:.2f}"]
        rows.append([name_of(label), *cells])
    return Table(["Method", *header], rows)


def class_table(results: Sequence[Results]) -> Table:
    """AP, precision and recall at p ≥ 0.5 of each class at the end of each run, in percent."""
    rows = []
    for result in results:
        right = found = true = [0] * len(result.class_names)  # if nothing was counted
        if counts := result.decisions:
            at = counts["thresholds"].index(0.5)
            right, found, true = counts["right"][at], counts["found"][at], counts["true"]
        for c, (name, t) in enumerate(zip(result.class_names, result.experience_of_class, strict=True)):
            ap = result.per_class_ap[name]
            shares = (f"{100 * right[c] / n[c]:.2f}" if n[c] else "" for n in (found, true))
            cells = [name, str(t + 1), result.label, str(result.seed), "" if ap is None else f"{ap:.2f}"]
            rows.append([*cells, *shares])
    return Table(["class", "experience", "method", "seed", "AP", "precision", "recall"], rows)


def choices_table(choices: Mapping[str, Mapping[str, Any]]) -> Table:
    """Settings that a study chose for each label, with the best and lowest score of its trials."""
    rows = []
    for label, choice in choices.items():
        scores = [trial["validation mAP"] for trial in choice["tried"]]
        settings = ", ".join(f"{name} {value:g}" for name, value in choice["settings"].items())
        rows.append([name_of(label), str(len(scores)), settings, f"{max(scores):.1f}", f"{min(scores):.1f}"])
    return Table(["Method", "trials", "chosen", "validation mAP", "lowest"], rows)


Scores = tuple[float, ...]
"""mAP, CF1, OF1, and the forgetting of each, as the AGCN paper (Du et al., 2022) reports them, in percent.

The paper does not define its scores "after the whole data stream"; the authors' code computes the mean
over the nested test sets, and forgetting relative to the first score."""

TABLE_1: dict[str, dict[str, Scores]] = {
    "SplitWIDE": {
        "multitask": (66.17, 61.45, 71.57),
        "finetuning": (20.33, 19.10, 35.72, 40.85, 31.20, 15.10),
        "ewc": (22.03, 22.78, 35.70, 34.86, 28.18, 15.17),
        "lwf": (29.46, 29.64, 42.69, 20.26, 18.99, 5.73),
        "agem": (32.47, 33.28, 38.93, 16.42, 15.71, 9.73),
        "er": (34.03, 34.94, 39.37, 15.15, 11.80, 8.61),
        "prs": (37.93, 21.12, 15.64, 13.59, 51.09, 62.90),
        "scr": (35.34, 35.47, 41.92, 14.26, 10.17, 8.04),
        "agcn": (41.12, 38.27, 43.27, 11.22, 5.43, 4.28),
    },
    "SplitCOCO": {
        "multitask": (65.85, 61.79, 66.27),
        "finetuning": (9.83, 10.54, 28.83, 58.04, 63.54, 20.60),
        "ewc": (12.20, 12.50, 29.67, 45.61, 55.44, 19.85),
        "lwf": (19.95, 21.69, 40.68, 41.16, 39.85, 11.43),
        "agem": (23.31, 27.25, 37.94, 34.52, 18.92, 12.94),
        "er": (25.03, 30.54, 38.38, 33.46, 17.28, 12.34),
        "prs": (28.81, 18.40, 13.86, 30.90, 54.36, 52.51),
        "scr": (25.75, 30.63, 39.10, 32.02, 15.98, 11.96),
        "agcn": (34.11, 35.49, 42.37, 23.71, 14.79, 8.16),
    },
}
"""Table 1: every method on both benchmarks."""

STREAMS = {"SplitWIDE": (21, 7), "SplitCOCO": (40, 10)}
"""Classes and experiences of both: results of other streams must not be compared with the paper's."""

TABLE_2 = {False: (31.52, 30.37, 34.87), True: (34.11, 35.49, 42.37)}
"""Table 2, Split-COCO: without and with the blocks R and Q."""

TABLE_3: dict[tuple[float, ...], Scores] = {
    (0.05, 0.95, 0.0): (29.90, 31.80, 37.12, 29.24, 24.88, 19.67),
    (0.07, 0.93, 0.0): (30.99, 32.03, 39.31, 28.28, 22.55, 13.88),
    (0.09, 0.91, 0.0): (29.71, 32.71, 38.91, 29.97, 21.79, 16.49),
    (0.07, 0.93, 1e4): (33.05, 33.31, 41.04, 26.41, 20.99, 11.38),
    (0.07, 0.93, 1e5): (34.11, 35.49, 42.37, 23.71, 14.79, 8.16),
    (0.07, 0.93, 1e6): (33.71, 33.05, 42.62, 25.69, 21.30, 7.89),
}
"""Table 3, Split-COCO: by the loss weights λ₁, λ₂, λ₃."""
