"""Reports: all tables and plots of results, the page of a study, and comparisons of methods."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots, tables
from avalanche_agcn.experiments.checkpoint import write_atomically, write_text
from avalanche_agcn.experiments.methods import ABLATIONS, name_of
from avalanche_agcn.experiments.page import PAGE_FILE, write_html
from avalanche_agcn.experiments.plots import count_of
from avalanche_agcn.experiments.results import Results, group_by_label, mean_and_deviation
from avalanche_agcn.experiments.settings import CONVENTIONS, ascii_name
from avalanche_agcn.experiments.tables import Column, Table, conclusion, score


def write_report(
    results: Sequence[Results], out: Path, *, only: Collection[str] = (), stages: bool = False
) -> None:
    """Print the tables of each stream, write them as Markdown, CSV and LaTeX, and write plots and the page.

    With ``only``, draw the plots with these names and nothing else; ``"pictures"`` stands for all plots whose
    names begin with ``"pictures-"``. ``stages`` also makes the table of the B protocols' papers for other
    protocols. A plot whose pictures cannot be opened is skipped, with a message. Results that are not
    comparable and unknown names of plots raise a ValueError.
    """
    streams = _by_benchmark(results)
    drawings = {benchmark: _plots_of(group) for benchmark, group in streams.items()}
    if only:
        wanted = _expand_names(only, drawings.values())
    for benchmark, drawings_of_stream in drawings.items():
        if not only:
            _write_tables(streams[benchmark], out, benchmark, stages=stages)
        for name, make in drawings_of_stream.items():
            if not only or name in wanted:
                draw(make, out / f"{ascii_name(benchmark)}-{name}.png")
    if not only:
        write_html(out / PAGE_FILE, streams, stages=stages)
        print(f"Tables and plots are in {out}; {out / PAGE_FILE} shows them all.")


def _expand_names(only: Collection[str], drawings: Iterable[Iterable[str]]) -> set[str]:
    """Names of plots that ``only`` stands for: the plot of that name, or else all that begin with it."""
    known = set().union(*drawings)
    wanted: set[str] = set()
    for name in only:
        matching = {name} & known
        if not matching:
            matching = {plot for plot in known if plot.startswith(f"{name}-")}
        if not matching:
            raise ValueError(f"there is no plot {name!r}; choose from {', '.join(sorted(known))}.")
        wanted |= matching
    return wanted


def _write_tables(results: Sequence[Results], out: Path, benchmark: str, *, stages: bool) -> None:
    for caption, suffix, table in tables.all_tables(results, stages=stages):
        print(f"\n{benchmark}. {caption}, in percent:\n\n{table.markdown()}")
        path = out / f"table{suffix}-{ascii_name(benchmark)}"
        write_text(path.with_name(f"{path.name}.md"), table.markdown())
        write_text(path.with_name(f"{path.name}.csv"), table.csv())
        write_text(path.with_name(f"{path.name}.tex"), table.latex())
    for sentence in conclusion(results):
        print(sentence)
    print()
    write_text(out / f"classes-{ascii_name(benchmark)}.csv", tables.class_table(results).csv())


def refresh_page(out: Path, finished: Sequence[Results], n_runs: int, running: Results) -> None:
    """Write ``report.html`` with finished runs and the current one; if that fails, print why."""
    n_experiences = count_of(len(running.classes_per_experience), "experience")
    learned = f"{len(running.nested['mAP'])} of {n_experiences} learned"
    progress = f"Run {len(finished) + 1} of {n_runs}, {running.name}: {learned}."
    results = [*finished, replace(running, worst=None)]
    try:
        write_html(out / PAGE_FILE, _by_benchmark(results), progress=progress)
    except Exception as error:  # of any type: a run must not fail because of its page
        print(f"{out / PAGE_FILE} was not written: {error}")


def check_comparable(results: Sequence[Results]) -> None:
    """Raise a ValueError if results of one label in one stream have different settings."""
    for group in _by_benchmark(results).values():
        group_by_label(group)


class _Stream(NamedTuple):
    """What distinguishes streams of one benchmark, in words; results of different ones are not compared."""

    benchmark: str
    sizes: str
    order: str
    conventions: str
    n_test: str  # of own photos, like the next
    test_digest: str

    @classmethod
    def of(cls, result: Results) -> _Stream:
        """The stream of a run."""
        classes = count_of(len(result.class_names), "class")
        experiences = count_of(len(result.classes_per_experience), "experience")
        n_test = test_digest = ""
        if result.benchmark == OWN_PHOTOS and result.data is not None:
            test = result.data.get("test", {})
            n_test = count_of(sum((result.n_images or {}).get("test", [])), "test photo")
            content = f"{test.get('images')} {test.get('labels')}"
            test_digest = f"{zlib.crc32(content.encode()):08x}"
        return cls(
            benchmark=result.benchmark,
            sizes=f"{classes} in {experiences}",
            order=f"order {result.class_order}",
            conventions=_describe_conventions(result.settings),
            n_test=n_test,
            test_digest=test_digest,
        )

    def name_among(self, streams: Collection[_Stream]) -> str:
        """A name that no other of the streams has."""
        others = [other for other in streams if other.benchmark == self.benchmark and other != self]
        parts = [self.benchmark]
        for part in ("sizes", "order", "conventions"):
            text = getattr(self, part)
            if any(getattr(other, part) != text for other in others):
                parts.append(text)
        same = [other for other in others if other[:4] == self[:4]]  # but for their photos
        if same:
            parts.append(self.n_test)
        if any(other.n_test == self.n_test for other in same):
            parts.append(self.test_digest)
        return ", ".join(parts)


OWN_PHOTOS = "SplitPhotos"
"""The benchmark whose data differ from user to user, and from folder to folder."""


def _describe_conventions(settings: Mapping[str, Any]) -> str:
    """The protocol and the conventions that were set, such as ``"protocol B0-C10, repeat_images"``."""
    chosen = []
    for name in ("protocol", *CONVENTIONS):
        value = settings.get(name)
        if value is not None and name != "class_order":  # the order has a part of its own
            chosen.append(name if value is True else f"{name} {value}")
    return ", ".join(chosen) or "usual protocol"


def _by_benchmark(results: Sequence[Results]) -> dict[str, list[Results]]:
    """Results by the name of their stream: the benchmark, and what distinguishes several streams of it."""
    streams: dict[_Stream, list[Results]] = {}
    for result in results:
        streams.setdefault(_Stream.of(result), []).append(result)
    return {stream.name_among(streams): found for stream, found in streams.items()}


def _plots_of(results: Sequence[Results]) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the plots, by name. Ablations have plots of their own, with AGCN for comparison."""
    methods = [result for result in results if result.label not in ABLATIONS]
    ablations = tables.add_agcn(results, ABLATIONS)
    found: dict[str, Callable[[], Figure]] = {}
    if methods:
        found["mAP"] = partial(plots.curves, methods)
        found["classes"] = partial(plots.class_precision, methods)
    if ablations:
        found["mAP-variants"] = partial(plots.curves, ablations)
        found["classes-variants"] = partial(plots.class_precision, ablations)
    for result in results:  # of several seeds, the first
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


