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

from avalanche_agcn.experiments.methods import ABLATIONS, FULL, name_of
from avalanche_agcn.experiments.results import METRICS, Results, group_by_label, known, mean_and_deviation
from avalanche_agcn.experiments.settings import is_b_protocol
from avalanche_agcn.models.saved import THRESHOLD


class Table(NamedTuple):
    """Text cells under a header."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = "| ---" + " | ---:" * (len(self.header) - 1) + " |\n"
        header, *rows = [f"| {' | '.join(cells)} |\n" for cells in self._escaped(_for_markdown)]
        return header + rule + "".join(rows)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._escaped(_for_csv))
        return text.getvalue()

    def latex(self) -> str:
        """The table as a LaTeX ``tabular`` for the package booktabs."""
        header, *rows = [" & ".join(cells) + " \\\\\n" for cells in self._escaped(_for_latex)]
        columns = "l" + "r" * (len(self.header) - 1)
        body = f"\\toprule\n{header}\\midrule\n{''.join(rows)}\\bottomrule"
        return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"

    def _escaped(self, escape: Callable[[str], str]) -> list[list[str]]:
        """The cells of the header and of each row, for one of the formats."""
        return [[escape(cell) for cell in cells] for cells in (self.header, *self.rows)]


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
SCORES: dict[str, Column] = {}
FORGETTING: dict[str, Column] = {}
for _metric in METRICS:
    SCORES[f"{_metric} last"] = score(_metric, "last")
    SCORES[f"{_metric} nested"] = score(_metric, "nested")
    FORGETTING[f"forgetting % {_metric}"] = score(_metric, "forgetting_relative")

EXPLANATIONS = {
    "mAP": "mean over the classes of the average precision (AP): how well the images with a class rank above "
    "those without it, whatever the threshold.",
    "CF1": "harmonic mean of precision and recall, after each of the two was averaged over the classes, "
    "for labels with p ≥ 0.5 by the method's own output, before calibration. Every class counts the same.",
    "OF1": "harmonic mean of precision and recall over the labels of all classes together, with p ≥ 0.5 by "
    "the method's own output. Frequent classes count more.",
    "last": "on all test images and classes, after the last experience.",
    "nested": "mean over the nested test sets, also after the last experience. Nested test set i has the "
    "images and classes of experiences 1 to i. The AGCN paper's program reports this mean.",
    "forgetting": "by how many points the mAP on a nested test set has fallen, from when its last classes "
    "were new to the end of the run; mean over all sets but the last. Lower is better; below 0 it has risen.",
    "forgetting %": "the same in percent of the score when the classes were new.",
}
"""What the words in the columns' titles mean, for readers of a report."""


def explain(title: str) -> str:
    """Explanation of a column's title, or of the words in it; empty if there is none."""
    if title in EXPLANATIONS:
        return EXPLANATIONS[title]
    words = [word for word in title.split() if word in EXPLANATIONS]
    return " ".join(f"{word}: {EXPLANATIONS[word]}" for word in words)


class ReportTable(NamedTuple):
    """A table of a report, with its caption and the part of its file names that distinguishes it."""

    caption: str
    suffix: str
    table: Table


def all_tables(results: Sequence[Results], *, stages: bool = False) -> list[ReportTable]:
    """All tables that have rows for the results of one benchmark: of methods, then of ablations.

    Results under a B protocol also have the table of these protocols' papers, others only with ``stages``.
    Captions refer to tables of the AGCN paper only for the streams of the paper.
    """
    stages = stages or any(is_b_protocol(result.settings.get("protocol")) for result in results)
    methods = [result for result in results if result.label not in ABLATIONS]
    as_in_paper = ", as in the paper's Table {}" if _is_papers_stream(results) else ""
    made = [
        ReportTable("All methods" + as_in_paper.format(1), "", table_1(methods)),
        ReportTable("As papers on B protocols report it", "-stages", stage_table(results if stages else [])),
        ReportTable("AGCN without blocks R and Q" + as_in_paper.format(2), "-2", table_2(results)),
        ReportTable("AGCN with other loss weights" + as_in_paper.format(3), "-3", table_3(results)),
        ReportTable("Other variants of AGCN", "-variants", table_1(_ablations(results, "ours"))),
    ]
    return [one for one in made if one.table.rows]


