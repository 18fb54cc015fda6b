"""From the command line to settings, runs and a report. ``--help`` imports neither torch nor Avalanche."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from avalanche_agcn.checks import did_you_mean, read_json, read_text, shown
from avalanche_agcn.experiments.exit_codes import (
    handle_signals,
    is_first_by_environment,
    one_sentence,
    returns_exit_code,
)
from avalanche_agcn.experiments.methods import (
    CHOICES,
    FIRST,
    FULL,
    METHODS,
    PLAIN,
    Choice,
    Variant,
    alternatives,
    find_choice,
    small_settings,
)
from avalanche_agcn.experiments.settings import (
    DEFAULTS,
    GROUPS,
    LABEL_SETTINGS,
    LAYERS,
    SMOKE,
    TYPES,
    BenchmarkName,
    Layers,
    Resolved,
    Settings,
    Values,
    check_benchmark_name,
    check_folders,
    check_format,
    check_setting,
    is_b_protocol,
    merge,
    method_fields,
    resolve,
    split_settings,
    usable_negatives,
)

if TYPE_CHECKING:
    from avalanche_agcn.experiments.results import Results

FLAGS = {
    "continues": "continue",
    "dataset_root": "data",
    "train_mb_size": "batch-size",
    "train_epochs": "epochs",
    "num_workers": "workers",
}
"""Options whose name differs from that of their setting."""
OPTIONS_OF = {
    "photos": {"continues", *LABEL_SETTINGS},
    "coco": {"split_lists", "crowds"},
    "wide": {"split_lists"},
}
"""Options that only some data sets have."""
DOWNLOADS = {
    "coco": "COCO 2014: 20.4 GB, which need 27.3 GB of free space",
    "voc": "PASCAL VOC 2007: 0.9 GB, which need 1.4 GB of free space",
}
"""Data sets that can be downloaded, and what that takes."""
METHOD_FLAGS: dict[str, tuple[str, type, str]] = {
    "mem_size": ("memory", int, "images in memory (default: 2000; AGCN: 0)"),
    "preset": ("preset", str, "AGCN: paper, official (the authors' code) or statistics (default: paper)"),
    "lambda_gph": ("lambda-gph", float, "λ₃ of AGCN (default: 100000.0, drawn scenes: 1000.0)"),
}
"""Settings of methods that have an option: its name, type and help; --set takes the others.

Their defaults are text here, since strategies would import torch."""
OUT = "results"
SMOKE_OUT = "results-smoke"
DELAY_IN_LOGS = 30.0
"""Seconds after which a progress bar appears where standard output is not a terminal."""
METAVARS = {int: "N", float: "X", str: "TEXT"}
Variants = Mapping[str, Variant]


def make_parser(
    benchmark: BenchmarkName,
    description: str | None,
    *,
    prog: str | None = None,
    usage: str = "%(prog)s [options]",
) -> argparse.ArgumentParser:
    """Parser of a run's options; options that are not given are absent from the result."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(benchmark=benchmark)
    _add_run_options(parser, benchmark)
    for first, title in GROUPS.items():
        group = parser.add_argument_group(title)
        _add_settings(group, benchmark, first)
        if first == "benchmark" and benchmark in DOWNLOADS:
            text = f"first download what the folder of --data lacks of {DOWNLOADS[benchmark]}"
            add_flag(group, "--download", text)
    of_methods = parser.add_argument_group("settings of methods, for those that have them")
    for name, (flag, kind, text) in METHOD_FLAGS.items():
        of_methods.add_argument(f"--{flag}", dest=name, type=kind, metavar=METAVARS[kind], help=text)
    text = "any setting: ewc_lambda=10 pool=avg; see `avalanche-agcn methods` (default: none)"
    of_methods.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=text)
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
    out = f"folder for results (default: {OUT}, smoke: {SMOKE_OUT}, of a continued run: its parent's)"
    parser.add_argument("--out", metavar="DIR", help=out)
    existing = parser.add_mutually_exclusive_group()
    add_flag(existing, "--resume", "continue runs that were stopped")
    add_flag(existing, "--overwrite", "repeat runs that are in the folder")
    config = "settings as TOML or JSON, or those of a results.json (default: none)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=config)
    add_flag(parser, "--smoke", "check in seconds whether everything works")
    add_flag(parser, "--print-config", "print all settings and where each comes from, and run nothing")
    logging = parser.add_argument_group("logging, besides the report")
    text = "log to TensorBoard (default: no; without DIR, to tensorboard in the folder for results)"
    logging.add_argument("--tensorboard", nargs="?", const="", metavar="DIR", help=text)
    text = "log to Weights & Biases, offline without an account (default: no; PROJECT: avalanche-agcn)"
    logging.add_argument("--wandb", nargs="?", const="avalanche-agcn", metavar="PROJECT", help=text)
    add_flag(logging, "--csv-log", "log all metrics to CSV files in the folder of the run")


