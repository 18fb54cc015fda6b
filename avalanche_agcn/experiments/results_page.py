"""A page on a study made from its folder: tables, choices, correlation matrices, figures."""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.ablations import FULL
from avalanche_agcn.experiments.acm_quality import BlockQuality, block_quality
from avalanche_agcn.experiments.files import write_atomically, write_text
from avalanche_agcn.experiments.results import Results, find_results
from avalanche_agcn.experiments.study import CHOSEN_FILE, read_choices
from avalanche_agcn.experiments.tables import (
    METHOD_NAMES,
    Table,
    all_tables,
    group_by_label,
    mean_and_deviation,
    name_of,
)

PARTS = {"frozen": "Network frozen, heads trained", "whole": "Whole network trained"}
DISCUSSION_FILE = "discussion.md"
IN_CURVES = (*METHOD_NAMES, *plots.WITH_MEMORY_STYLES)
"""Rows that the learning curves and the map of classes show; more could not be told apart."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and draw its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a study, such as runs/coco18")
    parser.add_argument("--out", type=Path, default=Path("RESULTS.md"), metavar="FILE")
    parser.add_argument("--figures", type=Path, default=Path("figures"), metavar="DIR")
    arguments = parser.parse_args(argv)
    try:
        write_page(arguments.folder, arguments.out, arguments.figures)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{arguments.out} is written, its figures are in {arguments.figures}.")
    return 0


def write_page(folder: Path, out: Path, figures: Path) -> None:
    """Make the page of a study.

    Args:
        folder: Has a folder for each of `PARTS` that was run, and the text in ``discussion.md``, in which
            `fill_in` puts figures.
        out: The page.
        figures: Folder for the figures.

    Raises:
        FileNotFoundError: If there are no results.
    """
    parts = {part: folder / part for part in PARTS if (folder / part / CHOSEN_FILE).is_file()}
    if not parts:
        raise FileNotFoundError(f"no {CHOSEN_FILE} in {folder}/frozen or {folder}/whole; run the study first")
    found = {part: find_results([own]) for part, own in parts.items()}
    words = folder / DISCUSSION_FILE
    sections = [fill_in(words.read_text(encoding="utf-8"), found).strip() if words.is_file() else ""]
    for part, own in parts.items():
        links = _draw_figures(found[part], figures, f"{folder.name}-{part}")
        sections += [f"## {PARTS[part]}", *_tables(found[part]), *_images(links, out), *_choices(own)]
    write_text(out, "\n\n".join(section for section in sections if section) + "\n")


def fill_in(text: str, results: Mapping[str, Sequence[Results]]) -> str:
    """Put figures in the place of their names, so that no number is typed.

    Args:
        text: With names such as ``[[frozen: agcn + er: mAP last]]``.
        results: Of each part.

    Raises:
        ValueError: If there is no such figure.
    """

    def figure(match: re.Match[str]) -> str:
        part, label, metric, kind = match.groups()
        own = [result for result in results.get(part, ()) if result.label == label]
        values = [result.summary.get(metric, {}).get(kind) for result in own]
        if not any(value is not None for value in values):
            raise ValueError(f"there is no figure {match[0]} for the text in the results")
        return mean_and_deviation(values)

    return re.sub(r"\[\[(\w+): ([^:\]]+): (\w+) (\w+)\]\]", figure, text)


def _tables(results: Sequence[Results]) -> list[str]:
    sections = []
    for caption, table in all_tables(results).items():
        sections += [f"### {caption}, in percent, mean ± deviation over seeds", table.markdown().strip()]
    quality = quality_table(results)
    if quality.rows:
        sections += ["### The correlation matrix against the train images", quality.markdown().strip()]
    return sections


def quality_table(results: Sequence[Results]) -> Table:
    """How near the blocks of each AGCN's matrix are to the co-occurrence of the train images: seed means."""
    header = ["Method"]
    for block in ("B", "R", "Q"):
        header += [f"{block}: mean (true)", f"{block}: error", f"{block}: correlation"]
    rows = []
    for label, group in group_by_label(results).items():
        known = [
            block_quality(result.acm, result.cooccurrence, plots.class_blocks(result))
            for result in group
            if result.acm is not None and result.cooccurrence is not None
        ]
        if known:
            cells = [_quality([qualities[block] for qualities in known]) for block in ("B", "R", "Q")]
            rows.append([name_of(label), *(cell for block in cells for cell in block)])
    return Table(header, rows)


def _quality(qualities: Sequence[BlockQuality]) -> list[str]:
    error, correlation, mean, true_mean = map(statistics.fmean, zip(*qualities, strict=True))
    return [f"{mean:.3f} ({true_mean:.3f})", f"{error:.3f}", f"{correlation:.2f}"]


def _choices(folder: Path) -> list[str]:
    rows = []
    choices = read_choices(folder)
    for label, choice in choices.items():
        scores = [trial["validation mAP"] for trial in choice["tried"]]
        settings = ", ".join(f"{name} {value:g}" for name, value in choice["settings"].items())
        rows.append([name_of(label), str(len(scores)), settings, f"{max(scores):.1f}", f"{min(scores):.1f}"])
    header = ["Method", "trials", "chosen", "validation mAP", "lowest"]
    return ["### Chosen settings", Table(header, rows).markdown().strip()] if rows else []


def _draw_figures(results: Sequence[Results], folder: Path, name: str) -> dict[str, Path]:
    shown = [result for result in results if result.label in IN_CURVES]
    figures = {"mAP": partial(plots.curves, shown), "classes": partial(plots.class_precision, shown)}
    for result in results:
        if result.label == FULL and "acm" not in figures:
            figures["acm"] = partial(plots.correlation, result)
    paths = {}
    for kind, make in figures.items():
        paths[kind] = folder / f"{name}-{kind}.png"
        write_atomically(paths[kind], partial(make().savefig, format="png", dpi=110))
    return paths


def _images(links: dict[str, Path], page: Path) -> list[str]:
    captions = {
        "mAP": "mAP on the classes seen, after each experience",
        "classes": "AP of each class at the end",
        "acm": "the correlation matrix beside the co-occurrence of the train images",
    }
    beside = {kind: Path(os.path.relpath(path, page.parent)).as_posix() for kind, path in links.items()}
    return [f"![{captions[kind]}]({path})" for kind, path in beside.items()]


if __name__ == "__main__":
    raise SystemExit(main())
