"""Every setting of a run, with the paper's values and those for the embedded benchmark."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from avalanche_agcn.models.backbones import Pool
from avalanche_agcn.models.word_vectors import Missing
from avalanche_agcn.training.acm import QCounts
from avalanche_agcn.training.graph import Graph
from avalanche_agcn.training.plugins.acm import Preset

BenchmarkName = Literal["scenes", "coco", "wide"]
MemoryKind = Literal["er", "prs", "ocdm"]
Amp = Literal["bf16", "fp16"]

WITHOUT_EFFECT = frozenset({"workers", "cache", "checkpoint_minutes"})
"""Settings that change how a run is done, not what comes out: it may be resumed with others."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run does.

    The defaults are the paper's (section Experiments, and the authors' program where it says nothing);
    ``defaults`` has those of each benchmark.

    Attributes:
        benchmark: ``"coco"``, ``"wide"`` or the embedded ``"scenes"``.
        data: Folder of the data set.
        split_lists: Published split lists to use, if any.
        method: Name of the method.
        seed: Fixes all that is drawn.
        label: Name in tables, if not the method's.
        n_classes: Number of classes.
        n_experiences: Number of experiences.
        validation: Share of the train images to evaluate on instead of the test images.
        limit: At most this many images of each experience, for a quick look.
        n_train: Number of drawn training scenes.
        n_test: Number of drawn test scenes.
        backbone: Name for ``create_backbone``.
        pretrained: Whether to start from its ImageNet weights.
        pool: Global pooling, ``"max"`` or ``"avg"``.
        freeze_batchnorm: Whether batch normalisation keeps its statistics.
        fold_batchnorm: Whether it is then folded into the convolutions, which is faster.
        channels_last: Whether images and weights are kept in that layout, faster on most machines.
        freeze_backbone: Whether heads alone are trained, on features that are computed once.
        image_size: Side of the network's input.
        batch_size: Images a step.
        eval_batch_size: Images a batch of evaluation.
        epochs: Passes over an experience.
        lr: Learning rate of Adam for the backbone.
        lr_head: Learning rate of Adam for a linear classifier; the backbone's if None.
        lr_gcn: Learning rate of Adam for AGCN's GCN.
        word_vectors: Source for ``load_word_vectors``.
        missing_words: What a word gets that the source does not have: ``"error"``, or a ``"random"`` vector.
        orthogonal_words: Whether word vectors are made orthogonal and of unit length.
        preset: AGCN's, ``"paper"`` or ``"official"``.
        graph: How AGCN's relations become a graph, if not as the preset says.
        cross_blocks: Whether AGCN's graph has the blocks R and Q.
        q_counts: What AGCN's block Q is counted over.
        lambda_cls: λ₁ of AGCN.
        lambda_dst: λ₂ of AGCN.
        lambda_gph: λ₃ of AGCN.
        memory: Images in memory; for AGCN 0 is none.
        memory_kind: Memory beside AGCN: ``"er"``, ``"prs"`` or ``"ocdm"``.
        memory_batch: Images replayed a step; as many as of the stream if None.
        negatives_of_newer: Whether replayed images are negatives of newer classes.
        ewc_lambda: λ of EWC.
        lwf_lambda: Weight of LwF's distillation.
        scr_weight: Weight of SCR's contrastive loss.
        device: Where to compute, ``"cuda"`` if there is one by default.
        amp: ``"bf16"``, ``"fp16"`` or None.
        compile: Whether to compile the backbone.
        workers: Processes that load images.
        cache: Folder for features of a frozen backbone; one of the user's if None.
        checkpoint_minutes: How often the state is saved within an experience.
    """

    benchmark: BenchmarkName = "coco"
    data: str | None = None
    split_lists: str | None = None
    method: str = "agcn"
    seed: int = 0
    label: str | None = None
    n_classes: int = 40
    n_experiences: int = 10
    validation: float = 0.0
    limit: int | None = None
    n_train: int = 6000
    n_test: int = 1200
    backbone: str = "resnet101"
    pretrained: bool = True
    pool: Pool = "max"
    freeze_batchnorm: bool = False
    fold_batchnorm: bool = False
    channels_last: bool = True
    freeze_backbone: bool = False
    image_size: int = 448
    batch_size: int = 8
    eval_batch_size: int = 32
    epochs: int = 1
    lr: float = 1e-4
    lr_head: float | None = None
    lr_gcn: float = 3e-5
    word_vectors: str = "embedded"
    missing_words: Missing = "error"
    orthogonal_words: bool = False
    preset: Preset = "paper"
    graph: Graph | None = None
    cross_blocks: bool = True
    q_counts: QCounts = "experience"
    lambda_cls: float = 0.07
    lambda_dst: float = 0.93
    lambda_gph: float = 1e5
    memory: int = 0
    memory_kind: MemoryKind = "er"
    memory_batch: int | None = None
    negatives_of_newer: bool = False
    ewc_lambda: float = 1e3
    lwf_lambda: float = 1.0
    scr_weight: float = 0.1
    device: str = "cpu"
    amp: Amp | None = None
    compile: bool = False
    workers: int = 0
    cache: str | None = None
    checkpoint_minutes: float = 10.0

    @property
    def name(self) -> str:
        """Name of the run's folder: ``agcn-seed0``."""
        return re.sub(r"[^\w.]+", "-", f"{self.label or self.method}-seed{self.seed}")

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values, but for the folder of the cache, which is this machine's alone."""
        return {name: value for name, value in asdict(self).items() if name != "cache"}


