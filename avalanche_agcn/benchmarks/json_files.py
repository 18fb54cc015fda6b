"""JSON files from elsewhere: read and checked, so that wrong content ends in one sentence about its place."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    list: "a list",
    dict: "an object with names",
    NoneType: "null",
}
SHOWN_CHARACTERS = 60
MAX_INTEGER = 2**63 - 1


def read_json(path: str | os.PathLike) -> Any:
    """Content of a JSON file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not JSON; the message names the file.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError(
            f"{path} is nested too deeply to be read: give the file of a run or data set."
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged: {str(error).rstrip('.')}.") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"it has the number {name}, which is not JSON.")


def check_kind(value: Any, kind: Any, place: str) -> None:
    """Raise a ValueError that names the place and the value if it is not of a type.

    Args:
        value: from a JSON file.
        kind: a type hint of plain types, lists, dictionaries with text keys, unions and literals.
        place: where the value is: ``"results.json: nested"``.

    Example:
        >>> check_kind([1, "a"], list[int], "a.json: sizes")
        Traceback (most recent call last):
        ValueError: a.json: sizes[1] must be a whole number, but is 'a'.
    """
    if kind is Any:
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        _check_alternatives(value, arguments, place)
    elif origin is Literal:
        if value not in arguments or isinstance(value, bool):
            fail(place, f"one of {', '.join(map(repr, arguments))}", value)
    elif origin is list:
        _check_plain(value, list, place)
        for k, item in enumerate(value):
            check_kind(item, arguments[0], f"{place}[{k}]")
    elif origin is dict:
        _check_plain(value, dict, place)
        for name, item in value.items():
            check_kind(item, arguments[1], f"{place}.{_short(name, quotes=False)}")
    else:
        _check_plain(value, kind, place)


def check_fields(value: Any, kinds: Mapping[str, Any], place: str) -> None:
    """Raise a ValueError if an object lacks a field or has one of another type; it may have further ones."""
    _check_plain(value, dict, place)
    for name, kind in kinds.items():
        if name not in value:
            raise ValueError(f"{place} has no {name!r}, which must be {_words(kind)}.")
        check_kind(value[name], kind, f"{place}.{name}")


def fail(place: str, wanted: str, value: Any) -> NoReturn:
    """Raise a ValueError about a value."""
    raise ValueError(f"{place} must be {wanted}, but is {_short(value)}.")


def _check_alternatives(value: Any, kinds: tuple[Any, ...], place: str) -> None:
    for kind in kinds:
        if isinstance(value, get_origin(kind) or kind) or (kind is float and type(value) is int):
            check_kind(value, kind, place)
            return
    fail(place, " or ".join(map(_words, kinds)), value)


def _check_plain(value: Any, kind: type, place: str) -> None:
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if isinstance(value, bool) and kind is not bool:
        fits = False
    if isinstance(value, float) and not math.isfinite(value):
        fits = False
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        fits = False
    if not fits:
        fail(place, _words(kind), value)


def _words(kind: Any) -> str:
    return WORDS.get(get_origin(kind) or kind, str(kind))


def _short(value: Any, *, quotes: bool = True) -> str:
    """The value on one line, cut if it is long."""
    if isinstance(value, (list, dict)):
        return f"{WORDS[type(value)]} of {len(value)}"
    text = repr(value) if quotes or not isinstance(value, str) else repr(value)[1:-1]
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