def decision_thresholds(result: Results) -> list[float]:
    """The probability at which each class of a run counts as found, in tables, plots, pages and predictions.

    It is stored with the run, and `THRESHOLD` for the classes of runs that chose none.
    """
    chosen = result.thresholds or []
    return [*chosen, *[THRESHOLD] * (len(result.class_names) - len(chosen))]


def conclusion(results: Sequence[Results]) -> list[str]:
    """Sentences about the first table of one benchmark: which method is best, and what to know about it."""
    groups = group_by_label(results)
    sentences = []
    ranked = ranking(groups)
    if len(ranked) > 1:
        sentences.append(_compare_best(groups[ranked[0]], groups[ranked[1]]))
    bounds = [group for group in groups.values() if trained_at_once(group[0])]
    if sentences and bounds:
        scores = ", ".join(f"{name_of(group[0].label)} {_LAST(group)}" for group in bounds)
        sentences.append(f"Trained on all images at once, which the others are not: {scores}.")
    same_for_all_seeds = []
    for label, group in groups.items():
        if len(group) > 1 and all(result.nested == group[0].nested for result in group):
            same_for_all_seeds.append(name_of(label))
    if same_for_all_seeds:
        sentences.append(f"± 0.0: the result does not depend on the seed ({', '.join(same_for_all_seeds)}).")
    return sentences


def ranking(groups: Mapping[str, Sequence[Results]]) -> list[str]:
    """Labels of the methods that have learned the whole stream, one experience after the other; best first.

    They are compared by the mean over seeds of the last mAP, as in the tables.
    """
    last = {}
    for label, group in groups.items():
        scores = known(result.summary["mAP"]["last"] for result in group if _has_learned_stream(result))
        if scores and label not in ABLATIONS:
            last[label] = statistics.fmean(scores)
    return sorted(last, key=lambda label: -last[label])


def _has_learned_stream(result: Results) -> bool:
    rows = result.nested["mAP"]
    return len(rows) == len(result.classes_per_experience) and all(rows)


def trained_at_once(result: Results) -> bool:
    """Whether the method was evaluated at the end only, as one is that trains on all images at once."""
    *before_end, _ = result.nested["mAP"]
    return len(before_end) > 0 and not any(before_end)


_LAST = score("mAP", "last")
_FORGETTING = score("mAP", "forgetting_absolute")


def _compare_best(best: Sequence[Results], second: Sequence[Results]) -> str:
    """Compare the two best methods by the scores of the table."""
    name, other = name_of(best[0].label), name_of(second[0].label)
    n_seeds = len(best)
    seeds = "one seed" if n_seeds == 1 else f"mean over {n_seeds} seeds"
    if _LAST(best).partition(" ")[0] == _LAST(second).partition(" ")[0]:
        text = f"{name} and {other} have the best mAP last, {_LAST(best)} and {_LAST(second)} ({seeds})"
    else:
        text = f"{name} has the best mAP last, {_LAST(best)}; {other} follows with {_LAST(second)} ({seeds})"
    return f"{text}. Their forgetting (lower is better) is {_FORGETTING(best)} and {_FORGETTING(second)}."


def table_1(results: Sequence[Results]) -> Table:
    """Every method of one benchmark: mean ± standard deviation over seeds, in percent.

    ``last`` is the score on all test images after the last experience, ``nested`` the mean over the nested
    test sets, which is what the paper's program reports. Forgetting is that of mAP. Further columns have the
    paper's scores for the same stream.
    """

    def seconds(group: Sequence[Results]) -> str:
        return mean_and_deviation((result.seconds["total"] for result in group), digits=0)

    def label(group: Sequence[Results]) -> str:
        return group[0].label

    columns = {
        **METHOD,
        **SEEDS,
        **SCORES,
        "forgetting": score("mAP", "forgetting_absolute"),
        "forgetting %": score("mAP", "forgetting_relative"),
        "seconds": seconds,
        **_papers_columns(results, TABLE_1, label, [*METRICS, "forgetting %"]),
    }
    return make_table(group_by_label(results).values(), columns)


