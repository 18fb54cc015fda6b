"""The command line that the runs share."""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from avalanche_agcn.evaluation import ProgressBar
from avalanche_agcn.experiments.ablations import Variant, variants_of
from avalanche_agcn.experiments.memory import keep_freed_memory
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.report import write_report
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import (
    KINDS,
    SMOKE,
    Amp,
    BenchmarkName,
    Settings,
    make_settings,
    read_config,
)
from avalanche_agcn.models.backbones import WeightsUnavailable
from avalanche_agcn.training.plugins.acm import Preset

NOT_THE_REAL_THING = (
    "No --data: these are drawn scenes, not {name}. Compare these figures with each other only."
)
EXPECTED = (
    OSError,
    ValueError,
    MemoryError,
    ModuleNotFoundError,
    torch.OutOfMemoryError,
    WeightsUnavailable,
)
"""What can go wrong on a user's machine: an image, a package, disk or memory that is not there."""


def make_parser(benchmark: BenchmarkName, description: str | None) -> argparse.ArgumentParser:
    """Options of a run; what is not given has the benchmark's default."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--data", metavar="ROOT", help="folder of the data set; without it drawn scenes are used"
    )
    what.add_argument("--split-lists", metavar="PATH", help="published split lists, a folder or zip")
    what.add_argument(
        "--method", nargs="+", metavar="NAME", help=f"{', '.join(METHODS)}, or all; agcn by default"
    )
    what.add_argument("--seed", nargs="+", type=int, metavar="N", help="one or several; 0 by default")
    what.add_argument(
        "--config", type=Path, metavar="FILE", help="settings as TOML or JSON, or a results.json"
    )
    what.add_argument("--smoke", action="store_true", help="see in seconds whether everything works")
    what.add_argument("--limit", type=int, metavar="N", help="at most N images of each experience")
    where = parser.add_argument_group("where to")
    where.add_argument("--out", type=Path, metavar="DIR", help="folder for results; results by default")
    where.add_argument(
        "--resume", action="store_true", help="go on where a run with the same settings stopped"
    )
    how = parser.add_argument_group("settings (see avalanche_agcn/experiments/settings.py for all of them)")
    how.add_argument("--n-classes", type=int, metavar="N", help="classes")
    how.add_argument("--n-experiences", type=int, metavar="N", help="experiences")
    how.add_argument("--backbone", metavar="NAME", help="resnet101, efficientnet_lite0, small, …")
    how.add_argument(
        "--freeze-backbone", action="store_true", help="train heads alone, on features computed once"
    )
    how.add_argument("--image-size", type=int, metavar="PX", help="side of the network's input")
    how.add_argument("--batch-size", type=int, metavar="N", help="images a step")
    how.add_argument("--epochs", type=int, metavar="N", help="passes over an experience")
    how.add_argument(
        "--lr", type=float, metavar="RATE", help="learning rate of the backbone and a linear classifier"
    )
    how.add_argument("--lr-gcn", type=float, metavar="RATE", help="learning rate of AGCN's GCN")
    how.add_argument("--memory", type=int, metavar="N", help="images in memory, also beside AGCN")
    how.add_argument("--preset", choices=get_args(Preset), help="AGCN by its equations or its program")
    how.add_argument("--lambda-gph", type=float, metavar="WEIGHT", help="λ₃ of AGCN")
    how.add_argument(
        "--word-vectors", metavar="SOURCE", help="embedded, glove-6b-50d, random, or a GloVe file"
    )
    how.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="any setting: --set pool=avg epochs=2",
    )
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", help="cuda if there is one by default")
    machine.add_argument("--amp", choices=get_args(Amp), help="half precision")
    machine.add_argument("--workers", type=int, metavar="N", help="processes that load images")
    machine.add_argument("--cache", metavar="DIR", help="folder for features of a frozen backbone")
    machine.add_argument("--compile", action="store_true", help="compile the backbone")
    machine.add_argument(
        "--checkpoint-minutes", type=float, metavar="M", help="save within an experience this often; 10"
    )
    parser.set_defaults(benchmark=benchmark)
    return parser


def settings_of(
    arguments: argparse.Namespace, variants: Mapping[str, Variant] | None = None
) -> list[Settings]:
    """One for each method (or variant of AGCN) and seed, in that order.

    Raises:
        ValueError: If a setting is unknown, or two runs would have the same folder; the message says which.
    """
    chosen = _merge(vars(arguments))
    methods, seeds = _as_list(chosen.pop("method", "agcn")), _as_list(chosen.pop("seed", 0))
    named: BenchmarkName = chosen.pop("benchmark")
    benchmark: BenchmarkName = named if chosen.get("data") else "scenes"
    if "all" in methods:
        methods = list(METHODS)
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise ValueError(f"unknown methods {unknown}; known are {', '.join(METHODS)}, and all")
    wanted = [make_settings(benchmark, **chosen, method=m, seed=seed) for m in methods for seed in seeds]
    if variants is not None:
        if methods != ["agcn"]:
            raise ValueError(
                f"these are variants of AGCN, and not of {', '.join(methods)}: leave --method out"
            )
        made = [variants_of(settings, variants) for settings in wanted]
        wanted = [own[name] for name in variants for own in made if name in own]
    _refuse_shared_folders(wanted)
    return wanted


def _merge(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from the config, the command line and ``--set``; of those given twice the later."""
    chosen: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    chosen |= read_config(given["config"]) if "config" in given else {}
    chosen |= SMOKE if given.get("smoke") else {}
    chosen |= {name: value for name, value in given.items() if name in KINDS}
    if "method" in given:
        chosen.pop("label", None)  # of the method that the config is about
    return chosen | dict(map(_named_value, given["set"]))


