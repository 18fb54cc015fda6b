"""Reports from results, and the page of a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.checkpoint import write_atomically, write_text
from avalanche_agcn.experiments.comparison import verdict
from avalanche_agcn.experiments.methods import ABLATIONS
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.results import Results, group_by_label
from avalanche_agcn.experiments.settings import ascii_name
from avalanche_agcn.experiments.tables import Table, all_tables, class_table, summary_text, with_full

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
    known: set[str] = set()
    for benchmark, own in _by_benchmark(results).items():
        for caption, table in ({} if only else all_tables(own, stages=stages)).items():
            print(f"\n{benchmark}, {caption}, in percent:\n\n{table.markdown()}")
            path = out / FILE_NAMES[caption].format(ascii_name(benchmark))
            for suffix, text in ((".md", table.markdown()), (".csv", table.csv()), (".tex", table.latex())):
                write_text(path.with_suffix(suffix), text)
        if not only:
            if sentence := verdict(own):
                print(f"{sentence}\n")
            write_text(out / f"classes-{ascii_name(benchmark)}.csv", class_table(own).csv())
        drawings = _plots_of(own)
        known |= set(drawings)
        for name in [name for name in drawings if not only or name in only]:
            draw(drawings[name], out / f"{ascii_name(benchmark)}-{name}.png")
    if not set(only) <= known:
        raise ValueError(f"no plot {sorted(set(only) - known)}; there are {sorted(known)}.")
    if not only:
        write_html(out / PAGE_FILE, _by_benchmark(results), stages=stages)
        print(f"Tables and plots are in {out}; {out / PAGE_FILE} shows them all.")


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
        order = result.settings.get("class_order") or "data"
        sizes = f"{len(result.class_names)} classes in {len(result.classes_per_experience)} experiences"
        streams.setdefault((result.benchmark, sizes, f"order {order}"), []).append(result)
    named: dict[str, list[Results]] = {}
    for (benchmark, *about), own in streams.items():
        others = [other[1:] for other in streams if other[0] == benchmark]
        telling = [text for k, text in enumerate(about) if len({other[k] for other in others}) > 1]
        named[", ".join([benchmark, *telling])] = own
    return named


def _plots_of(results: Sequence[Results]) -> dict[str, Callable[[], Figure]]:
    """A function that draws each plot, by name. Ablations stand apart from methods, with AGCN beside them."""
    methods = [result for result in results if result.label not in ABLATIONS]
    ablations = with_full(results, ABLATIONS)
    found: dict[str, Callable[[], Figure]] = {}
    for suffix, rows in (("", methods), ("-variants", ablations)):
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
    """Put scores in the place of their names, so that no number is typed.

    Args:
        text: with names such as ``{{ frozen["agcn + er"].mAP.last }}``: part, label, metric, kind.
        results: of each part.

    Raises:
        ValueError: if there is no such score.
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
        metric: {
            kind: summary_text(group, metric, kind) for kind, value in kinds.items() if value is not None
        }
        for metric, kinds in group[0].summary.items()
    }
