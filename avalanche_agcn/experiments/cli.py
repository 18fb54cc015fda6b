"""From the command line to settings, runs and a report. ``--help`` imports neither torch nor Avalanche."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from avalanche_agcn.checks import PLAIN, alternatives, check_value, read_json
from avalanche_agcn.experiments.exit_codes import (
    handle_signals,
    is_first_by_environment,
    one_sentence,
    returns_exit_code,
)
from avalanche_agcn.experiments.methods import CHOICES, FIRST, FULL, METHODS, Choice, Variant, small_settings
from avalanche_agcn.experiments.settings import (
    DEFAULTS,
    GROUPS,
    SMOKE,
    TYPES,
    BenchmarkName,
    Settings,
    change_settings,
    check_folders,
    check_format,
    is_b_protocol,
    make_settings,
    method_arguments,
    split_settings,
    usable_negatives,
)

FLAGS = {
    "dataset_root": "data",
    "train_mb_size": "batch-size",
    "train_epochs": "epochs",
    "num_workers": "workers",
}
"""Options whose name differs from that of their setting."""
OPTIONS_OF = {
    "photos": {"labels", "test_labels", "test_size", "separator"},
    "coco": {"split_lists", "crowds"},
    "wide": {"split_lists"},
}
"""Options that only some data sets have."""
OWN_FLAGS: dict[str, tuple[str, type, str]] = {
    "mem_size": ("memory", int, "images in memory (default: 2000; AGCN: 0)"),
    "preset": ("preset", str, "AGCN: paper, official (the authors' code) or statistics (default: paper)"),
    "lambda_gph": ("lambda-gph", float, "λ₃ of AGCN (default: 100000.0, drawn scenes: 1000.0)"),
}
"""Settings of methods with an option of their own: its name, type and help; --set takes the others.

Their defaults are text here, since strategies would import torch."""
OUT, SMOKE_OUT = "results", "results-smoke"
METAVARS = {int: "N", float: "X", str: "TEXT"}
Variants = Mapping[str, Variant]


def make_parser(
    benchmark: BenchmarkName, description: str | None, *, usage: str = "%(prog)s [options]", **how: Any
) -> argparse.ArgumentParser:
    """Parser of a run's options; options that are not given are absent from the result."""
    how |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "argument_default": argparse.SUPPRESS}
    parser = argparse.ArgumentParser(usage=usage, description=description, **how)
    _add_run_options(parser, benchmark)
    others = set().union(*OPTIONS_OF.values()) - OPTIONS_OF.get(benchmark, set())
    for name, kind in get_type_hints(Settings, include_extras=True).items():
        if name in GROUPS:
            options = parser.add_argument_group(GROUPS[name])
        if get_origin(kind) is Annotated and name not in {"benchmark", "seed", *others}:
            _add_setting(options, name, kind.__metadata__[0], benchmark)
    own = parser.add_argument_group("settings of methods, for those that have them")
    for name, (flag, kind, text) in OWN_FLAGS.items():
        own.add_argument(f"--{flag}", dest=name, type=kind, metavar=METAVARS[kind], help=text)
    text = "any setting: ewc_lambda=10 pool=avg; see `avalanche-agcn methods` (default: none)"
    own.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=text)
    parser.set_defaults(benchmark=benchmark)
    return parser


