"""Settings of a run, with the paper's values and those of each benchmark."""

from __future__ import annotations

import inspect
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from avalanche_agcn.checks import check_value
from avalanche_agcn.experiments.methods import METHODS

BenchmarkName = Literal["scenes", "coco", "wide", "voc", "photos", "own"]
Negatives = tuple[Literal["memory", "statistics"], ...]
Arguments = dict[str, inspect.Parameter]
Values = Mapping[str, Any]
"""Settings by name."""
FORMAT = 2
"""Version of ``results.json`` and of saved states; 1 had a field for each setting of each method."""
RUNTIME_SETTINGS = frozenset({"num_workers", "cache", "checkpoint_minutes", "keep_models"})
"""Settings that do not change the results of a run: it may be resumed with others."""
DATA_PATHS = frozenset({"dataset_root", "labels", "test_labels", "split_lists"})
"""Paths of data: the data themselves are compared by their fingerprint."""
CONVENTIONS = ("class_order", "repeat_images", "unlabelled_as_negative", "test_images", "crowds")
"""Settings that override a protocol's, if not None."""
B_IMAGE_SIZE = 224  # as in benchmarks/protocols.py, which would import torch here


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one run: those that all methods share, the method, and the method's own settings.

    Make them with `make_settings`, which checks them. The text beside a field is the help of its option. The
    defaults are the paper's (section Experiments, else those of the authors' code); `DEFAULTS` has those
    of each benchmark. Choices repeat those of ``models/`` and ``benchmarks/``, which would import torch.

    Attributes:
        method: key in `METHODS`.
        method_settings: all plain arguments of the method's strategy, by name.
    """

    benchmark: Annotated[BenchmarkName, "data set; drawn scenes; or own, for `Run(benchmark=…)`"] = "coco"
    dataset_root: Annotated[str | None, "folder of the data set; without it scenes are drawn"] = None
    labels: Annotated[str | None, "labels of own photos: CSV, COCO's JSON or VOC's XML folder"] = None
    test_labels: Annotated[str | None, "labels of own test photos; if none, a part of --labels"] = None
    test_size: Annotated[float, "share of own photos to test on, if there are no test labels"] = 0.2
    separator: Annotated[str | None, "what separates names in a CSV; detected if none"] = None
    split_lists: Annotated[str | None, "published split lists, a folder or zip"] = None
    protocol: Annotated[str | None, "paper, B0-C10, B40-C10, ...; the benchmark's if none"] = None
    n_classes: Annotated[int | None, "number of classes; with B0-C10 and the like all"] = 40
    n_experiences: Annotated[int | None, "number of experiences; with B0-C10 and the like theirs"] = 10
    class_order: Annotated[str | None, "data, alphabetical, or shuffled-N with a seed N"] = None
    repeat_images: Annotated[bool | None, "repeat an image in every experience that it has a label of"] = None
    unlabelled_as_negative: Annotated[bool | None, "train labels of other experiences' classes as 0"] = None
    test_images: Annotated[Literal["seen", "all"] | None, "test on images with a seen class, or all"] = None
    crowds: Annotated[
        Literal["labels", "membership", "ignore"] | None,
        "crowd boxes of COCO give labels, only assign images to experiences, or are ignored",
    ] = None
    validation_size: Annotated[float, "share of the train images to evaluate on, not the test images"] = 0.0
    limit: Annotated[int | None, "use at most this many images of each experience"] = None
    n_train: Annotated[int, "number of drawn train scenes"] = 6000
    n_test: Annotated[int, "number of drawn test scenes"] = 1200
    image_size: Annotated[int, "side of the network's input in pixels"] = 448

    backbone: Annotated[str, "resnet101, efficientnet_lite0, small, ..."] = "resnet101"
    pretrained: Annotated[bool, "start from ImageNet weights"] = True
    pool: Annotated[Literal["max", "avg"], "global pooling"] = "max"
    freeze_backbone: Annotated[bool, "train heads alone, on features that are computed once"] = False
    freeze_batchnorm: Annotated[bool, "keep the statistics of batch normalisation"] = False
    batchnorm_momentum: Annotated[float | None, "momentum of these statistics; the network's if none"] = None
    fold_batchnorm: Annotated[bool, "fold frozen batch normalisation into convolutions: faster"] = False
    channels_last: Annotated[bool, "use this memory layout: faster on most machines"] = True
    lr: Annotated[float, "learning rate of the backbone (Adam)"] = 1e-4
    lr_head: Annotated[float | None, "learning rate of a linear classifier; lr if none"] = None
    lr_gcn: Annotated[float, "learning rate of AGCN's GCN"] = 3e-5
    word_vectors: Annotated[str, "of AGCN: embedded, glove-6b-50d, random, or a GloVe file"] = "embedded"
    missing_words: Annotated[
        Literal["error", "random"], "class names without word vector: raise an error, or use a random one"
    ] = "error"
    orthogonal_words: Annotated[bool, "make word vectors orthogonal and of unit length"] = False
    random_features: Annotated[int, "number of random features of L3A"] = 4096

    train_mb_size: Annotated[int, "images per step"] = 8
    eval_mb_size: Annotated[int, "images per batch of evaluation"] = 32
    train_epochs: Annotated[int | None, "epochs per experience; if none, as many steps as the study"] = 1
    loss: Annotated[Literal["bce", "asl"], "binary cross-entropy, or the asymmetric loss"] = "bce"
    pseudo_labels: Annotated[bool, "label old classes of new images by the previous model"] = False
    negatives: Annotated[Negatives, "sources of negatives of newer classes, one or both"] = ()
    distillation: Annotated[float, "weight that keeps features near the teacher's, with statistics"] = 0.3
    held_images: Annotated[int, "images per experience to measure drift on, with statistics"] = 256
    amp: Annotated[Literal["bf16", "fp16"] | None, "half precision"] = None
    compile: Annotated[bool, "compile the backbone"] = False

    seed: Annotated[int, "seed of everything random"] = 0
    label: Annotated[str | None, "name in tables; the method's if none"] = None
    device: Annotated[str, "where to compute"] = "cpu"
    num_workers: Annotated[int, "processes that load images"] = 0
    cache: Annotated[str | None, "folder for features of a frozen backbone; the user's if none"] = None
    keep_models: Annotated[bool, "keep the model after each experience, not just the last"] = False
    checkpoint_minutes: Annotated[float, "minutes between saved states within an experience"] = 10.0

    method: str = "agcn"
    method_settings: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name of the run's folder: ``agcn-seed0``."""
        return run_name(self.label or self.method, self.class_order, self.seed)

    def select(self, *names: str) -> dict[str, Any]:
        """Some fields by name, as arguments of a function."""
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Plain values with the version of the format; without the cache folder of this machine."""
        values = {name: value for name, value in asdict(self).items() if name != "cache"}
        return {"format": FORMAT, **values, "negatives": list(self.negatives)}


TYPES: dict[str, Any] = get_type_hints(Settings)
"""Type of each field."""
GROUPS = {"benchmark": "data", "backbone": "model and optimizer", "train_mb_size": "training", "seed": "run"}
"""First field of each group of options, and its title."""
DEFAULTS: dict[BenchmarkName, dict[str, Any]] = {
    "coco": {},
    "wide": {"n_classes": 21, "n_experiences": 7},
    "voc": {"protocol": "B0-C4", "n_classes": None, "n_experiences": None},
    "photos": {"n_classes": None, "n_experiences": None, "missing_words": "random", "train_epochs": None},
    "own": {"n_classes": None, "n_experiences": None, "missing_words": "random"},
    "scenes": {"backbone": "small", "pretrained": False, "image_size": 64, "eval_mb_size": 64, "lr": 1e-3},
}
DEFAULTS["scenes"] |= {"lr_gcn": 1e-4, "orthogonal_words": True}
DEFAULTS["scenes"] |= {"lambda_cls": 0.15, "lambda_dst": 0.85, "lambda_gph": 1e3}
"""Differences from the paper's Split-COCO, for methods that have the setting.