def _refuse_shared_folders(wanted: Sequence[Settings]) -> None:
    twice = [name for name, times in Counter(settings.name for settings in wanted).items() if times > 1]
    if twice:
        raise ValueError(
            f"several runs would have the folder {', '.join(twice)}: give each method and seed once, and a "
            "label to one method only"
        )


def main(
    benchmark: BenchmarkName,
    description: str | None,
    argv: Sequence[str] | None = None,
    *,
    variants: Mapping[str, Variant] | None = None,
) -> int:
    """Run what the command line says, then write tables and figures of all of it.

    Args:
        benchmark: What to run on if there is data.
        description: For ``--help``.
        argv: The command line; that of the process if None.
        variants: Run these variants of AGCN.

    Returns:
        The exit code.
    """
    parser = make_parser(benchmark, description)
    arguments = parser.parse_args(argv)
    try:
        wanted = settings_of(arguments, variants)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if wanted[0].benchmark == "scenes":
        print(NOT_THE_REAL_THING.format(name="COCO" if benchmark == "coco" else "NUS-WIDE"))
    out = getattr(arguments, "out", Path("results"))
    keep_freed_memory()
    try:
        finished = [_run(settings, out, getattr(arguments, "resume", False)) for settings in wanted]
        write_report(finished, out)
    except KeyboardInterrupt:
        print(f"\nStopped. What was done is in {out}; the same command with --resume goes on from there.")
        return 130
    except EXPECTED as error:
        print(f"Stopped: {error}", file=sys.stderr)
        print(f"What was done before is in {out}; --resume goes on from there.", file=sys.stderr)
        return 1
    return 0


def _run(settings: Settings, out: Path, resume: bool) -> Results:
    return Run(settings, out, resume=resume, loggers=[ProgressBar()]).go()


def _named_value(text: str) -> tuple[str, Any]:
    """``"lr=1e-3"`` as a name and a value as TOML or Python writes it, or else a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set wants NAME=VALUE, such as lr=1e-3, got {text!r}")
    if value.lower() == "none":
        return name, None
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return name, tomllib.loads(f"value = {value}")["value"]
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
