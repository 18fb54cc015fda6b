"""Settings of a run: their types and limits, and the layers of defaults that they come from."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from avalanche_agcn.checks import NAME, STRICT, did_you_mean, first_problem, is_name, shown
from avalanche_agcn.experiments.methods import CHOICES, METHODS, VARIANTS, Label, Variant

BenchmarkName = Literal["scenes", "coco", "wide", "voc", "photos", "own"]
Values = Mapping[str, Any]
"""Settings by name."""
FORMAT = 2
"""Version of ``results.json`` and of saved states; 1 had a field for each setting of each method."""
RUNTIME_SETTINGS = frozenset({"num_workers", "cache", "checkpoint_minutes", "keep_models"})
"""Settings that do not change the results of a run: it may be resumed with others."""
DATA_PATHS = frozenset({"continues", "dataset_root", "labels", "test_labels", "split_lists"})
"""Paths of data: the data themselves are compared by their fingerprint."""
LABEL_SETTINGS = ("labels", "test_labels", "test_size", "separator", "file_column", "label_columns")
"""Settings of labels that are read from a file of your own."""
CONVENTIONS = ("class_order", "repeat_images", "unlabelled_as_negative", "test_images", "crowds")
"""Settings that override a protocol's, if not None."""
B_IMAGE_SIZE = 224  # as in benchmarks/protocols.py, which would import torch here


def is_b_protocol(name: Any) -> bool:
    """Whether a protocol is of the form ``B<n>-C<m>``, such as ``"B0-C10"``."""
    return isinstance(name, str) and re.fullmatch(r"B\d+-C\d+", name) is not None


