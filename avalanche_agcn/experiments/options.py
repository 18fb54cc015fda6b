"""Options of the command line that the runs share, with their help. It needs neither torch nor Avalanche."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from avalanche_agcn.experiments.methods import CHOICES, FIRST, FULL, small_settings
from avalanche_agcn.experiments.settings import DEFAULTS, GROUPS, KINDS, BenchmarkName, Settings
from avalanche_agcn.experiments.values import PLAIN, alternatives

USAGE = "%(prog)s [options]"
FLAGS = {
    "dataset_root": "data",
    "train_mb_size": "batch-size",
    "train_epochs": "epochs",
    "num_workers": "workers",
}
"""Options with another name than their setting."""
OPTIONS_OF = {
    "photos": {"labels", "test_labels", "test_size", "separator"},
    "coco": {"split_lists", "crowds"},
    "wide": {"split_lists"},
}
"""Options that some data alone have."""
OWN_FLAGS: dict[str, tuple[str, type, str]] = {
    "mem_size": ("memory", int, "images in memory (default: 2000; AGCN: 0)"),
    "preset": (
        "preset",
        str,
        "of AGCN: paper, official (the authors' program) or statistics (default: paper)",
    ),
    "lambda_gph": ("lambda-gph", float, "λ₃ of AGCN (default: 100000.0, drawn scenes: 1000.0)"),
}
"""Settings of methods that have an option of their own; --set has the others.

Defaults stand here as text: strategies would import torch."""
OUT, SMOKE_OUT = Path("results"), Path("results-smoke")
METAVARS = {int: "N", float: "X", str: "TEXT"}


def make_parser(
    benchmark: BenchmarkName, description: str | None, *, prog: str | None = None, usage: str = USAGE
) -> argparse.ArgumentParser:
    """Options of a run; those that are not given are absent from the result."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    _add_run_options(parser, benchmark)
    _add_logging_options(parser.add_argument_group("logging, beside the report"))
    others = set().union(*OPTIONS_OF.values()) - OPTIONS_OF.get(benchmark, set())
    for group in GROUPS:
        options = parser.add_argument_group((group.__doc__ or "").rstrip(".").lower())
        for field in fields(group):
            if field.name not in {"benchmark", "seed", *others}:  # the script's, and a run option
                _add_setting(options, group, field.name, benchmark)
    _add_method_options(parser.add_argument_group("settings of methods, for those that have them"))
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
        help="settings of each method: those chosen on a few thousand photos, over a frozen network, or the "
        f"paper's (default: {'small' if benchmark == 'photos' else 'paper, with no options small'})",
    )
    parser.add_argument("--seed", nargs="+", type=int, metavar="N", help="one or several (default: 0)")
    out = f"folder for results (default: {OUT}, smoke: {SMOKE_OUT})"
    parser.add_argument("--out", type=_folder, metavar="DIR", help=out)
    existing = parser.add_mutually_exclusive_group()
    add_flag(existing, "--resume", "continue runs that were stopped")
    add_flag(existing, "--overwrite", "repeat runs that are in the folder")
    config = "settings as TOML or JSON, or those of a results.json (default: none)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=config)
    add_flag(parser, "--smoke", "check in seconds whether everything works")


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("must be the name of a folder, but is empty.")
    return Path(text)


def _add_logging_options(options: argparse._ArgumentGroup) -> None:
    """What `open_loggers` takes."""
    text = "log to TensorBoard (default: no; without DIR, to tensorboard in the folder for results)"
    options.add_argument("--tensorboard", nargs="?", const="", metavar="DIR", help=text)
    text = "log to Weights & Biases, offline without an account (default: no; PROJECT: avalanche-agcn)"
    options.add_argument("--wandb", nargs="?", const="avalanche-agcn", metavar="PROJECT", help=text)
    add_flag(options, "--csv-log", "log all metrics to CSV files in the folder of the run")


def _add_method_options(options: argparse._ArgumentGroup) -> None:
    for name, (flag, kind, text) in OWN_FLAGS.items():
        options.add_argument(f"--{flag}", dest=name, type=kind, metavar=METAVARS[kind], help=text)
    options.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="any setting: --set ewc_lambda=10 pool=avg; `avalanche-agcn methods` lists those of methods "
        "(default: none)",
    )


def _add_setting(options: argparse._ArgumentGroup, group: type, name: str, benchmark: BenchmarkName) -> None:
    """The option of a setting, with its help, its type and its defaults."""
    (text,) = get_type_hints(group, include_extras=True)[name].__metadata__
    kind = KINDS[name]
    how: dict[str, Any] = {"dest": name, "help": f"{text} (default: {_default_text(name, benchmark)})"}
    kinds = [one for one in alternatives(kind) if one not in (type(None), Ellipsis)]
    if kinds == [bool]:
        how["action"] = argparse.BooleanOptionalAction
    elif kinds[0] in PLAIN:
        how |= {"type": kinds[0], "metavar": METAVARS[kinds[0]]}
    else:
        how |= {"choices": kinds} | ({"nargs": "+"} if get_origin(kind) is tuple else {})
    flags = {**FLAGS, "dataset_root": "images"} if benchmark == "photos" else FLAGS
    options.add_argument(f"--{flags.get(name, name.replace('_', '-'))}", **how)


def _default_text(name: str, benchmark: BenchmarkName) -> str:
    if name == "device":
        return "cuda if there is one, else cpu"
    layers: dict[str, Mapping[str, Any]] = {"": DEFAULTS[benchmark]}
    if benchmark == "photos":
        layers[""] = {**DEFAULTS[benchmark], **small_settings("photos", FULL)}
    else:
        layers |= {"drawn scenes": DEFAULTS["scenes"], "small": small_settings("photos", "multitask_ridge")}
    values = {of: layer.get(name, getattr(Settings, name)) for of, layer in layers.items()}
    own, *others = (("none" if value in (None, ()) else str(value).lower()) for value in values.values())
    differing = [f", {of}: {value}" for of, value in zip([*values][1:], others, strict=True) if value != own]
    return own + "".join(differing)
