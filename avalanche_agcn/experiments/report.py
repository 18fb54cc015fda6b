"""Reports: all tables and plots of results, the page of a study, and comparisons of methods."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots, tables
from avalanche_agcn.experiments.checkpoint import write_atomically, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, name_of
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.results import Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.settings import ascii_name
from avalanche_agcn.experiments.tables import Column, Table, score

ENDINGS = {"B protocols' table": "-stages", "Table 2": "-2", "Table 3": "-3", "Variants of ours": "-variants"}
"""Parts of the file names of tables, by caption."""


def write_report(
    results: Sequence[Results], out: Path, *, only: Collection[str] = (), stages: bool = False
) -> None:
    """Print the tables of each stream, write them as Markdown, CSV and LaTeX, and write plots and the page.

    With ``only``, draw the plots with these names and nothing else. ``stages`` also makes the table of the B
    protocols' papers for other protocols. A plot whose pictures cannot be opened is skipped, with a message.
    Results that are not comparable and unknown names of plots raise a ValueError.
    """
    streams = _by_benchmark(results)
    drawings = {benchmark: _plots_of(own) for benchmark, own in streams.items()}
    known = {name for own in drawings.values() for name in own}
    if not set(only) <= known:
        raise ValueError(f"no plot {sorted(set(only) - known)}; there are {sorted(known)}.")
    for benchmark, own in streams.items():
        if not only:
            _write_tables(own, out, benchmark, stages=stages)
        for name, make in drawings[benchmark].items():
            if not only or name in only:
                draw(make, out / f"{ascii_name(benchmark)}-{name}.png")
    if not only:
        write_html(out / PAGE_FILE, streams, stages=stages)
        print(f"Tables and plots are in {out}; {out / PAGE_FILE} shows them all.")


def _write_tables(results: Sequence[Results], out: Path, benchmark: str, *, stages: bool) -> None:
    for caption, table in tables.all_tables(results, stages=stages).items():
        print(f"\n{benchmark}, {caption}, in percent:\n\n{table.markdown()}")
        name = f"table{ENDINGS.get(caption, '')}-{ascii_name(benchmark)}"
        for form, text in {"md": table.markdown(), "csv": table.csv(), "tex": table.latex()}.items():
            write_text(out / f"{name}.{form}", text)
    if sentence := verdict(results):
        print(f"{sentence}\n")
    write_text(out / f"classes-{ascii_name(benchmark)}.csv", tables.class_table(results).csv())


def refresh_page(out: Path, finished: Sequence[Results], n_runs: int, running: Results) -> None:
    """Write ``report.html`` with finished runs and the current one; if that fails, print why."""
    learned = f"{len(running.nested['mAP'])} of {len(running.classes_per_experience)} experiences"
    progress = f"Run {len(finished) + 1} of {n_runs}, {running.name}: {learned} learned."
    results = [*finished, replace(running, worst=None)]
    try:
        write_html(out / PAGE_FILE, _by_benchmark(results), progress=progress)
    except Exception as error:  # of any type: a run must not fail because of its page
        print(f"{out / PAGE_FILE} was not written: {error}")


def _by_benchmark(results: Sequence[Results]) -> dict[str, list[Results]]:
    """Results by the name of their stream: the benchmark, and what distinguishes several streams of it."""
    streams: dict[tuple[str, ...], list[Results]] = {}
    for result in results:
        sizes = f"{len(result.class_names)} classes in {len(result.classes_per_experience)} experiences"
        stream = (result.benchmark, sizes, f"order {result.class_order}")
        streams.setdefault(stream, []).append(result)
    named: dict[str, list[Results]] = {}
    for (benchmark, *about), own in streams.items():
        others = [other[1:] for other in streams if other[0] == benchmark]
        telling = [text for k, text in enumerate(about) if len({other[k] for other in others}) > 1]
        named[", ".join([benchmark, *telling])] = own
    return named


def _plots_of(results: Sequence[Results]) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the plots, by name. Ablations have plots of their own, with AGCN for comparison."""
    methods = [result for result in results if result.label not in ABLATIONS]
    found: dict[str, Callable[[], Figure]] = {}
    for suffix, rows in (("", methods), ("-variants", tables.with_full(results, ABLATIONS))):
        if rows:
            found[f"mAP{suffix}"] = partial(plots.curves, rows)
            found[f"classes{suffix}"] = partial(plots.class_precision, rows)
    for result in results:
        label = ascii_name(result.label)
        if result.acm is not None:
            found.setdefault(f"acm-{label}", partial(plots.correlation, result))
        if result.pictures:
            found.setdefault(f"pictures-{label}", partial(plots.pictures, result))
    return found