def _check_text(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("empty", "text that is not empty")
    return value


def _check_label(value: str) -> str:
    if not is_name(value):
        raise PydanticCustomError("label", f"text of {NAME}")
    return value


def _check_separator(value: str) -> str:  # may be a space
    if not value:
        raise PydanticCustomError("empty", "text that is not empty")
    return value


def _check_protocol(value: str) -> str:
    if value != "paper" and not is_b_protocol(value):
        raise PydanticCustomError("protocol", "'paper' or 'B<n>-C<m>' (B0-C10)")
    return value


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


Text = Annotated[str, AfterValidator(_check_text)]
Separator = Annotated[str, AfterValidator(_check_separator)]
LabelText = Annotated[str, AfterValidator(_check_label)]
ProtocolName = Annotated[str, AfterValidator(_check_protocol)]
Negatives = Annotated[tuple[Literal["memory", "statistics"], ...], BeforeValidator(_as_tuple)]
Columns = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)]
Rate = Annotated[float, Field(ge=0, le=1e30)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**6)]
Size = Annotated[int, Field(ge=1, le=10**5)]
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_as_tuple)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Settings of one run: those that all methods share, the method, and settings of the method.

    Make them with `make_settings`, which also checks settings against each other. The text beside a field is
    the help of its option. The defaults are the paper's (section Experiments, else those of the authors'
    code); `LAYERS` lists what overrides them. Choices repeat those of ``models/`` and ``benchmarks/``, which
    would import torch.

    Attributes:
        earlier_classes: number of classes of the first run that this one continues, then of those that each
            further one added: the model learned of them first. Empty for a run of its own.
        method: key in `METHODS`.
        method_settings: all plain arguments of the method's strategy, by name.
    """

    benchmark: Annotated[BenchmarkName, "data set; drawn scenes; or own, for `Run(benchmark=…)`"] = "coco"
    continues: Annotated[
        Text | None, "folder of a finished run on own photos, to train on with the new classes of --labels"
    ] = None
    dataset_root: Annotated[Text | None, "folder of the data set; without it scenes are drawn"] = None
    labels: Annotated[Text | None, "labels of own photos: CSV, COCO's JSON or VOC's XML folder"] = None
    test_labels: Annotated[Text | None, "labels of own test photos; if none, a part of --labels"] = None
    test_size: Annotated[
        float, Field(gt=0, lt=1), "share of own photos to test on, if there are no test labels"
    ] = 0.2
    separator: Annotated[Separator | None, "what separates names in a CSV; the first of ;|, if none"] = None
    file_column: Annotated[Text | None, "column of file names in a CSV; file, image, … if none"] = None
    label_columns: Annotated[Columns, "columns of labels in a CSV; labels, or all but the file if none"] = ()
    split_lists: Annotated[Text | None, "published split lists, a folder or zip"] = None
    protocol: Annotated[ProtocolName | None, "paper, B0-C10, B40-C10, ...; the benchmark's if none"] = None
    n_classes: Annotated[Size | None, "number of classes; with B0-C10 and the like all"] = 40
    n_experiences: Annotated[Size | None, "number of experiences; with B0-C10 and the like theirs"] = 10
    classes_per_experience: Annotated[
        Sizes, "instead of --n-experiences: the number of classes of each, such as 5 3 2"
    ] = ()
    class_order: Annotated[Text | None, "data, alphabetical, or shuffled-N with a seed N"] = None
    repeat_images: Annotated[bool | None, "repeat an image in every experience that it has a label of"] = None
    unlabelled_as_negative: Annotated[bool | None, "train labels of other experiences' classes as 0"] = None
    test_images: Annotated[Literal["seen", "all"] | None, "test on images with a seen class, or all"] = None
    crowds: Annotated[
        Literal["labels", "membership", "ignore"] | None,
        "crowd boxes of COCO give labels, only assign images to experiences, or are ignored",
    ] = None
    validation_size: Annotated[
        float, Field(ge=0, lt=1), "share of the train images to evaluate on, not the test images"
    ] = 0.0
    calibration_size: Annotated[
        float,
        Field(ge=0, lt=1),
        "share of the train images held out to choose thresholds on; with 0 they are chosen on train images",
    ] = 0.0
    class_shares: Annotated[
        Literal["counted", "estimated"],
        "shares of classes that probabilities fit: counted over all train labels, or estimated from scores",
    ] = "counted"
    limit: Annotated[int | None, Field(ge=1, le=10**9), "use at most this many images of each experience"] = (
        None
    )
    n_train: Annotated[int, Field(ge=1, le=10**7), "number of drawn train scenes"] = 6000
    n_test: Annotated[int, Field(ge=1, le=10**7), "number of drawn test scenes"] = 1200
    image_size: Annotated[int, Field(ge=8, le=2048), "side of the network's input in pixels"] = 448

    backbone: Annotated[Text, "resnet101, efficientnet_lite0, small, ..."] = "resnet101"
    pretrained: Annotated[bool, "start from ImageNet weights"] = True
    pool: Annotated[Literal["max", "avg"], "global pooling"] = "max"
    freeze_backbone: Annotated[bool, "train heads alone, on features that are computed once"] = False
    freeze_batchnorm: Annotated[bool, "keep the statistics of batch normalisation"] = False
    batchnorm_momentum: Annotated[Share | None, "momentum of these statistics; the network's if none"] = None
    fold_batchnorm: Annotated[bool, "fold frozen batch normalisation into convolutions: faster"] = False
    channels_last: Annotated[bool, "use this memory layout: faster on most machines"] = True
    lr: Annotated[Rate, "learning rate of the backbone (Adam)"] = 1e-4
    lr_head: Annotated[Rate | None, "learning rate of a linear classifier; lr if none"] = None
    lr_gcn: Annotated[Rate, "learning rate of AGCN's GCN"] = 3e-5
    word_vectors: Annotated[Text, "of AGCN: embedded, glove-6b-50d, random, or a GloVe file"] = "embedded"
    missing_words: Annotated[
        Literal["error", "random"], "class names without word vector: raise an error, or use a random one"
    ] = "error"
    orthogonal_words: Annotated[bool, "make word vectors orthogonal and of unit length"] = False
    random_features: Annotated[Count, "number of random features of L3A"] = 4096

    train_mb_size: Annotated[Count, "images per step"] = 8
    eval_mb_size: Annotated[Count, "images per batch of evaluation"] = 32
    train_epochs: Annotated[Count | None, "epochs per experience; if none, as many steps as the study"] = 1
    loss: Annotated[Literal["bce", "asl"], "binary cross-entropy, or the asymmetric loss"] = "bce"
    pseudo_labels: Annotated[bool, "label old classes of new images by the previous model"] = False
    negatives: Annotated[Negatives, "sources of negatives of newer classes, one or both"] = ()
    distillation: Annotated[Rate, "weight that keeps features near the teacher's, with statistics"] = 0.3
    held_images: Annotated[
        int, Field(ge=0, le=10**9), "images per experience to measure drift on, with statistics"
    ] = 256
    amp: Annotated[Literal["bf16", "fp16"] | None, "half precision"] = None
    compile: Annotated[bool, "compile the backbone"] = False

    seed: Annotated[int, Field(ge=0, le=2**32 - 1), "seed of everything random"] = 0  # the limit of NumPy
    label: Annotated[LabelText | None, "name in tables; the method's if none"] = None
    device: Annotated[Text, "where to compute"] = "cpu"
    num_workers: Annotated[int, Field(ge=0, le=256), "processes that load images"] = 0
    cache: Annotated[Text | None, "folder for features of a frozen backbone; the user's if none"] = None
    keep_models: Annotated[bool, "keep the model after each experience, not just the last"] = False
    checkpoint_minutes: Annotated[
        float, Field(ge=0, le=10**6), "minutes between saved states within an experience"
    ] = 10.0

    earlier_classes: list[int] = field(default_factory=list, hash=False)
    method: str = "agcn"
    method_settings: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name of the run's folder: ``agcn-seed0``."""
        return run_name(self.label or self.method, self.class_order, self.seed, self.continues)

    def select(self, *names: str) -> dict[str, Any]:
        """Some fields by name, as arguments of a function."""
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Plain values with the version of the format; without the cache folder of this machine."""
        values = {name: value for name, value in asdict(self).items() if name != "cache"}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return {"format": FORMAT, **values, **lists}


TYPES: dict[str, Any] = get_type_hints(Settings)
"""Type of each field, without its limits."""
GROUPS = {"benchmark": "data", "backbone": "model and optimizer", "train_mb_size": "training", "seed": "run"}
"""First field of each group of options, and its title."""
DEFAULTS: dict[BenchmarkName, dict[str, Any]] = {
    "coco": {},
    "wide": {"n_classes": 21, "n_experiences": 7},
    "voc": {"protocol": "B0-C4", "n_classes": None, "n_experiences": None},
    "photos": {"n_classes": None, "n_experiences": None, "missing_words": "random", "train_epochs": None},
    "own": {"n_classes": None, "n_experiences": None, "missing_words": "random"},
    "scenes": {
        "backbone": "small",
        "pretrained": False,
        "image_size": 64,
        "eval_mb_size": 64,
        "lr": 1e-3,
        "lr_gcn": 1e-4,
        "orthogonal_words": True,
        "lambda_cls": 0.15,
        "lambda_dst": 0.85,
        "lambda_gph": 1e3,
    },
}
"""Differences from the paper's Split-COCO, for methods that have the setting.

