"""Tables in the form of the paper's, made from results, as Markdown, CSV and LaTeX.

Scores that the AGCN paper reports (Du et al., 2022, Tables 1 to 3), in percent.

They are the paper's, never ours. The paper does not say which score "after the whole data stream" is; the
authors' program computes the mean over the nested test sets, and forgetting relative to the first score.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from avalanche_agcn.evaluation.functional import StageScores
from avalanche_agcn.experiments.methods import ABLATIONS, FULL, name_of
from avalanche_agcn.experiments.results import (
    METRICS,
    Results,
    block_quality,
    group_by_label,
    mean_and_deviation,
)
from avalanche_agcn.experiments.settings import is_b_protocol

ABLATED = "SplitCOCO"
"""Benchmark of the paper's Tables 2 and 3."""
SCORES = [(metric, kind) for metric in METRICS for kind in ("last", "nested")]
SCORE_NAMES = [f"{metric} {kind}" for metric, kind in SCORES]
FORGETTING = [f"forgetting % {metric}" for metric in METRICS]


class Table(NamedTuple):
    """Text cells under a header."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        header, *rows = ([_for_markdown(cell) for cell in line] for line in (self.header, *self.rows))
        lines = [header, ["---"] + ["---:"] * (len(self.header) - 1), *rows]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        lines = [[_for_csv(cell) for cell in line] for line in (self.header, *self.rows)]
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()

    def latex(self) -> str:
        """The table as a LaTeX ``tabular`` for the package booktabs."""
        lines = [" & ".join(map(_for_latex, line)) + r" \\" for line in (self.header, *self.rows)]
        columns = "l" + "r" * (len(self.header) - 1)
        body = "\n".join(["\\toprule", lines[0], "\\midrule", *lines[1:], "\\bottomrule"])
        return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


# Names of classes and labels may be anything: each format has its way to show them as they are.
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "#": r"\#",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
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
_LATEX_SYMBOLS = re.compile("|".join(map(re.escape, _LATEX)))
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?")


def _for_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, also in a table.

    Example:
        >>> _for_markdown("a|b [c](d) <e>")
        'a\\|b \\[c\\](d) &lt;e&gt;'
    """
    escaped = re.sub(r"([\\`*|\[\]])", r"\\\1", _on_one_line(text))
    return escaped.replace("<", "&lt;").replace(">", "&gt;")


def _for_latex(text: str) -> str:
    r"""Text that LaTeX typesets as it is, with commands for the symbols of our tables.

    Example:
        >>> _for_latex(r"5 ± 1 \input{x}")
        '5 $\\pm$ 1 \\textbackslash{}input\\{x\\}'
    """
    return _LATEX_SYMBOLS.sub(lambda match: _LATEX[match[0]], _on_one_line(text))


