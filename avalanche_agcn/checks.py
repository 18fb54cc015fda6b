"""Checks of arguments; a failed one is a sentence that names the argument, its value and what it may be."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, get_args


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise a ValueError if a value is not one of the choices, a sequence or a ``Literal``."""
    allowed = tuple(choices) if isinstance(choices, Sequence) else get_args(choices)
    if value not in allowed:
        known = tuple(choice for choice in allowed if choice is not None)  # None is a setting not given
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