Drawn scenes need a small network trained from scratch, whose old features change fast: the paper's λ₁ of 0.07
preserves them, but learns little from 600 images per experience, and 0.3 learns more but forgets more. GloVe
vectors span few directions (an effective rank of 12 for 40 classes); with them AGCN learned less about new
classes than a linear classifier."""
STATISTICS_MODEL: dict[str, Any] = {"orthogonal_words": True, "lr_gcn": 3e-4}
"""Settings of model and optimizer for AGCN's preset ``"statistics"``, chosen like its loss weights."""
SMOKE: dict[str, Any] = {
    "n_classes": 4,
    "n_experiences": 2,
    "n_train": 64,
    "n_test": 32,
    "limit": 24,
    "image_size": 32,
    "mem_size": 8,
    "batch_size_mem": 4,
    "random_features": 64,
}
"""Settings that check in seconds whether a run works; for methods that have them."""


CONTINUED = re.compile(r"-continued(\d*)$")


def ascii_name(text: str) -> str:
    """The text as the name of a file: ASCII letters, digits, dots and dashes; a number if it has none."""
    name = re.sub(r"[^\w.]+", "-", text, flags=re.ASCII)
    return name if re.search(r"\w", name, flags=re.ASCII) else f"name-{zlib.crc32(text.encode())}"