def _for_csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula.

    Example:
        >>> _for_csv("=cmd|x"), _for_csv("-9.2 ± 0.1")
        ("'=cmd|x", '-9.2 ± 0.1')
    """
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def all_tables(results: Sequence[Results], *, stages: bool = False) -> dict[str, Table]:
    """The tables that the results of one benchmark give, by caption: 1 of methods, 2 and 3 of ablations.

    Args:
        results: of one benchmark.
        stages: also make the table of the B protocols' papers for other protocols.
    """
    stages = stages or any(is_b_protocol(result.settings.get("protocol")) for result in results)
    ours = [label for label, variant in ABLATIONS.items() if variant.table == "ours"]
    tables = {
        "Table 1": table_1([result for result in results if result.label not in ABLATIONS]),
        "B protocols' table": stage_table(results if stages else []),
        "Table 2": table_2(results),
        "Table 3": table_3(results),
        "Variants of ours": table_1(with_full(results, ours)),
    }
    return {caption: table for caption, table in tables.items() if table.rows}


def table_1(results: Sequence[Results]) -> Table:
    """Every method of one benchmark: mean ± standard deviation over seeds, in percent.

    ``last`` is the score on all test images after the last experience, ``nested`` the mean over the nested
    test sets, which is what the paper's program reports. Forgetting is that of mAP. Where the paper has
    scores for the same stream they stand in columns of their own.

    Raises:
        ValueError: if the results are of several benchmarks or classes.
    """
    published = TABLE_1[results[0].benchmark] if _is_papers_stream(results) else {}
    header = ["Method", "seeds", *SCORE_NAMES, "forgetting", "forgetting %", "seconds"]
    header += [f"paper: {metric}" for metric in (*METRICS, "forgetting %")] if published else []
    rows = []
    for label, group in group_by_label(results).items():
        cells = [name_of(label), str(len(group)), *_scores(group)]
        cells += [summary_text(group, "mAP", f"forgetting_{kind}") for kind in ("absolute", "relative")]
        cells.append(mean_and_deviation([result.seconds["total"] for result in group], digits=0))
        rows.append(cells + (_published(published.get(label), n_forgetting=1) if published else []))
    return Table(header, rows)


def stage_table(results: Sequence[Results]) -> Table:
    """The table of the B protocols' papers: mean mAP over the stages, and scores after the last one.

    CF1 is the mean of per-class F1, and both F1 are at p > 0.8. Results without these scores have no row.
    """
    header = ["Method", "seeds", "mAP average", "mAP last", "CF1 last", "OF1 last"]
    rows = []
    for label, group in group_by_label(result for result in results if result.stages).items():
        stages: list[Any] = [result.stages for result in group]
        averages = [None if None in own["mAP"] else statistics.fmean(own["mAP"]) for own in stages]
        last = [mean_and_deviation([own[name][-1] for own in stages]) for name in StageScores._fields]
        rows.append([name_of(label), str(len(group)), mean_and_deviation(averages), *last])
    return Table(header, rows)


def table_2(results: Sequence[Results]) -> Table:
    """AGCN without and with the blocks R and Q of its correlation matrix; no row if neither was left out."""
    chosen = with_full(results, [label for label, variant in ABLATIONS.items() if variant.table == "2"])
    published = _has_papers_ablations(chosen)
    header = ["A & B", "R & Q", "seeds", *SCORE_NAMES]
    header += [f"paper: {metric}" for metric in METRICS] if published else []
    rows = []
    for label, group in sorted(group_by_label(chosen).items(), key=lambda item: item[0] == FULL):
        cells = ["√", "√" if label == FULL else "×", str(len(group)), *_scores(group)]
        rows.append(cells + (_published(TABLE_2[label == FULL]) if published else []))
    return Table(header, rows)


def table_3(results: Sequence[Results]) -> Table:
    """AGCN with other loss weights, with the relative forgetting of each metric; no row if there are none.

    The weights are those that were used. The paper's scores stand beside the same weights only.
    """
    chosen = with_full(results, [label for label, variant in ABLATIONS.items() if variant.table == "3"])
    published = _has_papers_ablations(chosen)
    header = ["λ₁", "λ₂", "λ₃", "seeds", *SCORE_NAMES, *FORGETTING]
    header += [f"paper: {name}" for name in (*METRICS, *FORGETTING)] if published else []
    rows = []
    for weights, group in sorted(_by_weights(chosen).items(), key=lambda item: (item[0][2], item[0][0])):
        cells = [*map(_weight, weights), str(len(group)), *_scores(group)]
        cells += [summary_text(group, metric, "forgetting_relative") for metric in METRICS]
        rows.append(cells + (_published(TABLE_3.get(weights), n_forgetting=3) if published else []))
    return Table(header, rows)


def _by_weights(results: Sequence[Results]) -> dict[tuple[float, float, float], list[Results]]:
    """Groups by λ₁, λ₂, λ₃."""
    groups = group_by_label(results).values()
    names = ("lambda_cls", "lambda_dst", "lambda_gph")
    return {tuple(group[0].settings["method_settings"][name] for name in names): group for group in groups}


def _weight(value: float) -> str:
    """``"0.07"``, ``"1e5"``."""
    if value < 1e3:
        return f"{value:.3g}"
    return np.format_float_scientific(value, precision=2, trim="-", exp_digits=1).replace("e+", "e")


def quality_table(results: Sequence[Results]) -> Table:
    """How near the blocks of each AGCN's matrix are to the co-occurrence of the train images: seed means."""
    header = ["Method"]
    for block in ("B", "R", "Q"):
        header += [f"{block}: mean (true)", f"{block}: error", f"{block}: correlation"]
    rows = []
    for label, group in group_by_label(results).items():
        known = [
            block_quality(result.acm, result.cooccurrence, result.classes_per_experience)
            for result in group
            if result.acm is not None and result.cooccurrence is not None
        ]
        cells = []
        for block in known[0] if known else ():
            measured = zip(*(qualities[block] for qualities in known), strict=True)
            error, correlation, mean, true_mean = map(statistics.fmean, measured)
            cells += [f"{mean:.3f} ({true_mean:.3f})", f"{error:.3f}", f"{correlation:.2f}"]
        rows += [[name_of(label), *cells]] if cells else []
    return Table(header, rows)


