"""Checks of arguments, settings and JSON files; messages name the place, its value and what it may be."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise a ValueError if a value is not one of the choices, a sequence or a ``Literal``."""
    allowed = tuple(choices) if isinstance(choices, Sequence) else get_args(choices)
    if value not in allowed:
        known = tuple(choice for choice in allowed if choice is not None)  # None: not given
        raise ValueError(f"{name} must be one of {known}, not {value!r}.")


def check_range(
    name: str,
    value: float | None,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise a ValueError if a number is out of range, infinite or NaN; None (not given) passes.

    Example:
        >>> check_range("clip", 1.5, least=0, below=1)
        Traceback (most recent call last):
        ValueError: clip must be at least 0 and below 1, not 1.5.
    """
    if value is None or (least <= value <= most and above < value < below):
        return
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    parts = [words] if math.isfinite(value) else ["a finite number", *filter(None, [words])]
    raise ValueError(f"{name} must be {', '.join(parts)}, not {value}.")


def check_whole_number(name: str, value: Any, least: int | None = None) -> None:
    """Raise a ValueError if an argument is not a whole number, or is below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if least is not None and value < least:  # type: ignore[operator]
        raise ValueError(f"{name} must be at least {least}, not {value}.")


def check_shape(name: str, tensor: Any, shape: tuple[int | str, ...], reason: str = "") -> None:
    """Raise a ValueError if a tensor has another shape; text in it, such as "images", allows any length."""
    pairs = zip(tensor.shape, shape, strict=False)
    if tensor.ndim != len(shape) or any(n != wanted for n, wanted in pairs if isinstance(wanted, int)):
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must be [{wanted}]{reason}, not {list(tensor.shape)}.")


WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    NoneType: "none",
    list: "a list",
    dict: "an object with names",
}
"""Types of settings and JSON values, in words."""
PLAIN = (bool, int, float, str, NoneType)
"""Types that settings may have."""


@cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """Types and values in a union of types and literals; else the type alone."""
    if get_origin(hint) not in (Union, UnionType, Literal):
        return (hint,)
    return tuple(one for part in get_args(hint) for one in alternatives(part))


def _find_alternative(value: Any, hint: Any) -> Any:
    """The alternative that a value is of, ignoring the items of a list; None if there is none."""
    for one in alternatives(hint):
        cls = get_origin(one) or one
        if one is Any or (isinstance(one, str) and value == one):
            return one
        is_other_bool = isinstance(value, bool) and cls is not bool  # Python's bool is an int
        accepted = (int, float) if cls is float else cls
        if isinstance(cls, type) and isinstance(value, accepted) and not is_other_bool:
            return one
    return None


def _in_words(hint: Any) -> str:
    names = (one if isinstance(one, str) else get_origin(one) or one for one in alternatives(hint))
    return " or ".join(WORDS.get(name, repr(name)) for name in names)


_LIMITS: dict[str, dict[str, float]] = {
    "lr lr_head lr_gcn distillation ewc_lambda alpha contrast_weight": {"least": 0, "most": 1e30},
    "lambda_cls lambda_dst lambda_gph neighbour_weight beta": {"least": 0, "most": 1e30},
    "ridge refine temperature": {"above": 0},
    "gamma threshold batchnorm_momentum": {"least": 0, "most": 1},
    "new_threshold cross_threshold": {"above": 0, "most": 1},
    "validation_size": {"least": 0, "below": 1},
    "test_size": {"above": 0, "below": 1},
    "rho": {"least": -100, "most": 100},
    "image_size": {"least": 8, "most": 2048},
    "views": {"least": 1, "most": 100},
    "n_classes n_experiences": {"least": 1, "most": 10**5},
    "random_features train_mb_size eval_mb_size train_epochs": {"least": 1, "most": 10**6},
    "n_train n_test": {"least": 1, "most": 10**7},
    "limit fisher_images sample_size": {"least": 1, "most": 10**9},
    "num_workers": {"least": 0, "most": 256},
    "checkpoint_minutes batch_size_mem": {"least": 0, "most": 10**6},
    "held_images mem_size": {"least": 0, "most": 10**9},
    "seed": {"least": 0, "most": 2**32 - 1},  # the limit of NumPy
}
RANGES = {name: limits for names, limits in _LIMITS.items() for name in names.split()}
"""Limits of numbers among the settings, as arguments of `check_range`; others may be any finite number."""


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise a ValueError for a setting of the wrong type, such as the text ``"False"``, or out of range."""
    if get_origin(hint) is tuple:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            check_value(name, item, get_args(hint)[0])
        return
    if _find_alternative(value, hint) is None:
        raise ValueError(f"the setting {name} must be {_in_words(hint)}, not {value!r}.")
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"the setting {name} must not be empty.")
    if isinstance(value, (int, float)):
        check_range(f"the setting {name}", value, **RANGES.get(name, {}))


SHOWN_CHARACTERS = 60
MAX_INTEGER = 2**63 - 1


def read_json(path: str | os.PathLike) -> Any:
    """Content of a JSON file; a ValueError names one that is not JSON."""

    def reject(constant: str) -> NoReturn:
        raise ValueError(f"it has the number {constant}, which is not JSON")

    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=reject)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply: give the file of a run or data set.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged: {str(error).rstrip('.')}.") from None


def check_type(value: Any, hint: Any, place: str) -> None:
    """Raise a ValueError that names the place and the value if one from a JSON file is not of a type.

    The hint may have plain types, lists, dictionaries with text keys, unions and literals. The place is the
    file and the path in it, such as ``"results.json: nested"``.
    """
    if hint is Any:
        return
    found = _find_alternative(value, hint)
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if found is None or is_infinite or (isinstance(value, int) and abs(value) > MAX_INTEGER):
        fail(place, _in_words(hint), value)
    if get_origin(found) is list:
        for k, item in enumerate(value):
            check_type(item, get_args(found)[0], f"{place}[{k}]")
    elif get_origin(found) is dict:
        for name, item in value.items():
            check_type(item, get_args(found)[1], f"{place}.{_cut(repr(name)[1:-1])}")


def check_fields(value: Any, hints: Mapping[str, Any], place: str) -> None:
    """Raise a ValueError if an object lacks a field or has one of another type; it may have further ones."""
    check_type(value, dict, place)
    for name, hint in hints.items():
        if name not in value:
            raise ValueError(f"{place} has no {name!r}, which must be {_in_words(hint)}.")
        check_type(value[name], hint, f"{place}.{name}")


def fail(place: str, wanted: str, value: Any) -> NoReturn:
    """Raise a ValueError about a value, on one line and cut if it is long."""
    is_container = isinstance(value, (list, dict))
    shown = f"{WORDS[type(value)]} of {len(value)}" if is_container else _cut(repr(value))
    raise ValueError(f"{place} must be {wanted}, but is {shown}.")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