def run_name(label: str, class_order: str | None, seed: int, continues: str | None = None) -> str:
    """Name of a run's folder: ``er-seed0``, or with a chosen class order ``er-shuffled-1-seed0``.

    A run that continues ``results/er-seed0`` is ``er-seed0-continued``; the next is ``er-seed0-continued2``.
    """
    if continues is not None:
        parent = Path(continues).name
        match = CONTINUED.search(parent)
        return (
            f"{parent[: match.start()]}-continued{int(match[1] or 1) + 1}" if match else f"{parent}-continued"
        )
    return ascii_name("-".join([ascii_name(label), *filter(None, [class_order]), f"seed{seed}"]))


LAYERS = {
    "package": "the paper's value, or the default of the method's strategy",
    "benchmark": "what differs from the paper on this benchmark",
    "backbone": "the network `small` has no ImageNet weights",
    "preset": "what AGCN's preset `statistics` needs: the benchmark's loss weights do not suit it",
    "protocol": "a B protocol has all classes, and its papers' image size",
    "--defaults": "chosen for each method on a few thousand photos",
    "--method": "the chosen method; a variant, such as agcn_statistics, changes some settings",
    "experiences": "a B protocol or --classes-per-experience determines their number",
    "--continue": "the run that is continued",
    "machine": "cuda if this machine has it",
    "--config": "the config file",
    "--smoke": "a check in seconds",
    "option": "an option of the command line, or an argument of make_settings",
    "--set": "NAME=VALUE of the command line",
    "ablation": "what runs/ablations.py varies",
}
"""Where a setting can come from, from the weakest to the strongest, and why. The order stands only here."""
Layers = Mapping[str, Values]
"""Settings by the name of their layer, a key of `LAYERS`."""


def merge(layers: Layers) -> tuple[dict[str, Any], dict[str, str]]:
    """All settings by name, and the layer that each comes from: the strongest one that has it."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in LAYERS:
        for name, value in layers.get(layer, {}).items():
            values[name] = value
            sources[name] = layer
    return values, sources


def package_layers(benchmark: BenchmarkName, method: str, chosen: Layers) -> dict[str, Values]:
    """The layers of the package's own defaults, which depend on the benchmark and on what the user chose."""
    by_benchmark = DEFAULTS[benchmark]
    asked, _ = merge({"benchmark": by_benchmark, **chosen})
    layers: dict[str, Values] = {"package": method_defaults(method), "benchmark": by_benchmark}
    if asked.get("backbone") == "small":
        layers["backbone"] = {"pretrained": False}
    if asked.get("preset") == "statistics" and "preset" in method_fields(method):
        layers["preset"] = preset_settings("statistics")
    if is_b_protocol(asked.get("protocol")):
        layers["protocol"] = {"n_classes": None}
        if benchmark != "scenes":
            layers["protocol"] = {"n_classes": None, "image_size": B_IMAGE_SIZE}
        layers["experiences"] = {"n_experiences": None}
    sizes = _as_tuple(asked.get("classes_per_experience", ()))
    if sizes and all(isinstance(size, int) for size in sizes):
        layers["experiences"] = {"n_experiences": None, "n_classes": sum(sizes)}
    return layers


class Resolved(NamedTuple):
    """Settings of a run, and the layer that each comes from; the package's are not listed."""

    settings: Settings
    sources: dict[str, str]