Drawn scenes need a small network trained from scratch, whose old features change fast: the paper's λ₁ of 0.07
preserves them, but learns little from 600 images per experience, and 0.3 learns more but forgets more. GloVe
vectors span few directions (an effective rank of 12 for 40 classes); with them AGCN learned less about new
classes than a linear classifier."""
SMOKE: dict[str, Any] = {"n_classes": 4, "n_experiences": 2, "n_train": 64, "n_test": 32, "limit": 24}
SMOKE |= {"image_size": 32, "mem_size": 8, "batch_size_mem": 4, "random_features": 64}
"""Settings that check in seconds whether a run works; for methods that have them."""


def ascii_name(text: str) -> str:
    """The text as the name of a file: ASCII letters, digits, dots and dashes; a number if it has none."""
    name = re.sub(r"[^\w.]+", "-", text, flags=re.ASCII)
    return name if re.search(r"\w", name, flags=re.ASCII) else f"name-{zlib.crc32(text.encode())}"


def run_name(label: str, class_order: str | None, seed: int) -> str:
    """Name of a run's folder: ``er-seed0``, or with a chosen class order ``er-shuffled-1-seed0``."""
    return ascii_name("-".join([ascii_name(label), *filter(None, [class_order]), f"seed{seed}"]))


def is_b_protocol(name: str | None) -> bool:
    """Whether a protocol is of the form ``B<n>-C<m>``, such as ``"B0-C10"``."""
    return isinstance(name, str) and re.fullmatch(r"B\d+-C\d+", name) is not None