def stage_table(results: Sequence[Results]) -> Table:
    """The table of the B protocols' papers: mean mAP over the stages, and scores after the last one.

    CF1 is the mean of per-class F1, and both F1 are at p > 0.8. Results without these scores have no row.
    """

    def average(group: Sequence[Results]) -> str:
        rows: list[Any] = [result.stages["mAP"] for result in group if result.stages]
        return mean_and_deviation(None if None in row else statistics.fmean(row) for row in rows)

    columns = {
        **METHOD,
        **SEEDS,
        "mAP average": average,
        "mAP last": last_stage("mAP"),
        "CF1 last": last_stage("mean_class_F1"),
        "OF1 last": last_stage("OF1"),
    }
    groups = group_by_label(result for result in results if result.stages)
    return make_table(groups.values(), columns)


def table_2(results: Sequence[Results]) -> Table:
    """AGCN without and with the blocks R and Q of its correlation matrix; no rows without the former."""
    chosen = _ablations(results, "2")
    columns: dict[str, Column] = {
        "A & B": lambda _: "√",
        "R & Q": lambda group: "√" if _is_full(group) else "×",
        **SEEDS,
        **SCORES,
        **_papers_columns(chosen, {ABLATED: TABLE_2}, _is_full, METRICS),
    }
    return make_table(sorted(group_by_label(chosen).values(), key=_is_full), columns)


def _is_full(group: Sequence[Results]) -> bool:
    return group[0].label == FULL


def table_3(results: Sequence[Results]) -> Table:
    """AGCN with other loss weights, with the relative forgetting of each metric; no rows without variants.

    The weights are those of the runs; the paper's scores are shown for the same weights only.
    """

    def weights(group: Sequence[Results]) -> tuple[float, float, float]:
        settings = group[0].settings["method_settings"]
        return settings["lambda_cls"], settings["lambda_dst"], settings["lambda_gph"]

    def weight(k: int, group: Sequence[Results]) -> str:
        return re.sub(r"e\+0*", "e", f"{weights(group)[k]:.3g}")  # "0.07", "1e5"

    def by_lambda(group: Sequence[Results]) -> tuple[float, float]:
        lambda_cls, _, lambda_gph = weights(group)
        return lambda_gph, lambda_cls

    chosen = _ablations(results, "3")
    columns: dict[str, Column] = {
        "λ₁": partial(weight, 0),
        "λ₂": partial(weight, 1),
        "λ₃": partial(weight, 2),
        **SEEDS,
        **SCORES,
        **FORGETTING,
        **_papers_columns(chosen, {ABLATED: TABLE_3}, weights, [*METRICS, *FORGETTING]),
    }
    return make_table(sorted(group_by_label(chosen).values(), key=by_lambda), columns)


def _ablations(results: Sequence[Results], table: str) -> list[Results]:
    """Results of AGCN and of its ablations in one of the tables; none if there is no such ablation."""
    labels = [label for label, variant in ABLATIONS.items() if variant.table == table]
    return add_agcn(results, labels)


def add_agcn(results: Sequence[Results], ablations: Collection[str]) -> list[Results]:
    """Results of some ablations and of AGCN itself; none if there are no results of the ablations."""
    if not any(result.label in ablations for result in results):
        return []
    return [result for result in results if result.label == FULL or result.label in ablations]


def _papers_columns(
    results: Sequence[Results],
    published: Mapping[str, Mapping[Any, Scores]],
    key: Callable[[Sequence[Results]], Any],
    titles: Sequence[str],
) -> dict[str, Column]:
    """Columns of the paper's scores, which ``published`` has by benchmark and key; none for other streams."""
    if not _is_papers_stream(results) or results[0].benchmark not in published:
        return {}

    def cell(k: int, group: Sequence[Results]) -> str:
        scores = published[group[0].benchmark].get(key(group), ())
        return f"{scores[k]:.2f}" if k < len(scores) else "–"

    return {f"paper: {title}": partial(cell, k) for k, title in enumerate(titles)}


def _is_papers_stream(results: Sequence[Results]) -> bool:
    """Whether the paper has scores for the stream of the results, which must be one."""
    if not results:
        return False
    first = results[0]
    classes = first.class_names
    n_experiences = len(first.classes_per_experience)
    for other in results:
        stream = (other.benchmark, other.class_names, len(other.classes_per_experience))
        if stream != (first.benchmark, classes, n_experiences):
            given = ", ".join(sorted({result.benchmark for result in results}))
            raise ValueError(
                f"results of {given} have different classes or experiences: give comparable runs."
            )
    uses_all_data = all(_uses_papers_data(result.settings) for result in results)
    return STREAMS.get(first.benchmark) == (len(classes), n_experiences) and uses_all_data