def make_data_parser(benchmark: BenchmarkName, description: str | None, prog: str) -> argparse.ArgumentParser:
    """Parser of the options of a run that are about its data."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [options]",
        description=description,
        argument_default=argparse.SUPPRESS,
    )
    _add_settings(parser.add_argument_group(GROUPS["benchmark"]), benchmark, "benchmark")
    return parser


def _add_settings(options: argparse._ArgumentGroup, benchmark: BenchmarkName, first: str) -> None:
    """Add an option for each field of `Settings` in the group that begins with ``first``."""
    of_other_data = set().union(*OPTIONS_OF.values()) - OPTIONS_OF.get(benchmark, set())
    group = ""
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        if name in GROUPS:
            group = name
        has_option = get_origin(hint) is Annotated and name not in ("benchmark", "seed")
        if group == first and has_option and name not in of_other_data:
            text = hint.__metadata__[-1]
            _add_setting(options, name, f"{text} (default: {_default_text(name, benchmark)})", benchmark)


def _add_setting(options: argparse._ArgumentGroup, name: str, text: str, benchmark: BenchmarkName) -> None:
    flag = "--" + FLAGS.get(name, name.replace("_", "-"))
    if name == "dataset_root" and benchmark == "photos":
        flag = "--images"
    takes_several = get_origin(TYPES[name]) is tuple
    several = "+" if takes_several else None
    hint = get_args(TYPES[name])[0] if takes_several else TYPES[name]
    kinds = [kind for kind in alternatives(hint) if kind is not type(None)]
    if kinds == [bool]:
        options.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=text)
    elif kinds[0] in PLAIN:
        metavar = METAVARS[kinds[0]]
        options.add_argument(flag, dest=name, type=kinds[0], nargs=several, metavar=metavar, help=text)
    else:
        options.add_argument(flag, dest=name, choices=kinds, nargs=several, help=text)


def _default_text(name: str, benchmark: BenchmarkName) -> str:
    """The default of a setting in words, and those of drawn scenes and ``small`` if they differ."""
    if name == "device":
        return "cuda if there is one, else cpu"
    package = {name: getattr(Settings, name), **DEFAULTS[benchmark]}
    if benchmark == "photos":
        small = small_settings("photos", CHOICES[FULL])
        return in_words(small.get(name, package[name]))
    small = small_settings("photos", CHOICES["multitask_ridge"])  # which has no settings chosen for it alone
    text = default = in_words(package[name])
    for where, values in {"drawn scenes": DEFAULTS["scenes"], "small": small}.items():
        other = in_words(values.get(name, getattr(Settings, name)))
        if other != default:
            text += f", {where}: {other}"
    return text


def in_words(value: Any) -> str:
    """A value as ``--set`` takes it: ``true`` and ``none``, not True and None."""
    if value is None or value == ():
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Request:
    """One run that a command line asks for, with the layers of its settings that the user chooses."""

    benchmark: BenchmarkName
    method: str
    layers: Layers

    def changed(self, layer: str, **values: Any) -> Request:
        """The same with some values of a layer changed."""
        return replace(self, layers={**self.layers, layer: {**self.layers.get(layer, {}), **values}})

    def resolve(self) -> Resolved:
        """The settings, checked, and where each comes from."""
        return resolve(self.benchmark, self.method, self.layers)


def settings_of(arguments: argparse.Namespace, variants: Variants | None = None) -> list[Settings]:
    """Settings of each method (or variant of AGCN) and seed, in that order."""
    return [run.settings for run in resolve_runs(arguments, variants)]


def resolve_runs(arguments: argparse.Namespace, variants: Variants | None = None) -> list[Resolved]:
    """Settings of each method (or variant of AGCN) and seed, in that order, and where each comes from."""
    layers = _read_layers(arguments)
    asked, _ = merge(layers)
    for name in EXTRAS:
        if name in asked:
            check_setting(name, asked[name])
    if asked.get("continues") is not None:
        check_setting("continues", asked["continues"])
        return [_resolve_continued(arguments, layers)]
    benchmark = _benchmark_of(arguments, asked)
    choices = _choices_of(arguments, asked, benchmark, variants is not None)
    _check_accepted(_required_names(arguments, layers), [choice.method for choice in choices])
    requests = []
    for choice in choices:
        of_choice = _layers_of(choice, layers)
        if _uses_small_defaults(arguments, benchmark, variants is not None):
            negatives = _as_list(asked.get("negatives", ()))
            of_choice["--defaults"] = small_settings(benchmark, choice, asked.get("preset"), negatives)
        request = Request(benchmark, choice.method, of_choice)
        requests += [_with_seed(request, seed) for seed in _as_list(asked.get("seed", Settings.seed))]
    if not requests:
        raise ValueError("there is nothing to run: the config has an empty list of methods or seeds.")
    requests = _with_extras(requests, asked, layers)
    runs = [request.resolve() for request in requests]
    if variants is not None:
        runs = _with_variants(requests, variants)
    wanted = [run.settings for run in runs]
    check_folders(wanted)
    _check_word_vectors(wanted)
    return runs


def _resolve_continued(arguments: argparse.Namespace, layers: Layers) -> Resolved:
    """Settings of the run that continues another: the parent's, and what describes the new photos."""
    from avalanche_agcn.experiments.continued import continue_settings, read_parent

    for name in ("smoke", "defaults"):
        if name in arguments:
            raise ValueError(f"a run is continued with its own settings: leave --{name} out.")
    asked, sources = merge({**layers, "machine": {}})
    parent = read_parent(asked["continues"])
    given = dict(asked)
    given.setdefault("device", layers["machine"]["device"])
    if "seed" in given:
        given["seed"] = _only_value(given["seed"])
    if "method" in given:
        choice = find_choice(_only_value(given["method"]))
        given.update(choice.changes, method=choice.method)
        if choice.label is not None:
            given["label"] = choice.label
    settings = continue_settings(parent, given)
    from_parent = dict.fromkeys([*TYPES, *settings.method_settings], "--continue")
    return Resolved(settings, {**from_parent, **sources})