def method_arguments(method: str) -> Arguments:
    """Arguments of a method's strategy that ``method_settings`` has; a ValueError names an unknown method."""
    if method not in [*METHODS]:  # a list, since a value from a file may not be hashable
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}.")
    arguments = dict(METHODS[method].arguments)
    arguments.pop("newer_as_negative", None)  # which follows from the setting negatives
    return arguments


def split_settings(given: Values) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields that all methods share, and settings of methods, whether nested or beside them."""
    shared = {name: value for name, value in given.items() if name in TYPES and name != "method_settings"}
    nested = given.get("method_settings", {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"the setting method_settings must be settings by name, not {nested!r}.")
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
    check_value("benchmark", benchmark, TYPES["benchmark"])
    shared, own = split_settings(given)
    arguments = method_arguments(shared.get("method", Settings.method))
    if unknown := sorted(own.keys() - arguments.keys()):
        known = f"{sorted(TYPES)}, and of this method {sorted(arguments)}"
        raise ValueError(f"unknown settings {unknown}; known are {known}.")
    merged = _merge(benchmark, arguments, defaults or {}, {**shared, **own, "benchmark": benchmark})
    types = TYPES | {name: argument.annotation for name, argument in arguments.items()}
    values = {name: value for name, value in merged.items() if name in types}
    for name, value in values.items():
        check_value(name, value, types[name])
    negatives = values.get("negatives", ())
    values["negatives"] = (negatives,) if isinstance(negatives, str) else tuple(negatives)
    method_settings = {name: values.pop(name) for name in arguments}
    settings = Settings(**values, method_settings=method_settings)
    _check_method(settings)
    _check_data(settings)
    return settings


def _merge(benchmark: BenchmarkName, arguments: Arguments, defaults: Values, given: Values) -> dict[str, Any]:
    """All settings by name; each source overrides those before it."""
    chosen = {**DEFAULTS[benchmark], **defaults, **given}
    by_protocol = _protocol_settings(benchmark, chosen.get("protocol"))
    if by_protocol:  # it determines the number of experiences, unless the user does
        defaults = {name: value for name, value in defaults.items() if name != "n_experiences"}
    preset = _preset_settings(chosen.get("preset", "paper")) if "preset" in arguments else {}
    # The benchmark's loss weights suit the paper's preset, but not that of statistics.
    before, after = ({}, preset) if chosen.get("preset") == "statistics" else (preset, {})
    untrained = {"pretrained": False} if chosen.get("backbone") == "small" else {}  # it has no weights
    own = {name: argument.default for name, argument in arguments.items()}
    sources = (own, before, untrained, DEFAULTS[benchmark], after, by_protocol, defaults, given)
    return {name: value for source in sources for name, value in source.items()}


def _protocol_settings(benchmark: BenchmarkName, protocol: Any) -> dict[str, Any]:
    """Settings of a protocol that replace a benchmark's defaults."""
    check_value("protocol", protocol, TYPES["protocol"])
    if protocol in (None, "paper"):
        return {}
    if not is_b_protocol(protocol):
        raise ValueError(f"the setting protocol must be 'paper' or 'B<n>-C<m>' (B0-C10), not {protocol!r}.")
    size = {} if benchmark == "scenes" else {"image_size": B_IMAGE_SIZE}
    return {"n_classes": None, "n_experiences": None, **size}