def class_table(results: Sequence[Results]) -> Table:
    """AP, precision and recall of each class at the end of each run, in percent: a row for each."""
    header = ["class", "experience", "method", "seed", "AP", "precision", "recall"]
    rows = []
    for result in results:
        sizes = result.classes_per_experience
        experiences = np.repeat(np.arange(len(sizes)) + 1, sizes).tolist()
        found = _precision_recall(result)
        for c, (name, t) in enumerate(zip(result.class_names, experiences, strict=True)):
            cells = [result.per_class_ap[name], *found[c]]
            numbers = ["" if value is None else f"{value:.2f}" for value in cells]
            rows.append([name, str(t), result.label, str(result.seed), *numbers])
    return Table(header, rows)


def _precision_recall(result: Results, threshold: float = 0.5) -> list[tuple[float | None, float | None]]:
    """Precision and recall of each class, in percent; None where nothing was found, or there is no label."""
    if result.decisions is None:
        return [(None, None)] * len(result.class_names)
    at = result.decisions["thresholds"].index(threshold)
    right, found = (result.decisions[kind][at] for kind in ("right", "found"))
    counts = zip(right, found, result.decisions["true"], strict=True)
    return [(100 * r / f if f else None, 100 * r / n if n else None) for r, f, n in counts]


def choices_table(choices: Mapping[str, Mapping[str, Any]]) -> Table:
    """Settings that a study chose for each label, and the range of its trials."""
    rows = []
    for label, choice in choices.items():
        scores = [trial["validation mAP"] for trial in choice["tried"]]
        settings = ", ".join(f"{name} {value:g}" for name, value in choice["settings"].items())
        rows.append([name_of(label), str(len(scores)), settings, f"{max(scores):.1f}", f"{min(scores):.1f}"])
    return Table(["Method", "trials", "chosen", "validation mAP", "lowest"], rows)


def _scores(group: Sequence[Results]) -> list[str]:
    return [summary_text(group, metric, kind) for metric, kind in SCORES]


def summary_text(group: Sequence[Results], metric: str, kind: str) -> str:
    """Mean and deviation of a kind of score over the seeds of a group."""
    return mean_and_deviation([result.summary[metric][kind] for result in group])


def _published(scores: Scores | None, *, n_forgetting: int = 0) -> list[str]:
    """The paper's cells, dashes where it has none."""
    known = [*scores[: len(METRICS)], *(scores.forgetting or ())[:n_forgetting]] if scores else []
    cells = [f"{value:.2f}" for value in known]
    return cells + ["–"] * (len(METRICS) + n_forgetting - len(cells))


def with_full(results: Sequence[Results], labels: Collection[str]) -> list[Results]:
    """Results with some of the labels, and those of the full method; none if there are no others."""
    chosen = [result for result in results if result.label in (FULL, *labels)]
    return chosen if any(result.label != FULL for result in chosen) else []