def fill_in(text: str, results: Mapping[str, Iterable[Results]]) -> str:
    """Fill a Jinja2 template with scores, so that no number is typed by hand.

    Scores are named by part, label, metric and kind: ``{{ frozen["agcn + er"].mAP.last }}``. A name without a
    score raises a ValueError.
    """
    scores: dict[str, dict[str, Any]] = {}
    for part, results_of_part in results.items():
        groups = group_by_label(results_of_part)
        scores[part] = {label: _scores_by_name(group) for label, group in groups.items()}
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
    try:
        return template.render(scores)
    except jinja2.UndefinedError as error:
        raise ValueError(f"the text of the page refers to a score that is not there: {error}.") from None


def _scores_by_name(group: Sequence[Results]) -> dict[str, dict[str, str]]:
    """Text of each score of a row, by metric and kind, without those that are not defined."""
    scores: dict[str, dict[str, str]] = {}
    for metric, kinds in group[0].summary.items():
        defined = [kind for kind, value in kinds.items() if value is not None]
        scores[metric] = {kind: score(metric, kind)(group) for kind in defined}
    return scores


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
    reference_seconds = _train_seconds(groups[reference])

    def relative_time(group: Sequence[Results]) -> str:
        return f"{_train_seconds(group) / reference_seconds:.1f}"

    def last_map(group: Sequence[Results]) -> float:
        return statistics.fmean(result.summary["mAP"]["last"] or 0.0 for result in group)

    columns: dict[str, Column] = {
        **tables.METHOD,
        **RUNS,
        **SCORES,
        "stored photos": _stored_photos,
        "stored MB": _stored_megabytes,
        "time": relative_time,
    }
    best_first = sorted(groups.values(), key=last_map, reverse=True)
    return tables.make_table(best_first, columns)


def _stored_photos(group: Sequence[Results]) -> str:
    sizes = [result.stored["images"] for result in group if result.stored is not None]
    return str(max(sizes)) if sizes else "–"


def _stored_megabytes(group: Sequence[Results]) -> str:
    sizes = [result.stored["bytes"] for result in group if result.stored is not None]
    return f"{max(sizes) / 1e6:.1f}" if sizes else "–"


def _train_seconds(group: Sequence[Results]) -> float:
    return statistics.fmean(result.seconds["train"] for result in group)


def paired_differences(first: Sequence[Results], second: Sequence[Results]) -> dict[str, list[float]]:
    """Differences in last mAP between results with the same seed and class order, by class order."""
    first_scores = _last_by_run(first)
    second_scores = _last_by_run(second)
    unpaired = first_scores.keys() ^ second_scores.keys()
    if unpaired:
        labels = f"{first[0].label!r} and {second[0].label!r}"
        raise ValueError(f"{labels} have different seeds or class orders: {sorted(unpaired)}.")
    differences: dict[str, list[float]] = {}
    for order, seed in sorted(first_scores):
        difference = first_scores[order, seed] - second_scores[order, seed]
        differences.setdefault(order, []).append(difference)
    return differences


def _last_by_run(group: Sequence[Results]) -> dict[tuple[str, int], float]:
    """Last mAP by class order and seed; NaN if it is not defined."""
    scores = {}
    for result in group:
        last = result.summary["mAP"]["last"]
        scores[result.class_order, result.seed] = math.nan if last is None else last
    return scores


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
    header = ["Difference of mAP last", "pairs", "mean", "95 %"]
    header += [f"order {order}" for order in orders]
    rows = []
    for label in labels:
        for other in against:
            by_order = paired_differences(groups[label], groups[other])
            values = [value for order in by_order for value in by_order[order]]
            low, high = confidence_interval(values)
            cells = [f"{name_of(label)} − {name_of(other)}", str(len(values))]
            cells += [f"{statistics.fmean(values):+.1f}", f"{low:+.1f} to {high:+.1f}"]
            cells += [mean_and_deviation(by_order[order]) for order in orders]
            rows.append(cells)
    return Table(header, rows)