def _only_value(value: Any) -> Any:
    """The value of a list of one, as options that take several return it; any other as it is."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _read_layers(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Settings that the user gives, by layer; those of methods stand beside the others."""
    import torch

    given = vars(arguments)
    config = read_config(arguments.config) if "config" in given else {}
    if "method" in given:  # the label and the method's settings are those of another method
        config.pop("label", None)
        if any(name != config.get("method") for name in given["method"]):
            config.pop("method_settings", None)
    options = {name: value for name, value in given.items() if name in TYPES or name in METHOD_FLAGS}
    named = dict(map(_named_value, arguments.set))
    smoke = dict(SMOKE) if "smoke" in given else {}
    asked = {**config, **options, **named}
    if is_b_protocol(asked.get("protocol")):
        smoke.pop("n_experiences", None)  # the protocol determines their number
    if asked.get("classes_per_experience"):
        smoke = {name: value for name, value in smoke.items() if name not in ("n_classes", "n_experiences")}
    layers = {
        "machine": {"device": "cuda" if torch.cuda.is_available() else "cpu"},
        "--config": config,
        "--smoke": smoke,
        "option": options,
        "--set": named,
    }
    for layer, values in layers.items():
        shared, of_methods = split_settings(values)
        layers[layer] = {**of_methods, **shared}
    return layers


