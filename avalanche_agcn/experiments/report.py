"""Tables and figures from results: ``python -m avalanche_agcn.experiments.report DIR…``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from avalanche_agcn.experiments.files import write_atomically, write_text
from avalanche_agcn.experiments.plots import class_precision, correlation, curves
from avalanche_agcn.experiments.results import Results, find_results
from avalanche_agcn.experiments.tables import Table, table_1


def main(argv: Sequence[str] | None = None) -> int:
    """Make tables and figures anew from existing results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="folders with results.json below"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to; the first folder by default")
    arguments = parser.parse_args(argv)
    try:
        write_report(find_results(arguments.folders), arguments.out or arguments.folders[0])
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def write_report(results: Sequence[Results], out: Path) -> None:
    """Print the table of each benchmark, write it as Markdown, CSV and LaTeX, and draw the figures."""
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        own = [result for result in results if result.benchmark == benchmark]
        table = table_1(own)
        print(f"\n{benchmark}, in percent:\n\n{table.markdown()}")
        _write_table(table, out / f"table-{benchmark}")
        _draw_figures(own, out, benchmark)
    print(f"Tables and figures are in {out}.")


def _draw_figures(results: Sequence[Results], out: Path, benchmark: str) -> None:
    figures = {"classes": class_precision(results)}
    if any(result.method != "multitask" for result in results):
        figures["mAP"] = curves(results)
    for result in results:
        if result.acm is not None and f"acm-{result.label}" not in figures:
            figures[f"acm-{result.label}"] = correlation(result)
    for name, figure in figures.items():
        draw = partial(figure.savefig, format="png", dpi=150)
        write_atomically(out / f"{benchmark}-{name}.png", draw)


def _write_table(table: Table, path: Path) -> None:
    write_text(path.with_suffix(".md"), table.markdown())
    write_text(path.with_suffix(".csv"), table.csv())
    write_text(path.with_suffix(".tex"), table.latex())


if __name__ == "__main__":
    raise SystemExit(main())
