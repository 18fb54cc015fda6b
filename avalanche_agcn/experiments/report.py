"""Tables and figures from results: ``python -m avalanche_agcn.experiments.report DIR…``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.ablations import FULL
from avalanche_agcn.experiments.files import write_atomically, write_text
from avalanche_agcn.experiments.results import Results, find_results
from avalanche_agcn.experiments.tables import Table, all_tables, is_method

FILE_NAMES = {
    "Table 1": "table-{}",
    "Table 2": "table-2-{}",
    "Table 3": "table-3-{}",
    "Variants of ours": "table-variants-{}",
}
"""Tables by caption; {} is the benchmark."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make tables and figures anew from existing results."""
    parser = argparse.ArgumentParser(
        description="Make tables (Markdown, CSV, LaTeX) and figures anew from existing results."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="folders with results.json below"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to; the first folder by default")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="draw these figures and write nothing else: mAP, classes, acm-agcn, pictures-agcn, …",
    )
    arguments = parser.parse_args(argv)
    try:
        results = find_results(arguments.folders)
        write_report(results, arguments.out or arguments.folders[0], only=arguments.only)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def write_report(results: Sequence[Results], out: Path, *, only: Collection[str] = ()) -> None:
    """Print the tables of each benchmark, write them as Markdown, CSV and LaTeX, and draw the figures.

    A picture that cannot be opened any more is said and left out.

    Args:
        results: Of one stream for each benchmark.
        out: Folder to write to.
        only: Draw the figures of these names and nothing else.

    Raises:
        ValueError: If results are not comparable, or there is no figure of such a name.
    """
    known: set[str] = set()
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        own = [result for result in results if result.benchmark == benchmark]
        for caption, table in ({} if only else all_tables(own)).items():
            print(f"\n{benchmark}, {caption}, in percent:\n\n{table.markdown()}")
            _write_table(table, out / FILE_NAMES[caption].format(benchmark))
        figures = _figures(own)
        known |= set(figures)
        for name in [name for name in figures if not only or name in only]:
            _draw(figures[name], out / f"{benchmark}-{name}.png")
    if not set(only) <= known:
        raise ValueError(f"no figure {sorted(set(only) - known)}; there are {sorted(known)}")
    print(f"Tables and figures are in {out}.")


def _figures(results: Sequence[Results]) -> dict[str, Callable[[], Figure]]:
    """What draws each figure, by name. Variants stand apart from methods, with AGCN beside them."""
    methods = [result for result in results if is_method(result)]
    variants = [result for result in results if not is_method(result) or result.label == FULL]
    figures: dict[str, Callable[[], Figure]] = {}
    if methods:
        figures |= {"mAP": partial(plots.curves, methods), "classes": partial(plots.class_precision, methods)}
    if not all(map(is_method, variants)):
        figures |= {"mAP-variants": partial(plots.curves, variants)}
        figures |= {"classes-variants": partial(plots.class_precision, variants)}
    for result in results:
        label = re.sub(r"[^\w.]+", "-", result.label)
        if result.acm is not None:
            figures.setdefault(f"acm-{label}", partial(plots.correlation, result))
        if result.pictures:
            figures.setdefault(f"pictures-{label}", partial(plots.pictures, result))
    return figures


def _draw(make: Callable[[], Figure], path: Path) -> None:
    try:
        figure = make()
    except FileNotFoundError as error:
        print(f"{path.name} is left out: {error}")
        return
    write_atomically(path, partial(figure.savefig, format="png", dpi=150))


def _write_table(table: Table, path: Path) -> None:
    write_text(path.with_suffix(".md"), table.markdown())
    write_text(path.with_suffix(".csv"), table.csv())
    write_text(path.with_suffix(".tex"), table.latex())


if __name__ == "__main__":
    raise SystemExit(main())