def _required_names(arguments: argparse.Namespace, layers: Layers) -> set[str]:
    """Settings of methods that at least one chosen method must have."""
    names = {*layers["option"], *layers["--set"]}
    if "method" not in arguments:  # else the config may be that of another method
        names.update(layers["--config"])
    return names - TYPES.keys()


def _layers_of(choice: Choice, layers: Layers) -> dict[str, Values]:
    """The layers with what a method can use, and that of its variant; `_with_extras` adds `EXTRAS`."""
    known = {*TYPES, *method_fields(choice.method)} - {"method", "benchmark", *EXTRAS}
    of_choice: dict[str, Values] = {}
    for layer, values in layers.items():
        usable = {name: value for name, value in values.items() if name in known}
        if usable.get("label", "") is None:  # the variant's label is used
            del usable["label"]
        of_choice[layer] = usable
    asked, _ = merge(layers)
    if choice.label is not None:
        of_choice["--method"] = {"method": choice.method, "label": choice.label, **choice.changes}
    elif "method" in asked:
        of_choice["--method"] = {"method": choice.method}
    return of_choice


def _with_seed(request: Request, seed: Any) -> Request:
    """The request with one seed in place of a list of seeds."""
    for layer, values in request.layers.items():
        if "seed" in values:
            request = request.changed(layer, seed=seed)
    return request


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """Settings from a TOML or JSON file; those of a run from its ``results.json``."""
    if str(path).endswith(".toml"):
        try:
            content: Any = tomllib.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not TOML: {str(error).rstrip('.')}.") from None
    else:
        content = read_json(path)
    if isinstance(content, dict) and "settings" in content:
        check_format(path, content)
        content = content["settings"]
    if not isinstance(content, dict):
        raise ValueError(f"{path} must have settings by name, such as `lr = 1e-4`, not {shown(content)}.")
    if "benchmark" in content:  # the script's overrides it
        check_benchmark_name(content["benchmark"])
    return content