def resolve(benchmark: BenchmarkName, method: str, chosen: Layers) -> Resolved:
    """Merge and check all layers of a run's settings.

    Args:
        benchmark: name of the benchmark.
        method: key in `METHODS`.
        chosen: the layers that the user chooses. Settings that the method does not have are left out.

    Raises:
        ValueError: if a value has the wrong type, is out of range, or does not fit to the others.
    """
    values, sources = merge({**package_layers(benchmark, method, chosen), **chosen})
    shared, method_values = split_settings(values)
    shared.update(benchmark=benchmark, method=method)
    sources["benchmark"] = "benchmark"
    known = METHODS[method].settings_model.model_fields
    of_method = {name: value for name, value in method_values.items() if name in known}
    settings = _validate(shared, of_method)
    _check_method(settings)
    _check_own_label(settings)
    _check_data(settings)
    return Resolved(settings, sources)


def _validate(shared: Values, of_method: Values) -> Settings:
    """Settings with these values; a ValueError names the first one of a wrong type or out of range."""
    model = METHODS[shared["method"]].settings_model
    try:
        method_settings = model(**of_method).model_dump()
        return Settings(**shared, method_settings=method_settings)
    except ValidationError as error:
        types = TYPES | get_type_hints(model)
        raise ValueError(_setting_problem(error, {**shared, **of_method}, types)) from None


def _setting_problem(error: ValidationError, values: Values, types: Values) -> str:
    """A sentence about the first setting that is wrong."""
    problem = first_problem(error, values)
    name = str(error.errors()[0]["loc"][0])
    wanted = problem.wanted
    if NoneType in get_args(types[name]) and error.errors()[0]["type"].endswith(("_type", "_error")):
        wanted += " or none"
    return f"the setting {name} must be {wanted}, not {shown(problem.value)}."


def check_stored_settings(stored: Values) -> None:
    """Raise a ValueError for a setting of results that has a wrong type or is out of range.

    Settings that this version does not know are ignored.
    """
    shared, method_values = split_settings(stored)
    if shared.get("method") not in list(METHODS):  # a list, since a value from a file may not be hashable
        _validate({**shared, "method": Settings.method}, {})
        return
    known = method_fields(shared["method"])
    _validate(shared, {name: value for name, value in method_values.items() if name in known})


def check_method_name(method: Any) -> None:
    """Raise a ValueError for an unknown method, with those that there are."""
    if not isinstance(method, str) or method not in METHODS:
        suggestion = did_you_mean(method, METHODS)
        raise ValueError(f"unknown method {method!r}{suggestion}; known are {', '.join(METHODS)}.")


def method_fields(method: str) -> list[str]:
    """Names of the settings of a method."""
    return list(METHODS[method].settings_model.model_fields)


def method_defaults(method: str) -> dict[str, Any]:
    """Settings of a method as its strategy has them; AGCN's loss weights are the paper's."""
    defaults = METHODS[method].settings_model().model_dump()
    return {**defaults, **preset_settings("paper")} if "preset" in defaults else defaults


def preset_settings(preset: Any) -> dict[str, Any]:
    """Settings of a preset of AGCN, both the method's and the run's; none for an unknown preset."""
    from avalanche_agcn.agcn.strategy import PRESETS

    if preset == "statistics":
        return {**PRESETS["statistics"], **STATISTICS_MODEL}
    return dict(PRESETS[preset]) if preset in ("paper", "official") else {}


