"""The command line, ``python -m avalanche_agcn`` or ``avalanche-agcn``; torch is imported when needed."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from avalanche_agcn.checks import did_you_mean
from avalanche_agcn.experiments import cli
from avalanche_agcn.experiments.exit_codes import handle_signals, returns_exit_code

PROG = "avalanche-agcn"
UNREADABLE = 3
"""Exit code of `predict` if it had to skip photos."""
OF_PHOTOS = ("--images", "--continue")
"""Options that only your own photos have."""
MAX_LISTED = 100
"""Sentences that `check` prints of a kind."""
EXPORT_SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "pt2": ".pt2"}  # models/ would import torch


def run(argv: Sequence[str]) -> int:
    """Run methods on COCO, NUS-WIDE, PASCAL VOC, your own photos or, without data, on drawn scenes."""
    known = list(cli.DATA_NAMES)
    benchmark = "coco"
    if argv and not argv[0].startswith("-"):
        benchmark, *argv = argv
    elif any(option.partition("=")[0] in OF_PHOTOS for option in argv):
        benchmark = "photos"
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
    """Print or write the labels that the model of a finished run finds in photos."""
    parser = argparse.ArgumentParser(
        prog=f"{PROG} predict",
        description=predict.__doc__,
        epilog=f"Photos that cannot be read are skipped and named at the end; the exit code is {UNREADABLE}.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as results/agcn-seed0")
    text = "image files, folders (with all folders in them) or patterns such as 'photos/**/*.jpg'"
    parser.add_argument("photos", nargs="*", metavar="PHOTO", help=text)
    text = "a text file with a photo, folder or pattern per line; - for standard input (default: none)"
    parser.add_argument("--from", dest="list_file", metavar="FILE", help=text)
    text = "the model after this experience, from 1, of a run with --keep-models (default: the last)"
    parser.add_argument("--after", type=int, metavar="N", help=text)
    text = "probability at which every class counts as found (default: the run's threshold of each class)"
    parser.add_argument("--threshold", type=float, metavar="X", help=text)
    text = "the K most probable labels; with --threshold those of them that reach it"
    parser.add_argument("--top", type=int, metavar="K", help=text)
    form = parser.add_mutually_exclusive_group()
    for name, words in {
        "json": "JSON",
        "jsonl": "JSON lines, a photo per line",
        "csv": "CSV, a column per class; a quote precedes cells that begin with = + - @",
    }.items():
        text = f"print {words} (default: a table)"
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=text)
    text = "write to this file, .csv or .jsonl, batch by batch (default: print)"
    form.add_argument("--out", type=Path, metavar="FILE", help=text)
    cli.add_flag(parser, "--resume", "add the photos that the file of --out does not have yet")
    text = "images per batch (default: 32)"
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help=text)
    text = "processes that load images (default: one per processor, at most 8; 0 for few photos)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    parser.add_argument("--device", default="cpu", metavar="TEXT", help="where to compute (default: cpu)")
    arguments = parser.parse_intermixed_args(argv)  # options may stand between photos
    if not arguments.photos and arguments.list_file is None:
        parser.error("there is nothing to predict: give photos, folders, or a list with --from.")
    if arguments.resume and arguments.out is None:
        parser.error("--resume adds to the file of --out: give one.")
    if arguments.batch_size < 1 or (arguments.workers or 0) < 0:
        parser.error("--batch-size must be at least 1, and --workers at least 0.")
    return _predict(arguments)


def _predict(arguments: argparse.Namespace) -> int:
    """Run the command `predict`; `UNREADABLE` if some photos could not be read."""
    from avalanche_agcn.experiments.prediction_files import Output, OutputFile
    from avalanche_agcn.experiments.predictions import (
        STANDARD_INPUT,
        describe_unreadable,
        find_photos,
        read_list,
        write_predictions,
    )
    from avalanche_agcn.models import load_model

    if arguments.out is None:
        output = Output(arguments.form or "table")
    else:
        output = OutputFile(arguments.out, resume=arguments.resume)

    source = arguments.list_file

    def find() -> Iterator[str]:
        listed = [] if source is None else read_list(source)
        return find_photos(chain(arguments.photos, listed))

    model = load_model(arguments.run, after=arguments.after, device=arguments.device)
    done, planned = (model.description.get(name, 0) for name in ("experience", "n_experiences"))
    if arguments.after is None and done < planned:
        known = f"the model knows {len(model.class_names)} classes, after {done} of {planned} experiences"
        print(f"This run is not finished: {known}.", file=sys.stderr)
    try:
        with handle_signals():
            unreadable = write_predictions(
                model,
                find,
                output,
                batch_size=arguments.batch_size,
                num_workers=arguments.workers,
                threshold=arguments.threshold,
                top=arguments.top,
                is_stream=source == STANDARD_INPUT or (source is not None and not os.path.isfile(source)),
            )
    except KeyboardInterrupt:
        if arguments.out is not None:
            remedy = "the same command with --resume adds the others"
            print(f"\nThe photos done so far are in {arguments.out}; {remedy}.", file=sys.stderr)
        raise
    if unreadable:
        print(describe_unreadable(unreadable), file=sys.stderr)
    return UNREADABLE if unreadable else 0


def check(argv: Sequence[str]) -> int:
    """Show photos and labels before training: counts of each class, and what is wrong or suspicious."""
    about = f"{check.__doc__} The exit code is 1 if something is wrong."
    if argv and argv[0] == "photos":
        argv = argv[1:]
    elif argv and not argv[0].startswith("-"):
        print(f"{PROG} check: only photos can be checked, not {argv[0]!r}.", file=sys.stderr)
        return 2
    parser = cli.make_data_parser("photos", about, f"{PROG} check photos")
    given = vars(parser.parse_args(argv))
    from avalanche_agcn.benchmarks.photo_checks import check_photos, count_classes, format_counts
    from avalanche_agcn.experiments.build import make_benchmark
    from avalanche_agcn.experiments.continued import continue_settings, open_continued, read_parent
    from avalanche_agcn.experiments.settings import make_settings

    continues = given.get("continues") is not None
    if continues:  # with the photos of the earlier run, and after opening the new ones
        settings = continue_settings(read_parent(given["continues"]), given)
        benchmark = open_continued(settings, None, print).benchmark
    else:
        benchmark = make_benchmark(make_settings("photos", **given), check_images=False)
    print(f"{benchmark}\n\n{format_counts(count_classes(benchmark))}")
    found = check_photos(benchmark, open_images=not continues)
    for title, sentences in {"Wrong": found.errors, "To look at": found.warnings}.items():
        if sentences:
            lines = [f"- {sentence}." for sentence in sentences[:MAX_LISTED]]
            n_more = len(sentences) - MAX_LISTED
            more = [f"- and {n_more} more."] if n_more > 0 else []
            print("\n".join([f"\n{title}:", *lines, *more]))
    return int(bool(found.errors))


def export(argv: Sequence[str]) -> int:
    """Write the model of a run to one file that works without this package."""
    parser = argparse.ArgumentParser(prog=f"{PROG} export", description=export.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as results/agcn-seed0")
    text = "onnx (pip install 'avalanche-agcn[onnx]'), torchscript or pt2 (both need torch alone)"
    parser.add_argument("--format", choices=EXPORT_SUFFIXES, help=text)
    text = "file to write; it is replaced (default: model.onnx, model.pt or model.pt2 in RUN)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)
    text = "photos to check the file on (default: ten drawn images)"
    parser.add_argument("--photos", nargs="+", default=[], metavar="PHOTO", help=text)
    text = "the model after this experience, from 1, of a run with --keep-models (default: the last)"
    parser.add_argument("--after", type=int, metavar="N", help=text)
    text = "put the weights of the network into RUN's model.safetensors, so that it needs no download"
    cli.add_flag(parser, "--with-backbone", text)
    arguments = parser.parse_args(argv)
    if arguments.format is None and not arguments.with_backbone:
        parser.error("say what to write: --format onnx, torchscript or pt2, or --with-backbone.")
    from avalanche_agcn.models import load_model
    from avalanche_agcn.models.export import N_CHECKED, check_packages, export_model
    from avalanche_agcn.models.saved import model_name, store_backbone

    if arguments.with_backbone:
        path = store_backbone(arguments.run, after=arguments.after)
        print(f"{path} has all weights now ({_megabytes(path)}).")
    if arguments.format is not None:
        check_packages(arguments.format)
        default = arguments.run / f"{model_name(arguments.after)}{EXPORT_SUFFIXES[arguments.format]}"
        model = load_model(arguments.run, after=arguments.after)
        path, difference = export_model(
            model, arguments.out or default, arguments.format, photos=arguments.photos
        )
        print(
            f"{path} ({_megabytes(path)}): {len(model.class_names)} classes; on {N_CHECKED} images its "
            f"probabilities differ by at most {difference:.1e} from the model's."
        )
    return 0


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


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
    command.__name__: command for command in (check, run, report, predict, export, methods)
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