def _is_papers_stream(results: Sequence[Results]) -> bool:
    """Whether the paper has scores for the stream of the results, which must be one."""
    if not results:
        return False
    benchmarks = {result.benchmark for result in results}
    if len(benchmarks) != 1:
        raise ValueError(f"one table is for one benchmark, but the results are of {sorted(benchmarks)}.")
    if len({(tuple(result.class_names), len(result.nested["mAP"])) for result in results}) != 1:
        raise ValueError(
            "one table is for one stream, but the results are of different classes or experiences; "
            "give folders of comparable runs."
        )
    for settings in (result.settings for result in results):
        is_part = settings.get("limit") or settings.get("validation_size")
        if is_part or settings.get("protocol") not in (None, "paper"):
            return False
    stream = (len(results[0].class_names), len(results[0].nested["mAP"]))
    return STREAMS.get(results[0].benchmark) == stream


def _has_papers_ablations(results: Sequence[Results]) -> bool:
    return _is_papers_stream(results) and results[0].benchmark == ABLATED


class Scores(NamedTuple):
    """Scores of one method and, where the paper gives it, the forgetting of each."""

    mAP: float
    CF1: float
    OF1: float
    forgetting: tuple[float, float, float] | None = None


TABLE_1: dict[str, dict[str, Scores]] = {
    "SplitWIDE": {
        "multitask": Scores(66.17, 61.45, 71.57),
        "finetuning": Scores(20.33, 19.10, 35.72, (40.85, 31.20, 15.10)),
        "ewc": Scores(22.03, 22.78, 35.70, (34.86, 28.18, 15.17)),
        "lwf": Scores(29.46, 29.64, 42.69, (20.26, 18.99, 5.73)),
        "agem": Scores(32.47, 33.28, 38.93, (16.42, 15.71, 9.73)),
        "er": Scores(34.03, 34.94, 39.37, (15.15, 11.80, 8.61)),
        "prs": Scores(37.93, 21.12, 15.64, (13.59, 51.09, 62.90)),
        "scr": Scores(35.34, 35.47, 41.92, (14.26, 10.17, 8.04)),
        "agcn": Scores(41.12, 38.27, 43.27, (11.22, 5.43, 4.28)),
    },
    "SplitCOCO": {
        "multitask": Scores(65.85, 61.79, 66.27),
        "finetuning": Scores(9.83, 10.54, 28.83, (58.04, 63.54, 20.60)),
        "ewc": Scores(12.20, 12.50, 29.67, (45.61, 55.44, 19.85)),
        "lwf": Scores(19.95, 21.69, 40.68, (41.16, 39.85, 11.43)),
        "agem": Scores(23.31, 27.25, 37.94, (34.52, 18.92, 12.94)),
        "er": Scores(25.03, 30.54, 38.38, (33.46, 17.28, 12.34)),
        "prs": Scores(28.81, 18.40, 13.86, (30.90, 54.36, 52.51)),
        "scr": Scores(25.75, 30.63, 39.10, (32.02, 15.98, 11.96)),
        "agcn": Scores(34.11, 35.49, 42.37, (23.71, 14.79, 8.16)),
    },
}
"""Table 1: every method on both benchmarks."""

STREAMS = {"SplitWIDE": (21, 7), "SplitCOCO": (40, 10)}
"""Classes and experiences of both: results of other streams are not to be compared with the paper's."""

TABLE_2: dict[bool, Scores] = {
    False: Scores(31.52, 30.37, 34.87),
    True: Scores(34.11, 35.49, 42.37),
}
"""Table 2, Split-COCO: without and with the blocks R and Q."""

TABLE_3: dict[tuple[float, float, float], Scores] = {
    (0.05, 0.95, 0.0): Scores(29.90, 31.80, 37.12, (29.24, 24.88, 19.67)),
    (0.07, 0.93, 0.0): Scores(30.99, 32.03, 39.31, (28.28, 22.55, 13.88)),
    (0.09, 0.91, 0.0): Scores(29.71, 32.71, 38.91, (29.97, 21.79, 16.49)),
    (0.07, 0.93, 1e4): Scores(33.05, 33.31, 41.04, (26.41, 20.99, 11.38)),
    (0.07, 0.93, 1e5): Scores(34.11, 35.49, 42.37, (23.71, 14.79, 8.16)),
    (0.07, 0.93, 1e6): Scores(33.71, 33.05, 42.62, (25.69, 21.30, 7.89)),
}
"""Table 3, Split-COCO: by the loss weights λ₁, λ₂, λ₃."""