def _uses_papers_data(settings: Mapping[str, Any]) -> bool:
    """Whether a run trained on all images of the paper's stream, and was tested on its test images."""
    is_papers_protocol = settings.get("protocol") in (None, "paper")
    return is_papers_protocol and not settings.get("limit") and not settings.get("validation_size")


def block_quality(result: Results) -> dict[str, tuple[float, float, float, float]]:
    """Compare the blocks B (new-new), R (old-new) and Q (new-old) of a run's matrix with the train images.

    For each block its mean, its true mean, the mean absolute error and Pearson's correlation. The diagonal,
    which is 1 in both, is skipped. Empty blocks give NaN, as does the correlation if either side is constant.
    """
    found = np.asarray(result.acm, dtype=float)
    true = np.asarray(result.cooccurrence, dtype=float)
    experience = np.asarray(result.experience_of_class)
    row, column = experience[:, None], experience[None, :]
    is_diagonal = np.eye(len(found), dtype=bool)
    blocks = {"B": (row == column) & ~is_diagonal, "R": row < column, "Q": row > column}
    return {name: _compare(found[mask], true[mask]) for name, mask in blocks.items()}


def _compare(found: np.ndarray, true: np.ndarray) -> tuple[float, float, float, float]:
    """Both means, the mean absolute error and Pearson's correlation of two vectors."""
    if not found.size:
        return math.nan, math.nan, math.nan, math.nan
    error = float(np.abs(found - true).mean())
    varies = np.ptp(found) > 0 and np.ptp(true) > 0
    correlation = float(np.corrcoef(found, true)[0, 1]) if varies else math.nan
    return float(found.mean()), float(true.mean()), error, correlation


def quality_table(results: Sequence[Results]) -> Table:
    """Blocks of each AGCN's matrix compared with the co-occurrence of the train images: means over seeds."""
    header = ["Method"]
    for block in "BRQ":
        header += [f"{block}: mean (true)", f"{block}: error", f"{block}: correlation"]
    rows = []
    measured = [result for result in results if result.acm is not None and result.cooccurrence is not None]
    for label, group in group_by_label(measured).items():
        cells = [name_of(label)]
        qualities = [block_quality(result) for result in group]
        for block in "BRQ":
            of_seeds = np.array([quality[block] for quality in qualities])  # [seeds, 4]
            mean, true_mean, error, correlation = of_seeds.mean(axis=0)
            cells += [f"{mean:.3f} ({true_mean:.3f})", f"{error:.3f}", f"{correlation:.2f}"]
        rows.append(cells)
    return Table(header, rows)


def class_table(results: Sequence[Results]) -> Table:
    """AP of each class at the end of each run, and precision and recall at its threshold, in percent."""
    rows = []
    for result in results:
        thresholds = decision_thresholds(result)
        for c, (name, t) in enumerate(zip(result.class_names, result.experience_of_class, strict=True)):
            ap = result.per_class_ap[name]
            precision, recall = _precision_and_recall(result.decisions, c, thresholds[c])
            scores = ["" if value is None else f"{value:.2f}" for value in (ap, precision, recall)]
            rows.append([name, str(t + 1), result.label, str(result.seed), *scores])
    return Table(["class", "experience", "method", "seed", "AP", "precision", "recall"], rows)


def _precision_and_recall(
    counts: Mapping[str, Any] | None, c: int, threshold: float
) -> tuple[float | None, float | None]:
    """Precision and recall of class c in percent; None where nothing was counted at the threshold."""
    if not counts:
        return None, None
    n_true = counts["true"][c]
    if "chosen_found" in counts:
        n_found, n_right = counts["chosen_found"][c], counts["chosen_right"][c]
    elif threshold in counts["thresholds"]:  # of a run that chose no thresholds
        at = counts["thresholds"].index(threshold)
        n_found, n_right = counts["found"][at][c], counts["right"][at][c]
    else:
        return None, None
    precision = 100 * n_right / n_found if n_found else None
    recall = 100 * n_right / n_true if n_true else None
    return precision, recall


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
