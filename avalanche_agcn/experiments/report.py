"""Reports of results: all their tables and plots, the page of a study, and comparisons of methods."""

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

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.checkpoint import write_atomically, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, name_of
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.results import Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.settings import ascii_name
from avalanche_agcn.experiments.tables import (
    METHOD,
    Column,
    Table,
    all_tables,
    class_table,
    make_table,
    score,
    with_full,
)

FILE_NAMES = {
    "Table 1": "table-{}",
    "B protocols' table": "table-stages-{}",
    "Table 2": "table-2-{}",
    "Table 3": "table-3-{}",
    "Variants of ours": "table-variants-{}",
}
"""Files of tables by caption; {} is the benchmark."""


def write_report(
    results: Sequence[Results], out: Path, *, only: Collection[str] = (), stages: bool = False
) -> None:
    """Print the tables of each benchmark, write them as Markdown, CSV and LaTeX, draw the plots and the page.

    A plot whose pictures cannot be opened is left out, with a message.

    Args:
        results: of one stream for each benchmark.
        out: folder to write to.
        only: draw the plots of these names and nothing else.
        stages: also make the table as the papers of the B protocols have it, which results under a B
            protocol always have.

    Raises:
        ValueError: if results are not comparable, or there is no plot of such a name.
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
    for caption, table in all_tables(results, stages=stages).items():
        print(f"\n{benchmark}, {caption}, in percent:\n\n{table.markdown()}")
        path = out / FILE_NAMES[caption].format(ascii_name(benchmark))
        for suffix, text in ((".md", table.markdown()), (".csv", table.csv()), (".tex", table.latex())):
            write_text(path.with_suffix(suffix), text)
    if sentence := verdict(results):
        print(f"{sentence}\n")
    write_text(out / f"classes-{ascii_name(benchmark)}.csv", class_table(results).csv())


def refresh_page(out: Path, finished: Sequence[Results], n_runs: int, running: Results) -> None:
    """Write ``report.html`` with finished runs and the one that is running; if that fails, print why."""
    learned = f"{len(running.nested['mAP'])} of {len(running.classes_per_experience)} experiences"
    progress = f"Run {len(finished) + 1} of {n_runs}, {running.name}: {learned} learned."
    results = [*finished, replace(running, worst=None)]
    try:
        write_html(out / PAGE_FILE, _by_benchmark(results), progress=progress)
    except Exception as error:  # of any type: a run must not end because of its page
        print(f"{out / PAGE_FILE} was not written: {error}")


def _by_benchmark(results: Sequence[Results]) -> dict[str, list[Results]]:
    """Results by the name of their stream: the benchmark, and what tells several streams of it apart."""
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
    """A function that draws each plot, by name. Ablations stand apart from methods, with AGCN beside them."""
    methods = [result for result in results if result.label not in ABLATIONS]
    found: dict[str, Callable[[], Figure]] = {}
    for suffix, rows in (("", methods), ("-variants", with_full(results, ABLATIONS))):
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
    """Draw a plot and write it as PNG; if its pictures are missing, print why and leave it out."""
    with matplotlib.rc_context({"text.parse_math": False}):  # a name may have dollar signs
        try:
            figure = make()
        except OSError as error:
            print(f"{path.name} is left out: {error}")
            return
        write_atomically(path, partial(figure.savefig, format="png", dpi=dpi))


class Part(NamedTuple):
    """A part of a study: the title of its section, its results, and tables and plots by caption."""

    title: str
    results: Sequence[Results]
    tables: Mapping[str, Table]
    plots: Mapping[str, Callable[[], Figure]]
    """Functions that draw them; the part of the caption before a colon names the file."""


def write_page(out: Path, text: str, parts: Mapping[str, Part], *, figures: Path, name: str) -> None:
    """Write the page of a study in Markdown: its text, then tables and plots of each part.

    Args:
        out: the page.
        text: its first section, a Jinja2 template; see `fill_in`.
        parts: the parts by name.
        figures: folder for the plots.
        name: how the names of plots begin.

    Raises:
        ValueError: if the text asks for a score that the results do not have.
    """
    sections = [fill_in(text, {name: part.results for name, part in parts.items()}).strip()]
    for part, (title, _, tables, drawings) in parts.items():
        sections.append(f"## {title}")
        for caption, table in tables.items():
            sections += [f"### {caption}", table.markdown().strip()]
        for caption, make in drawings.items():
            path = figures / f"{name}-{part}-{ascii_name(caption.partition(':')[0])}.png"
            draw(make, path, dpi=110)
            sections.append(f"![{caption}]({Path(os.path.relpath(path, out.parent)).as_posix()})")
    write_text(out, "\n\n".join(section for section in sections if section) + "\n")


def fill_in(text: str, results: Mapping[str, Iterable[Results]]) -> str:
    """Put scores of the parts' results in the place of their names, so that no number is typed.

    Names are such as ``{{ frozen["agcn + er"].mAP.last }}``: part, label, metric, kind.
    """
    scores: dict[str, dict[str, Any]] = {}
    for part, own in results.items():
        scores[part] = {label: _known_scores(group) for label, group in group_by_label(own).items()}
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
    try:
        return template.render(scores)
    except jinja2.UndefinedError as error:
        raise ValueError(f"the text of the page asks for a score that is not there: {error}.") from None


def _known_scores(group: Sequence[Results]) -> dict[str, dict[str, str]]:
    """Mean and deviation of each kind of score, by metric and kind; only those that are defined."""
    return {
        metric: {kind: score(metric, kind)(group) for kind, value in kinds.items() if value is not None}
        for metric, kinds in group[0].summary.items()
    }


RUNS: dict[str, Column] = {"runs": lambda group: str(len(group))}
SCORES = {
    "mAP last": score("mAP", "last"),
    "mAP average": score("mAP", "average"),
    "CF1": score("CF1", "last"),
    "OF1": score("OF1", "last"),
    "forgetting": score("mAP", "forgetting_absolute"),
}


def comparison_table(results: Sequence[Results], *, reference: str = "finetuning") -> Table:
    """All rows of one stream: scores, what is stored, and time, with the best last mAP first.

    Results may be of any number of seeds and class orders. The training time of the reference is 1.
    """
    groups = group_by_label(results)
    if reference not in groups:
        raise ValueError(f"there is no result of {reference!r} to compare times with.")
    columns: dict[str, Column] = {
        **METHOD,
        **RUNS,
        **SCORES,
        "stored photos": partial(_stored, "images"),
        "stored MB": partial(_stored, "bytes"),
        "time": lambda group: f"{_train_seconds(group) / _train_seconds(groups[reference]):.1f}",
    }
    return make_table(sorted(groups.values(), key=_last, reverse=True), columns)


def _train_seconds(group: Sequence[Results]) -> float:
    return statistics.fmean(result.seconds["train"] for result in group)


def _last(group: Sequence[Results]) -> float:
    return statistics.fmean(result.summary["mAP"]["last"] or 0.0 for result in group)


def _stored(kind: str, group: Sequence[Results]) -> str:
    """Number of stored photos, or megabytes of all else."""
    sizes = [result.stored[kind] for result in group if result.stored is not None]
    if not sizes:
        return "–"
    return str(max(sizes)) if kind == "images" else f"{max(sizes) / 1e6:.1f}"


def paired_differences(first: Sequence[Results], second: Sequence[Results]) -> dict[str, list[float]]:
    """Differences of the last mAP between results of the same seed and class order, by class order."""
    pairs = [{(result.class_order, result.seed): result for result in group} for group in (first, second)]
    if pairs[0].keys() != pairs[1].keys():
        raise ValueError(
            f"{first[0].label!r} and {second[0].label!r} were run with different seeds or class orders: "
            f"{sorted(pairs[0].keys() ^ pairs[1].keys())}."
        )
    differences: dict[str, list[float]] = {}
    for key in sorted(pairs[0]):
        a, b = (own[key].summary["mAP"]["last"] for own in pairs)
        differences.setdefault(key[0], []).append(math.nan if a is None or b is None else a - b)
    return differences


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the mean at 95 %, by Student's t; of one value it is infinite."""
    from scipy import stats  # of the test extra: only studies need it

    if len(values) < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return mean - half, mean + half


