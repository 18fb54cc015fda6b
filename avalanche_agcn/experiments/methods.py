"""The registry of methods and variants: strategy, name, line style and search space of each.

``CONTRIBUTING.md`` lists what to change to add a method: here an entry in `METHODS`, and limits in `LIMITS`.
Strategies are given by name and imported when needed, since Avalanche takes seconds to import.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, Field, create_model

from avalanche_agcn.checks import STRICT, did_you_mean
from avalanche_agcn.evaluation.style import LINES, Style

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class LogUniform:
    """Values between two bounds, distributed uniformly on a logarithmic scale."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """Draw one value, rounded to two digits."""
        value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{value:.1e}")


Space = Mapping[str, LogUniform | Sequence[Mapping[str, Any]]]
"""Settings to choose: bounds by the name of a setting, or alternatives, each with its settings."""


PLAIN = (bool, int, float, str, NoneType)
"""Types that settings may have, besides choices."""
_WEIGHT = Field(ge=0, le=1e30)
_SHARE = Field(ge=0, le=1)
_POSITIVE = Field(gt=0)
_POSITIVE_SHARE = Field(gt=0, le=1)
_COUNT = Field(ge=1, le=10**9)
LIMITS: dict[str, Any] = {
    "alpha": _WEIGHT,
    "batch_size_mem": Field(ge=0, le=10**6),
    "beta": _WEIGHT,
    "contrast_weight": _WEIGHT,
    "cross_threshold": _POSITIVE_SHARE,
    "ewc_lambda": _WEIGHT,
    "fisher_images": _COUNT,
    "gamma": _SHARE,
    "lambda_cls": _WEIGHT,
    "lambda_dst": _WEIGHT,
    "lambda_gph": _WEIGHT,
    "max_gaussians": _COUNT,
    "mem_size": Field(ge=0, le=10**9),
    "neighbour_weight": _WEIGHT,
    "new_threshold": _POSITIVE_SHARE,
    "refine": _POSITIVE,
    "rho": Field(ge=-100, le=100),
    "ridge": _POSITIVE,
    "sample_size": _COUNT,
    "temperature": _POSITIVE,
    "threshold": _SHARE,
    "views": Field(ge=1, le=100),
}
"""Limits of numbers among the settings of methods, which are checked before any run starts."""


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Types and values in a union of types and literals; else the type alone."""
    if get_origin(hint) not in (Union, UnionType, Literal):
        return (hint,)
    found: list[Any] = []
    for part in get_args(hint):
        found += alternatives(part)
    return tuple(found)