def add_flag(options: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    options.add_argument(name, action="store_true", help=f"{text} (default: false)")


def _add_run_options(parser: argparse.ArgumentParser, benchmark: BenchmarkName) -> None:
    default = FULL if benchmark == "photos" else f"{FULL}; with no options a comparison of {', '.join(FIRST)}"
    methods = f"{', '.join(CHOICES)}; or all of `avalanche-agcn methods` (default: {default})"
    parser.add_argument("--method", nargs="+", metavar="NAME", help=methods)
    parser.add_argument(
        "--defaults",
        choices=("small", "paper"),
        help="settings of each method: those chosen on a few thousand photos, over a frozen backbone, or the "
        f"paper's (default: {'small' if benchmark == 'photos' else 'paper, with no options small'})",
    )
    parser.add_argument("--seed", nargs="+", type=int, metavar="N", help="one or several (default: 0)")
    out = f"folder for results (default: {OUT}, smoke: {SMOKE_OUT})"
    parser.add_argument("--out", metavar="DIR", help=out)
    existing = parser.add_mutually_exclusive_group()
    add_flag(existing, "--resume", "continue runs that were stopped")
    add_flag(existing, "--overwrite", "repeat runs that are in the folder")
    config = "settings as TOML or JSON, or those of a results.json (default: none)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=config)
    add_flag(parser, "--smoke", "check in seconds whether everything works")
    logging = parser.add_argument_group("logging, besides the report")
    text = "log to TensorBoard (default: no; without DIR, to tensorboard in the folder for results)"
    logging.add_argument("--tensorboard", nargs="?", const="", metavar="DIR", help=text)
    text = "log to Weights & Biases, offline without an account (default: no; PROJECT: avalanche-agcn)"
    logging.add_argument("--wandb", nargs="?", const="avalanche-agcn", metavar="PROJECT", help=text)
    add_flag(logging, "--csv-log", "log all metrics to CSV files in the folder of the run")


def _add_setting(options: argparse._ArgumentGroup, name: str, text: str, benchmark: BenchmarkName) -> None:
    kind = TYPES[name]
    how: dict[str, Any] = {"dest": name, "help": f"{text} (default: {_default_text(name, benchmark)})"}
    several = get_origin(kind) is tuple
    kinds = [one for one in alternatives(get_args(kind)[0] if several else kind) if one is not type(None)]
    if kinds == [bool]:
        how["action"] = argparse.BooleanOptionalAction
    elif kinds[0] in PLAIN:
        how |= {"type": kinds[0], "metavar": METAVARS[kinds[0]]}
    else:
        how |= {"choices": kinds} | ({"nargs": "+"} if several else {})
    flags = {**FLAGS, "dataset_root": "images"} if benchmark == "photos" else FLAGS
    options.add_argument(f"--{flags.get(name, name.replace('_', '-'))}", **how)


def _default_text(name: str, benchmark: BenchmarkName) -> str:
    if name == "device":
        return "cuda if there is one, else cpu"
    layers: dict[str, Mapping[str, Any]] = {"": DEFAULTS[benchmark]}
    if benchmark == "photos":
        layers[""] = {**DEFAULTS[benchmark], **small_settings("photos", CHOICES[FULL])}
    else:
        small = small_settings("photos", CHOICES["multitask_ridge"])
        layers |= {"drawn scenes": DEFAULTS["scenes"], "small": small}
    values = {of: layer.get(name, getattr(Settings, name)) for of, layer in layers.items()}
    texts = {of: "none" if value in (None, ()) else str(value).lower() for of, value in values.items()}
    own = texts.pop("")
    return own + "".join(f", {of}: {text}" for of, text in texts.items() if text != own)


def settings_of(arguments: argparse.Namespace, variants: Variants | None = None) -> list[Settings]:
    """Settings of each method (or variant of AGCN) and seed, in that order."""
    given, required = _merge(vars(arguments))
    benchmark = _benchmark_of(arguments, given)
    choices, is_small = _choices_of(arguments, given.pop("method", FULL), benchmark, variants is not None)
    _check_accepted(required, [choice.method for choice in choices])
    # Set after all others, since these decide which methods can use them.
    extras = {name: given.pop(name) for name in EXTRAS if name in given}
    for name, value in extras.items():
        check_value(name, value, TYPES[name])
    seeds = _as_list(given.pop("seed", 0))
    wanted = []
    for choice in choices:
        # From the weakest: small defaults, changes of the variant, what the command line gives this method.
        variant = (given.get("preset"), _as_list(extras.get("negatives", ())))
        small = small_settings(benchmark, choice, *variant) if is_small else {}
        known = {*TYPES, *method_arguments(choice.method)}
        own = {name: value for name, value in given.items() if name in known} | {"method": choice.method}
        own["label"] = choice.label if own.get("label") is None else own["label"]
        wanted += [make_settings(benchmark, {**small, **choice.changes}, **own, seed=s) for s in seeds]
    if not wanted:
        raise ValueError("there is nothing to run: the config has an empty list of methods or seeds.")
    wanted = _with_extras(wanted, extras)
    if variants is not None:
        wanted = _with_variants(wanted, variants)
    check_folders(wanted)
    _check_word_vectors(wanted)
    return wanted


def _merge(given: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Settings by name, and the names of those that a chosen method must have.

    Later sources override earlier ones: the config, ``--smoke``, options, ``--set``.
    """
    import torch

    config = read_config(given["config"]) if "config" in given else {}
    if "method" in given:  # the label and the method's own settings are those of another method
        config.pop("label", None)
        if any(name != config.get("method") for name in given["method"]):
            config.pop("method_settings", None)
    options = {name: value for name, value in given.items() if name in TYPES or name in OWN_FLAGS}
    named = dict(map(_named_value, given["set"]))
    smoke = dict(SMOKE) if given.get("smoke") else {}
    if is_b_protocol({**config, **options, **named}.get("protocol")):
        smoke.pop("n_experiences", None)  # the protocol determines their number
    merged: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    required: set[str] = set()
    for source, must_fit in ((config, "method" not in given), (smoke, False), (options, True), (named, True)):
        shared, own = split_settings(source)
        merged |= {**own, **shared}
        required |= own.keys() if must_fit else set()
    return merged, required


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """Settings from a TOML or JSON file; those of a run from its ``results.json``."""
    if str(path).endswith(".toml"):
        try:
            content: Any = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not TOML: {str(error).rstrip('.')}.") from None
    else:
        content = read_json(path)
    if isinstance(content, dict) and "settings" in content:
        check_format(path, content)
        content = content["settings"]
    if not isinstance(content, dict):
        raise ValueError(f"{path} must have settings by name, such as `lr = 1e-4`, not {content!r:.60}.")
    if "benchmark" in content:  # the script's overrides it
        check_value("benchmark", content["benchmark"], TYPES["benchmark"])
    return content


def _named_value(text: str) -> tuple[str, Any]:
    """``"lr=1e-3"`` as a name and a value, which may be written as in TOML or Python; else a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set needs NAME=VALUE, such as lr=1e-3, not {text!r}.")
    if value.lower() == "none":
        return name, None
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return name, tomllib.loads(f"value = {value}")["value"]
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _benchmark_of(arguments: argparse.Namespace, given: dict[str, Any]) -> BenchmarkName:
    """The benchmark of the script or of ``--set``, or drawn scenes if there is no data."""
    named: BenchmarkName = given.pop("benchmark")
    check_value("benchmark", named, TYPES["benchmark"])
    if given.get("dataset_root") or named == "photos":
        return named
    if named not in (arguments.benchmark, "scenes"):
        raise ValueError(f"the benchmark {named!r} needs its images: give their folder by --data.")
    return "scenes"


def _choices_of(
    arguments: argparse.Namespace, methods: Any, benchmark: BenchmarkName, has_variants: bool
) -> tuple[list[Choice], bool]:
    """Methods to run, and whether each has the settings chosen on a few thousand photos."""
    given = vars(arguments).keys() & {*TYPES, *OWN_FLAGS, "method", "config", "smoke", "defaults"}
    nothing_given = given <= {"benchmark", "seed"} and not arguments.set
    if nothing_given and not has_variants and benchmark != "photos":
        return [CHOICES[name] for name in FIRST], True
    names = _as_list(methods)
    choices = [CHOICES.get(str(name), Choice(name)) for name in (METHODS if "all" in names else names)]
    default = "small" if benchmark == "photos" else "paper"
    return choices, getattr(arguments, "defaults", default) == "small"


def _check_accepted(names: set[str], methods: Sequence[str]) -> None:
    """Raise a ValueError for settings that none of the chosen methods has."""
    known = {name for method in methods for name in method_arguments(method)}
    if unknown := sorted(names - known):
        own = f"{', '.join(methods)}; their own are {sorted(known)}, and --help lists all"
        raise ValueError(f"unknown settings {unknown} for {own}.")


WORD_VECTORS = ("embedded", "glove-6b-50d", "random")  # no files; as in models/, which would import torch


def _check_word_vectors(wanted: Sequence[Settings]) -> None:
    """Raise a FileNotFoundError for a missing file of word vectors, before other methods are trained."""
    sources = {settings.word_vectors for settings in wanted if METHODS[settings.method].model == "agcn"}
    for source in sources - set(WORD_VECTORS):
        if not Path(source).is_file():
            known = ", ".join(WORD_VECTORS)
            raise FileNotFoundError(f"there is no file {source} of word vectors; others are {known}.")


EXTRAS: dict[str, Callable[[Settings, Any], Any]] = {
    "negatives": lambda settings, value: sorted(usable_negatives(settings) & set(_as_list(value))),
    "pseudo_labels": lambda settings, value: METHODS[settings.method].takes_pseudo_labels and value,
}
"""Settings that some methods cannot use, with functions that return the usable part of a value."""


def _with_extras(wanted: list[Settings], extras: Mapping[str, Any]) -> list[Settings]:
    """Set `EXTRAS` for the methods that can use them; a ValueError if none can."""
    for name, value in extras.items():
        usable = [EXTRAS[name](settings, value) for settings in wanted]
        if value and not any(usable):
            change_settings(wanted[0], **{name: value})  # raises the error that says why
        pairs = zip(wanted, usable, strict=True)
        wanted = [change_settings(settings, **{name: own}) if own else settings for settings, own in pairs]
    return wanted


def _with_variants(wanted: Sequence[Settings], variants: Variants) -> list[Settings]:
    """The runs themselves, and their variants that differ from them, seed by seed."""
    others = sorted({settings.method for settings in wanted} - {FULL})
    if others:
        raise ValueError(f"these are variants of AGCN, and not of {', '.join(others)}: leave --method out.")
    if any(settings.label is not None for settings in wanted):
        raise ValueError("variants of AGCN have labels of their own: leave --label out.")
    runs = [change_settings(settings, label=FULL) for settings in wanted]
    for label, variant in variants.items():
        made = [(s, change_settings(s, **variant.changes(s.method_settings))) for s in wanted]
        runs += [change_settings(changed, label=label) for s, changed in made if changed != s]
    return runs


DATA_NAMES = {"coco": "COCO", "wide": "NUS-WIDE", "voc": "PASCAL VOC", "photos": "your photos"}
LOGGERS = ("tensorboard", "wandb", "csv_log")


@returns_exit_code
def main(
    benchmark: BenchmarkName,
    description: str | None,
    argv: Sequence[str] | None = None,
    *,
    variants: Variants | None = None,
    **how: Any,
) -> int:
    """Run the methods on the command line, then write tables and plots of all runs; return the exit code.

    Without data, drawn scenes replace the benchmark. With ``variants``, AGCN and these variants of it run.
    ``how`` has the ``prog`` and ``usage`` of the parser.
    """
    parser = make_parser(benchmark, description, **how)
    first = is_first_by_environment()
    with contextlib.nullcontext() if first else contextlib.redirect_stderr(None):
        arguments = parser.parse_args(argv)
        try:
            check_value("--out", getattr(arguments, "out", None), str | None)
            wanted = settings_of(arguments, variants)
        except (ValueError, OSError) as error:
            parser.error(one_sentence(error))
    if first and wanted[0].benchmark == "scenes":
        name = DATA_NAMES[benchmark]
        print(f"No --data: these are drawn scenes, not {name}. Compare these scores with each other only.")
    with handle_signals():
        _run_all(wanted, arguments)
    return 0


def _run_all(wanted: Sequence[Settings], arguments: argparse.Namespace) -> None:
    from avalanche_agcn.evaluation.loggers import ProgressBar
    from avalanche_agcn.experiments import report
    from avalanche_agcn.experiments.build import open_loggers
    from avalanche_agcn.experiments.results import RESULTS_FILE, Results
    from avalanche_agcn.experiments.run import Run
    from avalanche_agcn.training.distributed import is_first_process, process_group

    out = Path(getattr(arguments, "out", SMOKE_OUT if "smoke" in arguments else OUT))
    resume, overwrite = "resume" in arguments, "overwrite" in arguments
    logging = {name: value for name, value in vars(arguments).items() if name in LOGGERS}
    finished: list[Results] = []
    refresh = partial(report.refresh_page, out, finished, len(wanted))
    with process_group(wanted[0].device):
        for settings in wanted:
            finished_before = (out / settings.name / RESULTS_FILE).is_file() and not overwrite
            own = {} if finished_before or not is_first_process() else logging
            opened = open_loggers(settings, out, **own, append=resume)
            with _report_saved_state(out / settings.name), opened as more:
                loggers = [ProgressBar(), *more] if is_first_process() else []
                how = {"resume": resume, "overwrite": overwrite, "after_experience": refresh}
                finished.append(Run(settings, out, **how, loggers=loggers).run())  # type: ignore[arg-type]
        if is_first_process():
            report.write_report(finished, out)


@contextlib.contextmanager
def _report_saved_state(folder: Path) -> Iterator[None]:
    """If the run in the folder fails or is stopped, print whether it can be resumed."""
    from avalanche_agcn.experiments.folder import STATE_FILE, FolderInUse, OtherRun, UnfinishedRun

    try:
        yield
    except (FolderInUse, OtherRun, UnfinishedRun):  # this run has not started
        raise
    except (Exception, KeyboardInterrupt):
        if is_first_by_environment():
            state = folder / STATE_FILE
            saved = f"The state of the run is saved in {state}; the same command with --resume continues it."
            print(f"\n{saved}" if state.is_file() else "\nNo state of the run was saved.", file=sys.stderr)
        raise