def draw(make: Callable[[], Figure], path: Path, *, dpi: int = 150) -> None:
    """Draw a plot and write it as PNG; if its pictures are missing, skip it and print why."""
    with matplotlib.rc_context({"text.parse_math": False}):  # names may contain dollar signs
        try:
            figure = make()
        except OSError as error:
            print(f"{path.name} is skipped: {error}")
            return
        write_atomically(path, partial(figure.savefig, format="png", dpi=dpi))


class Part(NamedTuple):
    """A part of a study: title of its section, results, and tables and functions that draw plots by caption.

    The part of a plot's caption before a colon is in its file name.
    """

    title: str
    results: Sequence[Results]
    tables: Mapping[str, Table]
    plots: Mapping[str, Callable[[], Figure]]


def write_page(out: Path, text: str, parts: Mapping[str, Part], *, figures: Path, name: str) -> None:
    """Write the page of a study in Markdown: its text, a template for `fill_in`, then each part.

    Plots are written to the folder ``figures``, under file names that begin with ``name``.
    """
    sections = [fill_in(text, {name: part.results for name, part in parts.items()}).strip()]
    for key, part in parts.items():
        sections.append(f"## {part.title}")
        for caption, table in part.tables.items():
            sections += [f"### {caption}", table.markdown().strip()]
        for caption, make in part.plots.items():
            path = figures / f"{name}-{key}-{ascii_name(caption.partition(':')[0])}.png"
            draw(make, path, dpi=110)
            sections.append(f"![{caption}]({Path(os.path.relpath(path, out.parent)).as_posix()})")
    write_text(out, "\n\n".join(section for section in sections if section) + "\n")


def fill_in(text: str, results: Mapping[str, Iterable[Results]]) -> str:
    """Fill a Jinja2 template with scores, so that no number is typed by hand.

    Scores are named by part, label, metric and kind: ``{{ frozen["agcn + er"].mAP.last }}``. A name without a
    score raises a ValueError.
    """
    scores: dict[str, dict[str, Any]] = {part: {} for part in results}
    for part, own in results.items():
        for label, group in group_by_label(own).items():
            scores[part][label] = {
                metric: {
                    kind: score(metric, kind)(group) for kind, value in kinds.items() if value is not None
                }
                for metric, kinds in group[0].summary.items()
            }
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
    try:
        return template.render(scores)
    except jinja2.UndefinedError as error:
        raise ValueError(f"the text of the page refers to a score that is not there: {error}.") from None


RUNS: dict[str, Column] = {"runs": lambda group: str(len(group))}
SCORES = {
    "mAP last": score("mAP", "last"),
    "mAP average": score("mAP", "average"),
    "CF1": score("CF1", "last"),
    "OF1": score("OF1", "last"),
    "forgetting": score("mAP", "forgetting_absolute"),
}


def comparison_table(results: Sequence[Results], *, reference: str = "finetuning") -> Table:
    """All rows of one stream, best last mAP first: scores, what is stored, and time.

    Results may have any number of seeds and class orders. The training time is relative to the reference.
    """
    groups = group_by_label(results)
    if reference not in groups:
        raise ValueError(f"there is no result of {reference!r} to compare times with.")
    columns: dict[str, Column] = {
        **tables.METHOD,
        **RUNS,
        **SCORES,
        "stored photos": partial(_stored, "images", ".0f", 1),
        "stored MB": partial(_stored, "bytes", ".1f", 1e6),
        "time": lambda group: f"{_train_seconds(group) / _train_seconds(groups[reference]):.1f}",
    }
    last = {label: [own.summary["mAP"]["last"] or 0.0 for own in group] for label, group in groups.items()}
    best_first = sorted(groups, key=lambda label: -statistics.fmean(last[label]))
    return tables.make_table([groups[label] for label in best_first], columns)


