"""The command line, ``python -m avalanche_agcn`` or ``avalanche-agcn``; torch is imported when needed."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from avalanche_agcn.checks import did_you_mean
from avalanche_agcn.experiments import cli
from avalanche_agcn.experiments.exit_codes import returns_exit_code

if TYPE_CHECKING:
    from avalanche_agcn.models.saved import Prediction

PROG = "avalanche-agcn"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def run(argv: Sequence[str]) -> int:
    """Run methods on COCO, NUS-WIDE, PASCAL VOC, your own photos or, without data, on drawn scenes."""
    known = list(cli.DATA_NAMES)
    benchmark = "coco"
    if argv and not argv[0].startswith("-"):
        benchmark, *argv = argv
    if benchmark not in known:
        suggestion = did_you_mean(benchmark, known)
        names = ", ".join(known)
        print(f"{PROG} run: unknown data {benchmark!r}{suggestion}; known are {names}.", file=sys.stderr)
        return 2
    about = (
        f"{run.__doc__}\n\nDATA is one of {', '.join(known)} (default: coco). It comes first, and sets the "
        "defaults below."
    )
    usage = "%(prog)s [DATA] [options]"
    return cli.main(benchmark, about, argv, prog=f"{PROG} run", usage=usage)  # type: ignore[arg-type]


def report(argv: Sequence[str]) -> int:
    """Make tables (Markdown, CSV, LaTeX) and plots again from existing results."""
    parser = argparse.ArgumentParser(prog=f"{PROG} report", description=report.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with results below")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: the first folder)")
    text = "draw these plots and write nothing else: mAP, classes, acm-agcn, … (default: all)"
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help=text)
    cli.add_flag(parser, "--stages", "add the B protocols' scores: mean and last mAP, F1 at p > 0.8")
    arguments = parser.parse_args(argv)
    from avalanche_agcn.experiments.report import write_report
    from avalanche_agcn.experiments.results import find_results

    results, out = find_results(arguments.folders), arguments.out or arguments.folders[0]
    write_report(results, out, only=arguments.only, stages=arguments.stages)
    return 0


def predict(argv: Sequence[str]) -> int:
    """Print the labels that the model of a finished run finds in photos."""
    parser = argparse.ArgumentParser(prog=f"{PROG} predict", description=predict.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as results/agcn-seed0")
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help="image files")
    text = "the model after this experience, from 1, of a run with --keep-models (default: the last)"
    parser.add_argument("--after", type=int, metavar="N", help=text)
    text = "probability at which every class counts as found (default: the run's threshold of each class)"
    parser.add_argument("--threshold", type=float, metavar="X", help=text)
    text = "the K most probable labels; with --threshold those of them that reach it"
    parser.add_argument("--top", type=int, metavar="K", help=text)
    form = parser.add_mutually_exclusive_group()
    for name, words in {
        "json": "JSON",
        "csv": "CSV, a column per class; a quote precedes cells that begin with = + - @",
    }.items():
        text = f"print {words} (default: a table)"
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=text)
    parser.add_argument("--device", default="cpu", metavar="TEXT", help="where to compute (default: cpu)")
    arguments = parser.parse_args(argv)
    from avalanche_agcn.models import load_model

    model = load_model(arguments.run, after=arguments.after, device=arguments.device)
    done, planned = (model.description.get(name, 0) for name in ("experience", "n_experiences"))
    if arguments.after is None and done < planned:
        known = f"the model knows {len(model.class_names)} classes, after {done} of {planned} experiences"
        print(f"This run is not finished: {known}.", file=sys.stderr)
    found = model.predict(arguments.photos, threshold=arguments.threshold, top=arguments.top)
    print(format_predictions(arguments.photos, found, arguments.form), end="")
    return 0


def format_predictions(
    photos: Sequence[str], found: Sequence[Prediction], form: Literal["json", "csv"] | None = None
) -> str:
    """Labels and probabilities of photos as text: a table of the labels, or JSON or CSV of all classes."""
    pairs = list(zip(photos, found, strict=True))
    if form == "json":
        rows = [{"image": photo, "labels": p.names, "probabilities": p.probabilities} for photo, p in pairs]
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "labels", *map(_as_text, found[0].probabilities)])
        for photo, own in pairs:
            writer.writerow([_as_text(photo), _as_text(";".join(own.names)), *own.probabilities.values()])
        return text.getvalue()
    width = max(map(len, photos))
    return "".join(f"{photo:{width}}  {_labels(own)}\n" for photo, own in pairs)


def _as_text(cell: str) -> str:
    """A cell that spreadsheets do not take for a formula: with a quote before = + - @ at its beginning."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def _labels(found: Prediction) -> str:
    ranked = sorted(found.probabilities, key=found.probabilities.__getitem__, reverse=True)
    # Control characters in a name would change what a terminal shows.
    names = {name: name if name.isprintable() else ascii(name) for name in found.names or ranked[:1]}
    text = ", ".join(f"{shown} {found.probabilities[name]:.2f}" for name, shown in names.items())
    return text if found.names else f"nothing found; most probable is {text}"


def methods(argv: Sequence[str]) -> int:
    """List all methods with their settings and defaults."""
    argparse.ArgumentParser(prog=f"{PROG} methods", description=methods.__doc__).parse_args(argv)
    from avalanche_agcn.experiments.methods import CHOICES, METHODS, VARIANTS
    from avalanche_agcn.experiments.settings import make_settings

    for key, choice in CHOICES.items():
        if choice.label is None:
            settings = make_settings("coco", method=key).method_settings
            print(f"{key:16} {METHODS[key].name}: {METHODS[key].description}")
        else:
            settings = dict(choice.changes)
            print(f"{key:16} {VARIANTS[choice.label].name}: {choice.method} with")
        text = ", ".join(f"{name}={cli.in_words(value)}" for name, value in settings.items())
        for line in textwrap.wrap(text, 90):
            print(" " * 17 + line)
    print("\nChoose them by `run --method NAME ...`, and their settings by `--set NAME=VALUE`.")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    command.__name__: command for command in (run, report, predict, methods)
}


@returns_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named on the command line; return the exit code."""
    from avalanche_agcn import __version__

    lines = [f"  {name:9} {(command.__doc__ or '').rstrip('.')}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} COMMAND [options]",
        description="Multi-label continual learning.\n\ncommands:\n" + "\n".join(lines),
        epilog=f"`{PROG} COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument("command", choices=COMMANDS, help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if argv is None else argv)
    command = parser.parse_args(given[:1] or ["--help"]).command
    return COMMANDS[command](given[1:])


if __name__ == "__main__":
    raise SystemExit(main())