@dataclass(frozen=True)
class Method:
    """A method of the runs.

    Attributes:
        strategy: name of its class in `avalanche_agcn.training`.
        name: as tables and plots show it.
        style: line colour and marker, the same in every plot.
        model: ``"linear"``, a linear classifier over the backbone; ``"random"``, one over random features of
            it; or ``"agcn"``, a GCN over word vectors.
        has_pseudo_labels: whether it adds pseudo-labels by itself.
    """

    strategy: str
    name: str
    description: str
    style: Style
    model: Literal["linear", "random", "agcn"] = "linear"
    has_pseudo_labels: bool = False

    @property
    def strategy_class(self) -> type[Any]:
        """The strategy, imported on first use."""
        from avalanche_agcn import training

        return getattr(training, self.strategy)

    @property
    def learns_from_stream_by_gradient(self) -> bool:
        """Whether it trains one experience after the other, with a loss that negatives can be added to."""
        from avalanche_agcn.methods.multi_task import TrainsJointly
        from avalanche_agcn.training.closed_form import ClosedForm

        return not issubclass(self.strategy_class, (ClosedForm, TrainsJointly))

    @property
    def takes_pseudo_labels(self) -> bool:
        """Whether pseudo-labels can be added to its targets."""
        return self.learns_from_stream_by_gradient and not self.has_pseudo_labels

    @cached_property
    def arguments(self) -> dict[str, inspect.Parameter]:
        """Arguments of the strategy that are numbers, texts or choices, without those of all strategies.

        Constructors pass ``**kwargs`` on, so the arguments of base classes are included. Fields of an
        argument that is a dataclass, such as `GraphOptions`, are settings of their own.
        """
        from avalanche_agcn.training.template import MultiLabelTemplate

        shared = inspect.signature(MultiLabelTemplate).parameters
        found: dict[str, inspect.Parameter] = {}
        classes: tuple[Any, ...] = self.strategy_class.__mro__
        for cls in classes[: classes.index(MultiLabelTemplate)]:
            for parameter in _typed_parameters(cls):
                options = _find_dataclass(parameter.annotation)
                declared = [parameter] if options is None else _typed_parameters(options)
                for argument in declared:
                    found.setdefault(argument.name, argument)
        return {
            name: argument
            for name, argument in found.items()
            if name not in shared and _is_plain(argument.annotation)
        }

    def constructor_arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as the strategy takes them: fields of a dataclass as one argument."""
        arguments = dict(settings)
        for parameter in _typed_parameters(self.strategy_class):
            options = _find_dataclass(parameter.annotation)
            if options is not None:
                chosen = {option.name: settings[option.name] for option in fields(options)}
                arguments = {name: value for name, value in arguments.items() if name not in chosen}
                arguments[parameter.name] = options(**chosen)
        return arguments

    @cached_property
    def settings_model(self) -> type[BaseModel]:
        """Settings of the method: `arguments` with their types, limits and defaults.

        ``newer_as_negative`` is not among them: it follows from the setting ``negatives``.
        """
        declared: dict[str, Any] = {}
        for name, argument in self.arguments.items():
            kind = Annotated[argument.annotation, LIMITS[name]] if name in LIMITS else argument.annotation
            if name != "newer_as_negative":
                declared[name] = (kind, argument.default)
        return create_model(f"{self.strategy}Settings", __config__=STRICT, **declared)


def _typed_parameters(cls: type[Any]) -> list[inspect.Parameter]:
    """Parameters of a constructor, annotated with types in place of their names."""
    hints = get_type_hints(cls.__init__)
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [parameter.replace(annotation=hints.get(parameter.name, Any)) for parameter in parameters]


def _find_dataclass(hint: Any) -> type[Any] | None:
    """The dataclass among the alternatives of a type, if any."""
    return next((kind for kind in alternatives(hint) if isinstance(kind, type) and is_dataclass(kind)), None)


def _is_plain(hint: Any) -> bool:
    """Whether a type has numbers, texts and choices only."""
    return all(kind in PLAIN or isinstance(kind, str) for kind in alternatives(hint))


# Okabe and Ito's palette without its yellow, and five of Tol's colours: safe for colour-blind readers.
METHODS: dict[str, Method] = {
    "multitask": Method("MultiTask", "Multi-Task", "all images and labels at once", Style("#000000", "*")),
    "multitask_ridge": Method(
        "MultiTaskRidge", "Multi-Task (ridge)", "Multi-Task in closed form", Style("#DDCC77", "p")
    ),
    "finetuning": Method("FineTuning", "Fine-Tuning", "plain training on the stream", Style("#7F7F7F", "v")),
    "ewc": Method("EWC", "EWC", "penalises changes of important weights", Style("#E69F00", "P")),
    "lwf": Method("LwF", "LwF", "distils the previous model", Style("#56B4E9", "D")),
    "agem": Method("AGEM", "A-GEM", "steps that do not harm a memory", Style("#CC79A7", "X")),
    "er": Method("ER", "ER", "replays from a reservoir", Style("#009E73", "^")),
    "prs": Method("PRS", "PRS", "replays from a memory partitioned by class", Style("#0072B2", "<")),
    "ocdm": Method("OCDM", "OCDM", "replays from a memory with balanced classes", Style("#882255", "s")),
    "scr": Method("SCR", "SCR", "replays with a contrastive loss", Style("#999933", "h")),
    "agcn": Method("AGCN", "AGCN", "a label graph and a frozen teacher", Style("#D55E00", "o"), "agcn"),
    "streaming_ridge": Method(
        "StreamingRidge", "StreamingRidge", "closed form, from sums of features", Style("#332288", "d")
    ),
    "l3a": Method("L3A", "L3A", "closed form, from random features", Style("#117733", ">"), "random"),
    "csc": Method(
        "CSC",
        "CSC (counted graph)",
        "pseudo-labels, a graph of label relations, and a penalty on confident outputs",
        Style("#661100", "8"),
        "agcn",
        has_pseudo_labels=True,
    ),
}
"""In the order of the paper's Table 1, then methods that the paper does not have."""
_WEIGHTS = [{"lambda_cls": x, "lambda_dst": round(1 - x, 2)} for x in (0.07, 0.2, 0.35, 0.5, 0.7)]
SEARCHES: dict[str, Space] = {
    "ewc": {"ewc_lambda": LogUniform(1, 1e5)},
    "lwf": {"alpha": LogUniform(0.1, 30)},
    "scr": {"contrast_weight": LogUniform(0.01, 1)},
    # λ₁ + λ₂ = 1, as in the paper.
    "agcn": {"lr_gcn": LogUniform(3e-5, 1e-3), "weights": _WEIGHTS, "lambda_gph": LogUniform(1, 1e5)},
    "streaming_ridge": {
        "gamma": LogUniform(0.05, 1),
        "ridge": LogUniform(300, 3e4),
        "refine": LogUniform(0.02, 0.5),
    },
    "l3a": {"ridge": LogUniform(1, 1e5)},
    "csc": {"lr_gcn": LogUniform(3e-5, 1e-3), "beta": LogUniform(1e-3, 0.3)},
}
"""Settings that a study chooses for each method, besides the learning rate of a linear classifier."""
FULL = "agcn"
"""The method that ablations are variants of."""
Table = Literal["2", "3", "ours"]
_, DASHED, DOTTED = LINES