def _preset_settings(preset: Any) -> dict[str, Any]:
    """Settings of a preset of AGCN, both the method's and the run's."""
    from avalanche_agcn.agcn.strategy import PRESETS, STATISTICS_MODEL

    own = PRESETS[preset] if preset in [*PRESETS] else {}
    return {**own, **(STATISTICS_MODEL if preset == "statistics" else {})}


def _check_method(settings: Settings) -> None:
    name, no_memory = settings.method, settings.method_settings.get("mem_size") == 0
    if no_memory and method_arguments(name)["mem_size"].default > 0:
        raise ValueError(f"{name} needs a memory: mem_size (--memory) must be at least 1, not 0.")
    if unusable := ", ".join(sorted(set(settings.negatives) - usable_negatives(settings))):
        raise ValueError(
            f"{name} cannot use negatives from {unusable}: memory needs a method that replays images, or "
            "AGCN with --memory; statistics need one that trains by gradient."
        )
    if settings.pseudo_labels and not METHODS[name].takes_pseudo_labels:
        raise ValueError(
            f"{name} cannot use pseudo_labels: they need a method that trains by gradient, one experience "
            "after the other, and has none of its own."
        )


def _check_data(settings: Settings) -> None:
    benchmark, lists = settings.benchmark, settings.split_lists
    if settings.crowds is not None and benchmark != "coco":
        raise ValueError(f"crowds are boxes of COCO: leave the setting out for {benchmark}.")
    if lists is not None and benchmark == "scenes":
        raise ValueError(f"split_lists ({lists}) need the images of their data: give --data.")
    if lists is not None and benchmark not in ("coco", "wide"):
        raise ValueError(f"{benchmark} has no published split lists: leave split_lists out.")
    if benchmark == "photos" and settings.dataset_root is None:
        raise ValueError("own photos need --images, their folder.")
    if (benchmark == "photos") != (settings.labels is not None):
        raise ValueError("own photos need --labels, and other data have their own: use both or neither.")


def change_settings(settings: Settings, **changes: Any) -> Settings:
    """Settings with some changed, fields or settings of the method; another method has its own defaults."""
    if changes.get("preset") == "statistics":  # the preset also sets what it needs
        changes = {**_preset_settings("statistics"), **changes}
    values = dict(vars(settings))
    if changes.get("method", settings.method) != settings.method:
        values["method_settings"] = {}
    return make_settings(values.pop("benchmark"), **{**values, **changes})


def usable_negatives(settings: Settings) -> set[str]:
    """Sources of negatives that the method can use: its memory, if it replays images, and statistics."""
    method = METHODS[settings.method]
    replays = "newer_as_negative" in method.arguments and settings.method_settings.get("mem_size") != 0
    able = {"memory": replays, "statistics": method.learns_from_stream_by_gradient}
    return {source for source, usable in able.items() if usable}


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
    before, now = _with_defaults(old), _with_defaults(new)
    names = sorted((before.keys() | now.keys()) - set(but))
    return [f"{n}: {before.get(n)}, now {now.get(n)}" for n in names if before.get(n) != now.get(n)]


def _with_defaults(values: Values) -> dict[str, Any]:
    shared, own = split_settings({**Settings().as_dict(), **values})
    arguments = method_arguments(shared["method"]) if shared["method"] in METHODS else {}
    defaults = {name: argument.default for name, argument in arguments.items()}
    preset = _preset_settings(own.get("preset", "paper")) if "preset" in arguments else {}
    return {**defaults, **preset, **own, **shared}


def check_folders(wanted: Sequence[Settings]) -> None:
    """Raise a ValueError if several runs would have the same folder."""
    names = Counter(settings.name for settings in wanted)
    if shared := ", ".join(name for name, times in names.items() if times > 1):
        raise ValueError(
            f"several runs would have the folder {shared}: give each method and seed once, and a label to "
            "one method only."
        )