def split_settings(given: Values) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields that all methods share, and settings of methods, whether nested or beside them."""
    nested = given.get("method_settings", {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"the setting method_settings must be settings by name, not {shown(nested)}.")
    shared = {name: value for name, value in given.items() if name in TYPES and name != "method_settings"}
    beside = {name: value for name, value in given.items() if name not in TYPES and name != "format"}
    return shared, {**nested, **beside}


def make_settings(benchmark: BenchmarkName, defaults: Values | None = None, /, **given: Any) -> Settings:
    """Settings of a benchmark, with the given ones instead of its defaults.

    Args:
        benchmark: name of the benchmark.
        defaults: further defaults that replace the benchmark's, where the method has them.
        given: fields of `Settings`, and settings of the method by the names of its strategy's arguments.

    Raises:
        ValueError: if the method or a setting is unknown, or a value has the wrong type or is out of range.
    """
    check_benchmark_name(benchmark)
    shared, of_method = split_settings(given)
    method = shared.get("method", Settings.method)
    check_method_name(method)
    known = method_fields(method)
    if unknown := sorted(of_method.keys() - set(known)):
        raise ValueError(
            f"unknown settings {unknown}; known are {sorted(TYPES)}, and of this method {sorted(known)}."
        )
    return resolve(
        benchmark, method, {"--defaults": defaults or {}, "option": {**shared, **of_method}}
    ).settings


def check_setting(name: str, value: Any) -> None:
    """Raise a ValueError if a setting that all methods share has a wrong type or is out of range."""
    _validate({"method": Settings.method, name: value}, {})


def check_benchmark_name(name: Any) -> None:
    """Raise a ValueError for an unknown benchmark, with those that there are."""
    names = get_args(BenchmarkName)
    if name not in names:
        wanted = " or ".join(map(repr, names))
        raise ValueError(f"the setting benchmark must be {wanted}, not {shown(name)}.")


def _check_method(settings: Settings) -> None:
    name = settings.method
    has_memory_by_default = METHODS[name].settings_model().model_dump().get("mem_size", 0) > 0
    if has_memory_by_default and settings.method_settings["mem_size"] == 0:
        raise ValueError(f"{name} needs a memory: mem_size (--memory) must be at least 1, not 0.")
    if unusable := ", ".join(
        sorted(set(settings.negatives) - usable_negatives(name, settings.method_settings))
    ):
        raise ValueError(
            f"{name} cannot use negatives from {unusable}: memory needs a method that replays images, or "
            "AGCN with --memory; statistics need one that trains by gradient."
        )
    if settings.amp is not None and settings.freeze_backbone:
        raise ValueError(
            f"amp={settings.amp} has no effect with freeze_backbone, whose features are computed once, in "
            "full precision: leave out --amp, or train the network with --no-freeze-backbone."
        )
    if settings.pseudo_labels and not METHODS[name].takes_pseudo_labels:
        raise ValueError(
            f"{name} cannot use pseudo_labels: they need a method that trains by gradient, one experience "
            "after the other, and has none of its own."
        )


def _check_own_label(settings: Settings) -> None:
    """Reject a label that tables would show as another method, or as a variant that the run is not."""
    if settings.label is None:
        return
    row = _plain_name(Label.parse(settings.label).row)
    for key, method in METHODS.items():
        if row in (_plain_name(key), _plain_name(method.name)) and key != settings.method:
            _reject_label(settings, method.name)
    for key, named in VARIANTS.items():
        if row in (_plain_name(key), _plain_name(named.name)) and not _is_variant(settings, named):
            _reject_label(settings, named.name)
    for option, choice in CHOICES.items():
        variant = VARIANTS.get(choice.label or "")
        if variant is not None and row == _plain_name(option) and not _is_variant(settings, variant):
            _reject_label(settings, variant.name)


def _plain_name(label: str) -> str:
    return " ".join(label.casefold().split())


def _is_variant(settings: Settings, variant: Variant) -> bool:
    own = {**vars(settings), **settings.method_settings}
    changed = variant.settings.items()
    return settings.method == variant.method and all(own[name] == value for name, value in changed)


def _reject_label(settings: Settings, name: str) -> NoReturn:
    raise ValueError(
        f"the label {shown(settings.label)} is that of {name}, whose settings this run of {settings.method} "
        "does not have: choose another --label."
    )


def _check_data(settings: Settings) -> None:
    benchmark = settings.benchmark
    lists = settings.split_lists
    if settings.validation_size and settings.calibration_size:
        raise ValueError(
            f"calibration_size={settings.calibration_size} does not fit to validation_size="
            f"{settings.validation_size}, whose images thresholds are chosen on: leave it out."
        )
    if settings.crowds is not None and benchmark != "coco":
        raise ValueError(f"crowds are boxes of COCO: leave the setting out for {benchmark}.")
    if lists is not None and benchmark == "scenes":
        raise ValueError(f"split_lists ({lists}) need the images of their data: give --data.")
    if lists is not None and benchmark not in ("coco", "wide"):
        raise ValueError(f"{benchmark} has no published split lists: leave split_lists out.")
    if benchmark == "photos" and settings.dataset_root is None:
        raise ValueError("own photos need --images, their folder.")
    if benchmark == "photos" and settings.labels is None:
        raise ValueError("own photos need --labels, a file or folder with their labels.")
    if benchmark != "photos" and settings.labels is not None:
        raise ValueError("--labels is for own photos: leave it out with other data.")


def change_settings(settings: Settings, **changes: Any) -> Settings:
    """Settings with some changed, fields or settings of the method; another method has its own defaults."""
    values = {name: getattr(settings, name) for name in TYPES if name not in ("benchmark", "method_settings")}
    if changes.get("method", settings.method) == settings.method:
        values.update(settings.method_settings)
    if changes.get("preset") == "statistics":  # the preset also sets what it needs
        values.update(preset_settings("statistics"))
    shared, of_method = split_settings(changes)
    values.update(shared)
    values.update(of_method)
    return make_settings(settings.benchmark, **values)


def usable_negatives(method: str, method_settings: Values) -> set[str]:
    """Sources of negatives that a method can use: its memory, if it replays images, and statistics."""
    usable = set()
    if "newer_as_negative" in METHODS[method].arguments and method_settings.get("mem_size") != 0:
        usable.add("memory")
    if METHODS[method].learns_from_stream_by_gradient:
        usable.add("statistics")
    return usable


def check_format(path: str | os.PathLike, content: Mapping[str, Any]) -> None:
    """Raise a ValueError for results or a state of another format."""
    found = content.get("format", 1)
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found}, but this version of avalanche-agcn reads format {FORMAT}: "
            "run it again."
        )


def differences(old: Values, new: Values, *, but: Collection[str] = RUNTIME_SETTINGS) -> list[str]:
    """Settings that differ, each as ``"lr: 0.0001, now 0.001"``; a missing one has its default."""
    before = _with_defaults(old)
    now = _with_defaults(new)
    names = sorted((before.keys() | now.keys()) - set(but))
    return [f"{n}: {before.get(n)}, now {now.get(n)}" for n in names if before.get(n) != now.get(n)]


def _with_defaults(stored: Values) -> dict[str, Any]:
    """Stored settings, flat, with the package's defaults for those that are missing."""
    shared, of_method = split_settings({**Settings().as_dict(), **stored})
    if shared["method"] not in list(METHODS):  # a list, since a value from a file may not be hashable
        return {**of_method, **shared}
    defaults = method_defaults(shared["method"])
    if of_method.get("preset") == "statistics" and "preset" in defaults:
        defaults.update(preset_settings("statistics"))
    return {**defaults, **of_method, **shared}


def check_folders(wanted: Sequence[Settings]) -> None:
    """Raise a ValueError if several runs would have the same folder."""
    names = Counter(settings.name for settings in wanted)
    if shared := ", ".join(name for name, times in names.items() if times > 1):
        raise ValueError(
            f"several runs would have the folder {shared}: give each method and seed once, and a label to "
            "one method only."
        )


def check_data_paths(settings: Settings) -> None:
    """Check that the folder of the data is there, and that results.json can have all paths of data.

    Raises:
        ValueError: if a path is not UTF-8.
        FileNotFoundError: if there is no folder of the data.
    """
    for path in settings.select(*DATA_PATHS).values():
        if path is not None and os.fspath(path) != os.fsencode(path).decode(errors="replace"):
            raise ValueError(
                f"{path!r} is not UTF-8, so that results.json cannot have this path: rename the folder, "
                "or give a link to it."
            )
    root = settings.dataset_root
    if root is not None and not Path(root).is_dir():
        option = "--images" if settings.benchmark == "photos" else "--data"
        raise FileNotFoundError(f"There is no folder {root} with the data: check {option}.")