def _named_value(text: str) -> tuple[str, Any]:
    """``"lr=1e-3"`` as a name and a value, which may be written as in TOML or Python; else a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set needs NAME=VALUE, such as lr=1e-3, not {text!r}.")
    if value.lower() == "none":
        return name, None
    try:
        with contextlib.suppress(tomllib.TOMLDecodeError):
            return name, tomllib.loads(f"value = {value}")["value"]
        with contextlib.suppress(ValueError, SyntaxError):
            return name, ast.literal_eval(value)
    except (RecursionError, MemoryError):
        raise ValueError(
            f"--set {shown(name)} has a value that is nested too deeply, {shown(value)}: give a number, text "
            "or list."
        ) from None
    return name, value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _benchmark_of(arguments: argparse.Namespace, asked: Values) -> BenchmarkName:
    """The benchmark of the script or of ``--set``, or drawn scenes if there is no data."""
    named: BenchmarkName = asked["benchmark"]
    check_benchmark_name(named)
    if asked.get("dataset_root") or named == "photos":
        return named
    if named not in (arguments.benchmark, "scenes"):
        raise ValueError(f"the benchmark {named!r} needs its images: give their folder by --data.")
    return "scenes"


def _choices_of(
    arguments: argparse.Namespace, asked: Values, benchmark: BenchmarkName, has_variants: bool
) -> list[Choice]:
    """Methods to run."""
    if _is_comparison(arguments, benchmark, has_variants):
        return [CHOICES[name] for name in FIRST]
    names = _as_list(asked.get("method", FULL))
    return [CHOICES[name] for name in METHODS] if "all" in names else [find_choice(name) for name in names]


def _uses_small_defaults(arguments: argparse.Namespace, benchmark: BenchmarkName, has_variants: bool) -> bool:
    """Whether each method has the settings that were chosen on a few thousand photos."""
    if _is_comparison(arguments, benchmark, has_variants):
        return True
    default = "small" if benchmark == "photos" else "paper"
    return getattr(arguments, "defaults", default) == "small"


def _is_comparison(arguments: argparse.Namespace, benchmark: BenchmarkName, has_variants: bool) -> bool:
    """Whether no option says what to run, so that a few methods are compared."""
    given = vars(arguments).keys() & {*TYPES, *METHOD_FLAGS, "method", "config", "smoke", "defaults"}
    nothing_given = given <= {"benchmark", "seed"} and not arguments.set
    return nothing_given and not has_variants and benchmark != "photos"


def _check_accepted(names: set[str], methods: Sequence[str]) -> None:
    """Raise a ValueError for settings that none of the chosen methods has."""
    known: set[str] = set()
    for method in methods:
        known.update(method_fields(method))
    unknown = sorted(names - known)
    if not unknown:
        return
    is_misspelled = not any(unknown[0] in method_fields(method) for method in METHODS)
    suggestion = did_you_mean(unknown[0], [*TYPES, *known]) if is_misspelled else ""
    raise ValueError(
        f"unknown settings {unknown}{suggestion} for {', '.join(methods)}; these methods have "
        f"{sorted(known)}, and --help lists the settings of all methods."
    )


WORD_VECTORS = ("embedded", "glove-6b-50d", "random")  # no files; as in models/, which would import torch


def _check_word_vectors(wanted: Sequence[Settings]) -> None:
    """Raise a FileNotFoundError for a missing file of word vectors, before other methods are trained."""
    sources = {settings.word_vectors for settings in wanted if METHODS[settings.method].model == "agcn"}
    for source in sources - set(WORD_VECTORS):
        if not Path(source).is_file():
            known = ", ".join(WORD_VECTORS)
            raise FileNotFoundError(f"there is no file {source} of word vectors; others are {known}.")


EXTRAS = ("negatives", "pseudo_labels")
"""Settings that are given to the methods that can use them: it must be one at least."""


def _with_extras(requests: Sequence[Request], asked: Values, layers: Layers) -> list[Request]:
    """Add `EXTRAS` to the requests of methods that can use them; a ValueError if none can."""
    _, sources = merge(layers)
    with_extras = list(requests)
    for name in EXTRAS:
        if not asked.get(name):
            continue
        used = [_usable_part(name, asked[name], request) for request in requests]
        if not any(used):
            requests[0].changed(
                sources[name], **{name: asked[name]}
            ).resolve()  # raises the error that says why
        for k, value in enumerate(used):
            if value:
                with_extras[k] = with_extras[k].changed(sources[name], **{name: value})
    return with_extras


def _usable_part(name: str, value: Any, request: Request) -> Any:
    """The part of an extra that the method of a request can use."""
    if name == "pseudo_labels":
        return METHODS[request.method].takes_pseudo_labels and value
    method_settings = request.resolve().settings.method_settings
    return sorted(usable_negatives(request.method, method_settings) & set(_as_list(value)))


def _with_variants(requests: Sequence[Request], variants: Variants) -> list[Resolved]:
    """The runs themselves, and their variants that differ from them, seed by seed."""
    others = sorted({request.method for request in requests} - {FULL})
    if others:
        raise ValueError(f"these are variants of AGCN, and not of {', '.join(others)}: leave --method out.")
    if any(request.resolve().settings.label is not None for request in requests):
        raise ValueError("variants of AGCN have labels of their own: leave --label out.")
    runs = [request.changed("ablation", label=FULL).resolve() for request in requests]
    for label, variant in variants.items():
        for request in requests:
            settings = request.resolve().settings
            varied = request.changed("ablation", **variant.changes(settings.method_settings))
            if varied.resolve().settings != settings:
                runs.append(varied.changed("ablation", label=label).resolve())
    return runs


def format_config(runs: Sequence[Resolved]) -> str:
    """A table of each method's settings with the layer that each comes from; seeds share a table."""
    parts = []
    shown: dict[Settings, list[str]] = {}
    for run in runs:
        shown.setdefault(replace(run.settings, seed=0), []).append(run.settings.name)
    used: set[str] = set()
    for run in runs:
        names = shown.pop(replace(run.settings, seed=0), None)
        if names is None:  # another seed of a table above
            continue
        settings = {**vars(run.settings), **run.settings.method_settings}
        del settings["method_settings"]
        rows = [("setting", "value", "from")]
        for name, value in settings.items():
            rows.append((name, in_words(value), run.sources.get(name, "package")))
        used.update(run.sources.values())
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows]
        parts.append("\n".join([", ".join(names), *lines]))
    legend = [f"{layer:11} {why}" for layer, why in LAYERS.items() if layer in used | {"package"}]
    return "\n\n".join([*parts, "\n".join(legend)])