@dataclass(frozen=True)
class Variant:
    """A method with some settings changed; its key in `VARIANTS` is the label of its runs.

    Attributes:
        settings: replace those of the run.
        table: the table of ablations it belongs to: the paper's 2 or 3, or ours; None if it is no ablation.
        scale: factors for the loss weights of the run; λ₁ + λ₂ is kept.
    """

    method: str
    name: str
    settings: Mapping[str, Any]
    style: Style
    table: Table | None = None
    scale: Mapping[str, float] = field(default_factory=dict)

    def changes(self, method_settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that replace those of a run of the method."""
        changed = dict(self.settings)
        for name, factor in self.scale.items():
            changed[name] = round(factor * method_settings[name], 12)
        if "lambda_cls" in self.scale:
            total = method_settings["lambda_cls"] + method_settings["lambda_dst"]
            changed["lambda_dst"] = round(total - changed["lambda_cls"], 12)
        return changed


def _ablation(name: str, colour: str, marker: str, table: Table = "ours", **changes: Any) -> Variant:
    """A variant of AGCN; changes are settings, or in the paper's Table 3 factors of the run's weights."""
    style = Style(colour, marker, DASHED)
    if table == "3":
        return Variant(FULL, f"AGCN {name}", {}, style, table, scale=changes)
    return Variant(FULL, f"AGCN {name}", changes, style, table)


_MEMORY = {"negatives": ("memory",)}
_STATISTICS = {"negatives": ("statistics",)}
VARIANTS: dict[str, Variant] = {
    "agcn-no-cross": _ablation("without R and Q", "#0072B2", "s", "2", cross_blocks=False),
    "agcn-identity-graph": _ablation("identity graph", "#009E73", "^", graph="identity"),
    "agcn-words-random": _ablation(
        "random word vectors", "#CC79A7", "D", word_vectors="random", orthogonal_words=False
    ),
    "agcn-words-plain": _ablation("word vectors as they are", "#56B4E9", "v", orthogonal_words=False),
    "agcn-words-orthogonal": _ablation("word vectors made orthogonal", "#000000", "X", orthogonal_words=True),
    "agcn-q-stream": _ablation("Q over the stream", "#332288", "P", q_counts="stream"),
    # The paper's Table 3 as factors of its full method's weights, so that other benchmarks can vary their
    # weights by the same factors.
    "agcn-lambda1-5/7-lambda3-0": _ablation(
        "5/7×λ₁ 0×λ₃", "#E69F00", "<", "3", lambda_cls=5 / 7, lambda_gph=0.0
    ),
    "agcn-lambda3-0": _ablation("0×λ₃", "#999933", ">", "3", lambda_gph=0.0),
    "agcn-lambda1-9/7-lambda3-0": _ablation(
        "9/7×λ₁ 0×λ₃", "#7F7F7F", "h", "3", lambda_cls=9 / 7, lambda_gph=0.0
    ),
    "agcn-lambda3-0.1": _ablation("0.1×λ₃", "#882255", "*", "3", lambda_gph=0.1),
    "agcn-lambda3-10": _ablation("10×λ₃", "#F0E442", "p", "3", lambda_gph=10.0),
    "er + negatives": Variant("er", "ER + negatives", _MEMORY, Style("#009E73", "v", DASHED)),
    "agcn + er + negatives": Variant(FULL, "AGCN + ER + negatives", _MEMORY, Style("#D55E00", "s", DASHED)),
    "agcn orthogonal words + er + negatives": Variant(
        FULL,
        "AGCN orthogonal words + ER + negatives",
        {"orthogonal_words": True, **_MEMORY},
        Style("#332288", "d", DASHED),
    ),
    "agcn statistics": Variant(
        FULL, "AGCN statistics", {"preset": "statistics"}, Style("#D55E00", "D", DOTTED)
    ),
    "finetuning + statistics": Variant(
        "finetuning", "Fine-Tuning + statistics", _STATISTICS, Style("#7F7F7F", "^", DOTTED)
    ),
}
"""By the label of their runs: the ablations of AGCN in the order of tables, then rows with a memory."""
ABLATIONS = {label: variant for label, variant in VARIANTS.items() if variant.table}


@dataclass(frozen=True)
class Label:
    """The key of a run in tables and plots, in its parts; ``str(label)`` is what results store.

    ``Label("agcn statistics", ("er", "negatives"), "50 photos")`` is stored as
    ``"agcn statistics + er + negatives, 50 photos"``.

    Attributes:
        base: a method, AGCN with a preset or change, or any name that the user gives.
        additions: what is added to it: a memory by the method it belongs to, or sources of negatives.
        case: what a study varies within a row; None if nothing.
    """

    base: str
    additions: tuple[str, ...] = ()
    case: str | None = None

    @classmethod
    def parse(cls, stored: str) -> Label:
        """The label that results store as this text."""
        row, comma, case = stored.partition(", ")
        base, *additions = row.split(" + ")
        return cls(base, tuple(additions), case if comma else None)

    def __str__(self) -> str:
        return self.row if self.case is None else f"{self.row}, {self.case}"

    @property
    def row(self) -> str:
        """The stored label without its case: runs with the same row differ in the varied setting."""
        return " + ".join([self.base, *self.additions])

    @property
    def name(self) -> str:
        """As tables show it: ``"A-GEM"``, ``"AGCN official + ER"``."""
        if self.row in VARIANTS:
            name = VARIANTS[self.row].name
        else:
            base = _method_name(self.base)
            if self.base.startswith(f"{FULL} "):  # with a preset or change
                base = METHODS[FULL].name + self.base.removeprefix(FULL)
            name = " + ".join([base, *map(_method_name, self.additions)])
        return name if self.case is None else f"{name}, {self.case}"

    @property
    def style(self) -> Style | None:
        """Line colour and marker of a method or variant; None for a label of the user."""
        known = METHODS.get(str(self)) or VARIANTS.get(str(self))
        return known.style if known else None


def _method_name(key: str) -> str:
    return METHODS[key].name if key in METHODS else key


def name_of(label: str) -> str:
    """How tables show a stored label: ``"A-GEM"``, ``"AGCN official + ER"``."""
    return Label.parse(label).name


def style_of(label: str) -> Style | None:
    """Line colour and marker of a method or variant; None for a label of the user."""
    return Label.parse(label).style


class Choice(NamedTuple):
    """A method as the command line names it: by itself, or as a variant with its label and changes."""

    method: str
    label: str | None = None
    changes: Mapping[str, Any] = {}


def _option_name(label: str) -> str:
    """A label as the command line writes it: ``er_negatives`` for ``"er + negatives"``."""
    return re.sub(r"\W+", "_", label)


CHOICES: dict[str, Choice] = {name: Choice(name) for name in METHODS}
"""Values of ``--method``: all methods, and below variants such as ``agcn_statistics``."""
for _label in ("agcn statistics", "finetuning + statistics", "er + negatives"):
    CHOICES[_option_name(_label)] = Choice(VARIANTS[_label].method, _label, VARIANTS[_label].settings)
FIRST = ("finetuning", "er", "agcn", "agcn_statistics", "streaming_ridge")
"""Methods that are compared if no option is given."""


def find_choice(name: Any) -> Choice:
    """The method or variant of this name: ``agcn_statistics``, or ``agcn-statistics`` as its folder is named.

    Raises:
        ValueError: if there is none, with all names that there are.
    """
    key = _option_name(name) if isinstance(name, str) else None
    if key not in CHOICES:
        suggestion = did_you_mean(name, CHOICES)
        raise ValueError(f"unknown method {name!r}{suggestion}; known are {', '.join(CHOICES)}.")
    return CHOICES[key]


SMALL_FILE = Path(__file__).with_name("small.json")
SMALL: dict[str, Any] = json.loads(SMALL_FILE.read_text(encoding="utf-8"))


def small_settings(
    benchmark: str, choice: Choice, preset: str | None = None, negatives: Sequence[str] = ()
) -> dict[str, Any]:
    """Settings for a few thousand images: those chosen for each method in the study on photos.

    ``small.json`` has them, written by ``runs/studies/study.py``. The preset of AGCN and the sources of
    negatives may make the choice another variant.
    """
    candidates = [choice.label, f"{choice.method} {preset}"]
    for source in negatives:
        addition = "negatives" if source == "memory" else source
        candidates.append(str(Label(choice.method, (addition,))))
    candidates.append(choice.method)
    chosen: dict[str, Any] = next(
        (SMALL["methods"][row] for row in candidates if row in SMALL["methods"]), {}
    )
    if benchmark == "scenes":
        return {**SMALL["networks"]["scenes"], **chosen, **SMALL["scene_rates"]}
    return {**SMALL["networks"]["photos"], **chosen}