KINDS = get_type_hints(Settings)
"""What each setting may be."""
_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}


DEFAULTS: dict[BenchmarkName, dict[str, Any]] = {
    "coco": {},
    "wide": {"n_classes": 21, "n_experiences": 7},
    "scenes": {
        "backbone": "small",
        "pretrained": False,
        "image_size": 64,
        "lr": 1e-3,
        "lr_gcn": 1e-4,
        "orthogonal_words": True,
        "lambda_cls": 0.15,
        "lambda_dst": 0.85,
        "lambda_gph": 1e3,
        "eval_batch_size": 64,
    },
}
"""What differs from the paper's Split-COCO. The drawings want a small network trained from scratch, whose old
features move fast: the paper's λ₁ of 0.07 keeps them, but learns little of 600 images an experience, and 0.3
learns more but forgets more. And GloVe vectors lie in few directions, an effective rank of 12 for 40 classes:
with them as they are AGCN learned less of new classes than a linear classifier."""

SMOKE: dict[str, Any] = {
    "n_classes": 4,
    "n_experiences": 2,
    "n_train": 64,
    "n_test": 32,
    "image_size": 32,
    "limit": 24,
    "memory": 8,
    "memory_batch": 4,
}
"""Settings that show in seconds whether a run works, and nothing else."""


def make_settings(benchmark: BenchmarkName, **given: Any) -> Settings:
    """Settings of a benchmark, with those given in place of its defaults.

    Raises:
        ValueError: If a setting is unknown, or its value is not one that it can have.
    """
    unknown = sorted(set(given) - set(KINDS))
    if unknown:
        raise ValueError(f"unknown settings {unknown}; known are {sorted(KINDS)}")
    for name, value in given.items():
        _check_kind(name, value)
    chosen = {**DEFAULTS[benchmark], **given}
    if chosen.get("backbone") == "small":  # there are no weights for it
        chosen.setdefault("pretrained", False)
    return replace(Settings(benchmark=benchmark), **chosen)


def _check_kind(name: str, value: Any) -> None:
    """Else ``"False"``, for one, would be taken for true."""
    allowed = _alternatives(KINDS[name])
    kinds = tuple(kind for kind in allowed if isinstance(kind, type))
    if isinstance(value, bool):
        fits = bool in kinds
    else:
        fits = value in allowed or isinstance(value, (*kinds, int) if float in kinds else kinds)
    if not fits:
        wanted = " or ".join(_IN_WORDS.get(kind, repr(kind)) for kind in allowed)
        raise ValueError(f"the setting {name} must be {wanted}, not {value!r}")


def _alternatives(kind: Any) -> list[Any]:
    """Types and values in a union of types and literals."""
    return [one for part in get_args(kind) for one in _alternatives(part)] or [kind]


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """Settings from a TOML or JSON file; a ``results.json`` gives those it was made with.

    Raises:
        ValueError: If the file is neither, or names unknown settings.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        content = tomllib.loads(text) if str(path).endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is neither TOML nor JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must have a setting a line, such as `lr = 1e-4`")
    return content.get("settings", content)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Settings that change the outcome and differ, each as ``"lr: 0.0001, now 0.001"``.

    A setting that one of them does not have, because it is newer, has its default there.
    """
    defaults = Settings().as_dict()
    old, new = {**defaults, **old}, {**defaults, **new}
    names = sorted((set(old) | set(new)) - WITHOUT_EFFECT)
    return [f"{n}: {old.get(n)}, now {new.get(n)}" for n in names if old.get(n) != new.get(n)]