def _stored(kind: str, digits: str, unit: float, group: Sequence[Results]) -> str:
    sizes = [result.stored[kind] for result in group if result.stored is not None]
    return format(max(sizes) / unit, digits) if sizes else "–"


def _train_seconds(group: Sequence[Results]) -> float:
    return statistics.fmean(result.seconds["train"] for result in group)


def paired_differences(first: Sequence[Results], second: Sequence[Results]) -> dict[str, list[float]]:
    """Differences in last mAP between results with the same seed and class order, by class order."""
    a, b = ({(own.class_order, own.seed): own.summary["mAP"]["last"] for own in g} for g in (first, second))
    if a.keys() != b.keys():
        labels = f"{first[0].label!r} and {second[0].label!r}"
        raise ValueError(f"{labels} have different seeds or class orders: {sorted(a.keys() ^ b.keys())}.")
    differences: dict[str, list[float]] = {}
    for order, seed in sorted(a):
        x, y = a[order, seed], b[order, seed]
        differences.setdefault(order, []).append(math.nan if x is None or y is None else x - y)
    return differences


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean, by Student's t; infinite for one value."""
    from scipy import stats  # of the test extra: only studies need it

    if len(values) < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return mean - half, mean + half


def paired_table(results: Sequence[Results], labels: Sequence[str], against: Sequence[str]) -> Table:
    """Paired differences in last mAP between ``labels`` and ``against``: mean, interval, and by class order.

    All must have results of the same seeds and class orders.
    """
    groups = group_by_label(results)
    orders = sorted({result.class_order for result in results})
    rows = []
    for label, other in product(labels, against):
        by_order = paired_differences(groups[label], groups[other])
        values = [value for own in by_order.values() for value in own]
        low, high = confidence_interval(values)
        cells = [f"{statistics.fmean(values):+.1f}", f"{low:+.1f} to {high:+.1f}"]
        cells += [mean_and_deviation(by_order[order]) for order in orders]
        rows.append([f"{name_of(label)} − {name_of(other)}", str(len(values)), *cells])
    return Table(["Difference of mAP last", "pairs", "mean", "95 %", *(f"order {o}" for o in orders)], rows)


def balance(group: Sequence[Results]) -> tuple[float, float] | None:
    """Mean AP of the classes when they are new, and at the end, in percent, over classes and then seeds.

    Classes must have an AP both times. None for a method that is evaluated at the end only.
    """
    seeds = []
    for result in group:
        ap = result.class_ap or []
        if [len(row) for row in ap] == list(accumulate(result.classes_per_experience)):
            pairs = [(ap[t][c], ap[-1][c]) for c, t in enumerate(result.experience_of_class)]
            if known := [(new, last) for new, last in pairs if new is not None and last is not None]:
                seeds.append([statistics.fmean(values) for values in zip(*known, strict=True)])
    return tuple(map(statistics.fmean, zip(*seeds, strict=True))) if seeds else None  # type: ignore[return-value]


def verdict(results: Sequence[Results]) -> str | None:
    """A sentence that compares the two best methods of one benchmark; None if there are fewer.

    Methods that train on all images at once are not compared: they are upper bounds.
    """
    groups = group_by_label(results)
    known = {label: own for label, group in groups.items() if (own := balance(group)) is not None}
    if len(known) < 2:
        return None
    first, second = sorted(known, key=lambda label: -known[label][1])[:2]
    (new, last), (new_2, last_2) = known[first], known[second]
    where = f"the best mAP after the last experience, {last:.1f}"
    n_seeds = len(groups[first])
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    if f"{last:.1f}" == f"{last_2:.1f}":
        return f"{name_of(first)} and {name_of(second)} have {where} ({seeds})."
    reasons = {
        "learned new classes better": new > new_2,
        "lost less of what it learned": new - last < new_2 - last_2,
    }
    return (
        f"{name_of(first)} has {where} against {last_2:.1f} of {name_of(second)} ({seeds}), because it "
        f"{' and '.join(reason for reason, holds in reasons.items() if holds)}: the mean AP of its classes "
        f"was {new:.1f} when they were new and {last:.1f} at the end, against {new_2:.1f} and {last_2:.1f}."
    )