DATA_NAMES = {"coco": "COCO", "wide": "NUS-WIDE", "voc": "PASCAL VOC", "photos": "your photos"}


@returns_exit_code
def main(
    benchmark: BenchmarkName,
    description: str | None,
    argv: Sequence[str] | None = None,
    *,
    variants: Variants | None = None,
    prog: str | None = None,
    usage: str = "%(prog)s [options]",
) -> int:
    """Run the methods on the command line, then write tables and plots of all runs; return the exit code.

    Without data, drawn scenes replace the benchmark. With ``variants``, AGCN and these variants of it run.
    """
    if sys.stdout is None:  # closed; the results of a run are in files
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    parser = make_parser(benchmark, description, prog=prog, usage=usage)
    is_first = is_first_by_environment()
    with contextlib.nullcontext() if is_first else contextlib.redirect_stderr(None):
        arguments = parser.parse_args(argv)
        if not getattr(arguments, "out", OUT).strip():
            parser.error("--out must not be empty: give the name of a folder.")
        try:
            runs = resolve_runs(arguments, variants)
            if "download" in arguments:
                _check_download(runs[0].settings)
        except (ValueError, OSError) as error:
            parser.error(one_sentence(error))
    if "print_config" in arguments:
        print(format_config(runs))
        return 0
    wanted = [run.settings for run in runs]
    if is_first and wanted[0].benchmark == "scenes":
        name = DATA_NAMES[benchmark]
        print(f"No --data: these are drawn scenes, not {name}. Compare these scores with each other only.")
    with handle_signals():
        if "download" in arguments:
            _download(wanted[0])
        _run_all(wanted, arguments)
    return 0


def _check_download(settings: Settings) -> None:
    """Raise a ValueError if there is nothing to download, or no folder for it."""
    if settings.benchmark == "scenes":
        raise ValueError("--download needs a folder to download to: give it by --data.")
    if settings.benchmark not in DOWNLOADS:
        raise ValueError(
            f"--download knows {' and '.join(DOWNLOADS)}, not {settings.benchmark}: leave it out."
        )


def _download(settings: Settings) -> None:
    from avalanche_agcn.benchmarks import download_coco, download_voc

    root = str(settings.dataset_root)
    try:
        {"coco": download_coco, "voc": download_voc}[settings.benchmark](root)
    except KeyboardInterrupt:
        print(f"\nThe same command continues the download to {root}.", file=sys.stderr)
        raise