def paired_table(results: Sequence[Results], labels: Sequence[str], against: Sequence[str]) -> Table:
    """How much the last mAP of some rows lies above that of others: mean, interval, and mean per class order.

    Every row must have results of the same seeds and class orders.
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


class Balance(NamedTuple):
    """AP of the classes when they are new and at the end, mean over them and over seeds, in percent."""

    new: float
    """At the end of the experience that brought each class."""
    last: float
    """At the end of the stream."""

    @property
    def lost(self) -> float:
        """Until the end of the stream."""
        return self.new - self.last


def verdict(results: Sequence[Results]) -> str | None:
    """A sentence about the best method of one benchmark and the next; None if there are no two to compare.

    Methods that train on all images at once are not compared: they are upper bounds.
    """
    groups = group_by_label(results)
    known = {label: own for label, group in groups.items() if (own := balance(group)) is not None}
    if len(known) < 2:
        return None
    first, second = sorted(known, key=lambda label: -known[label].last)[:2]
    best, other = known[first], known[second]
    n_seeds = len(groups[first])
    where = f"the best mAP after the last experience, {best.last:.1f}"
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    if f"{best.last:.1f}" == f"{other.last:.1f}":
        return f"{name_of(first)} and {name_of(second)} have {where} ({seeds})."
    reason = "learned new classes better" if best.new > other.new else "lost less of what was learned"
    if best.new > other.new and best.lost < other.lost:
        reason = "learned new classes better and lost less of them"
    return (
        f"{name_of(first)} has {where} against {other.last:.1f} of {name_of(second)} ({seeds}), because it "
        f"{reason}: the mean AP of its classes was {best.new:.1f} when they were new and {_change(best)} "
        f"at the end, against {other.new:.1f} and {_change(other)}."
    )


def balance(group: Sequence[Results]) -> Balance | None:
    """How well the classes were learned and kept; None for a method that is evaluated at the end only."""
    known = [own for result in group if (own := _balance(result)) is not None]
    return Balance(*map(statistics.fmean, zip(*known, strict=True))) if known else None


def _balance(result: Results) -> Balance | None:
    """Over the classes that have an AP both when they are new and at the end."""
    ends = list(accumulate(result.classes_per_experience))
    if not result.class_ap or [len(row) for row in result.class_ap] != ends:
        return None
    at_end = zip(result.experience_of_class, result.class_ap[-1], strict=True)
    pairs = [(result.class_ap[t][c], last) for c, (t, last) in enumerate(at_end)]
    known = [(new, last) for new, last in pairs if new is not None and last is not None]
    return Balance(*map(statistics.fmean, zip(*known, strict=True))) if known else None


def _change(own: Balance) -> str:
    return f"{abs(own.lost):.1f} {'lower' if own.lost >= 0 else 'higher'}"
