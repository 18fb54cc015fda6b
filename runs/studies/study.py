"""Run what is missing of a study on real photos, keep the results in tables, and write the pages.

    python runs/studies/study.py coco18 --data ROOT                  # all parts of a stream
    python runs/studies/study.py split_coco --data ROOT --part frozen --jobs 2
    python runs/studies/study.py coco18 --data ROOT --part frozen --row agcn "ewc + statistics"
    python runs/studies/study.py split_coco --collect results        # add runs of runs/split_coco.py
    python runs/studies/study.py coco18                              # only write the pages

The streams are coco18, split_coco, voc2007 and coco80; `declaration.py` in the folder of each lists its
parts and rows. Where a row has settings to choose, they are chosen on held-out train photos, with the same
number of trials for each row. A finished run becomes a line of `<stream>/<part>/results.jsonl` at once, and
is not repeated: the same command continues an interrupted study. At the end, RESULTS.md, RESULTS-tables.md,
the table in README.md and the settings of `--defaults small` are written from the tables;
`python runs/reproduction.py` writes REPRODUCTION.md. It needs `pip install avalanche-agcn[study]`.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from declare import HERE, Part, Stream
from pages import write_pages
from running import collect, run_part
from trials import CHOSEN_FILE, read_choices

from avalanche_agcn.experiments.exit_codes import expected_errors

STREAMS = ("coco18", "split_coco", "voc2007", "coco80")


def read_stream(name: str) -> Stream:
    """The declaration of a stream."""
    return importlib.import_module(f"{name}.declaration").STREAM


def make_parser() -> argparse.ArgumentParser:
    """Options of the program."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("stream", choices=STREAMS)
    parser.add_argument("--data", metavar="ROOT", help="folder of the photos; without it nothing runs")
    parser.add_argument("--part", nargs="+", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--row", nargs="+", metavar="LABEL", help="rows to run (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time, of one thread each")
    parser.add_argument("--split-lists", metavar="DIR", help="published lists of Split-COCO")
    parser.add_argument("--word-vectors", metavar="FILE", help="GloVe vectors of the classes")
    parser.add_argument("--cache", metavar="DIR", help="folder for features of the frozen backbone")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="add finished runs below this folder")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of the tables")
    parser.add_argument("--pages", type=Path, default=Path(), metavar="DIR", help="folder of the pages")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    arguments = make_parser().parse_args(argv)
    try:
        _run_study(arguments)
    except expected_errors() as error:
        print(f"Stopped: {error}\nFinished runs are in {arguments.out}; the same command continues there.")
        return 1
    return 0


def _run_study(arguments: argparse.Namespace) -> None:
    stream = read_stream(arguments.stream)
    out = arguments.out / stream.name
    names = arguments.part or list(stream.parts)
    unknown = sorted(set(names) - stream.parts.keys())
    if unknown:
        raise ValueError(f"{stream.name} has no part {unknown}; it has {', '.join(stream.parts)}.")
    if arguments.collect is not None:
        parts = stream.declare(_frozen_choices(out))
        chosen = {name: parts[name] for name in names}
        print(f"{collect(chosen, out, arguments.collect)} runs were added to the tables in {out}.")
    if arguments.data is not None:
        for name in names:
            base = stream.base(**_paths(stream, arguments))
            # The choices of the part frozen, which runs first, are those of all parts.
            part = stream.parts[name].declare(base, _frozen_choices(out))
            _check_rows(part, name, arguments.row or [])
            run_part(part, out / name, rows=arguments.row, jobs=arguments.jobs)
    write_pages([read_stream(name) for name in STREAMS], arguments.out, arguments.pages)


def _check_rows(part: Part, name: str, rows: Sequence[str]) -> None:
    labels = [entry.label for entry in part.entries]
    unknown = sorted(set(rows) - set(labels))
    if unknown:
        raise ValueError(f"The part {name} has no row {unknown}; it has {labels}.")


def _paths(stream: Stream, arguments: argparse.Namespace) -> dict[str, str | None]:
    """Paths of the data and files that the stream needs, by setting."""
    paths = {"dataset_root": arguments.data, "cache": arguments.cache}
    for setting in stream.files:
        path = getattr(arguments, setting)
        if path is None:
            option = setting.replace("_", "-")
            raise ValueError(f"{stream.name} needs {stream.files[setting]}: give its path by --{option}.")
        paths[setting] = path
    return paths


def _frozen_choices(out: Path) -> dict:
    folder = out / "frozen"
    return read_choices(folder) if (folder / CHOSEN_FILE).is_file() else {}


if __name__ == "__main__":
    raise SystemExit(main())