def _run_all(wanted: Sequence[Settings], arguments: argparse.Namespace) -> None:
    from avalanche_agcn.evaluation.loggers import ProgressBar
    from avalanche_agcn.experiments import report
    from avalanche_agcn.experiments.build import open_loggers
    from avalanche_agcn.experiments.results import RESULTS_FILE
    from avalanche_agcn.experiments.run import Run
    from avalanche_agcn.training.distributed import is_first_process, process_group

    out = _folder_of_results(wanted[0], arguments)
    resume = "resume" in arguments
    overwrite = "overwrite" in arguments
    finished: list[Results] = []
    refresh = partial(report.refresh_page, out, finished, len(wanted))
    log = Log()
    delay = 0.0 if sys.stdout.isatty() else DELAY_IN_LOGS
    with process_group(wanted[0].device):
        for settings in wanted:
            log.begin_run()
            is_finished = (out / settings.name / RESULTS_FILE).is_file() and not overwrite
            logs = is_first_process() and not is_finished
            opened = open_loggers(
                settings,
                out,
                tensorboard=getattr(arguments, "tensorboard", None) if logs else None,
                wandb=getattr(arguments, "wandb", None) if logs else None,
                csv_log=logs and "csv_log" in arguments,
                append=resume,
            )
            with _report_saved_state(out / settings.name) as progress, opened as more:
                run = Run(
                    settings,
                    out,
                    resume=resume,
                    overwrite=overwrite,
                    after_experience=refresh,
                    log=log,
                    loggers=[ProgressBar(delay=delay), *more] if is_first_process() else [],
                )
                progress.has_begun = True
                finished.append(run.run())
        if is_first_process():
            _report_folder(out, finished)


def _folder_of_results(settings: Settings, arguments: argparse.Namespace) -> Path:
    """The folder of ``--out``; by default a continued run is beside its parent, others are in ``results``."""
    if "out" in arguments:
        return Path(arguments.out)
    if settings.continues is not None:
        parent = Path(settings.continues)
        return parent.parent if parent.name not in ("", "..") else parent.resolve().parent
    return Path(SMOKE_OUT if "smoke" in arguments else OUT)


def _report_folder(out: Path, finished: Sequence[Results]) -> None:
    """Report these runs and all others in their folder, so that no run leaves the tables and the page."""
    from avalanche_agcn.experiments import report
    from avalanche_agcn.experiments.results import RESULTS_FILE, read_results

    names = {result.name for result in finished}
    try:
        paths = sorted(out.glob(f"*/{RESULTS_FILE}"))
        others = [read_results(path) for path in paths if path.parent.name not in names]
        report.check_comparable([*finished, *others])
    except (OSError, ValueError) as error:
        print(f"Other runs in {out} are left out of the report: {one_sentence(error)}")
        others = []
    report.write_report([*finished, *others], out)


class Log:
    """Prints the messages of several runs; what an earlier run has said is not said again.

    Runs on the same photos check and count them again.
    """

    def __init__(self) -> None:
        self._earlier: set[str] = set()
        self._own: list[str] = []

    def begin_run(self) -> None:
        """Messages from now on are those of the next run."""
        self._earlier.update(self._own)

    def __call__(self, text: str) -> None:
        """Print a message."""
        self._own.append(text)
        if text not in self._earlier:
            print(text)


@contextlib.contextmanager
def _report_saved_state(folder: Path) -> Iterator[SimpleNamespace]:
    """If the run in the folder fails or is stopped, print whether it can be resumed.

    Nothing is printed about a finished run, nor about a state that was refused: this is a ValueError before
    the run has begun, which the caller marks in what it gets.
    """
    from avalanche_agcn.experiments.folder import STATE_FILE, FolderInUse, OtherRun, UnfinishedRun
    from avalanche_agcn.experiments.results import RESULTS_FILE

    progress = SimpleNamespace(has_begun=False)
    try:
        yield progress
    except (FolderInUse, OtherRun, UnfinishedRun):  # this run has not started
        raise
    except (Exception, KeyboardInterrupt) as error:
        state = folder / STATE_FILE
        is_refused = isinstance(error, ValueError) and state.is_file() and not progress.has_begun
        is_finished = (folder / RESULTS_FILE).is_file()
        nothing_happened = not progress.has_begun and not state.is_file()
        if is_first_by_environment() and not (is_refused or is_finished or nothing_happened):
            saved = f"The state of the run is saved in {state}; the same command with --resume continues it."
            print(f"\n{saved}" if state.is_file() else "\nNo state of the run was saved.", file=sys.stderr)
        raise
