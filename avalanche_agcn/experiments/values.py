"""Values that settings may have: plain types, choices and ranges."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
"""Types that settings may have, in words."""


def is_plain(kind: Any) -> bool:
    """Whether a type hint has only plain types and literals: what a settings file can say."""
    return kind is not None and all(isinstance(one, str) or one in [*PLAIN] for one in alternatives(kind))


def alternatives(kind: Any) -> list[Any]:
    """Types and values in a union of types and literals."""
    return [one for part in get_args(kind) for one in alternatives(part)] or [kind]


class Range(NamedTuple):
    """Values that a number may have, bounds included unless they are open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, (int, float))
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = "" if self.high == math.inf else f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return " and ".join(filter(None, (low, high)))


_NAMES: dict[Range, str] = {
    Range(0, 1e30): "lr lr_head lr_gcn distillation ewc_lambda alpha contrast_weight lambda_cls lambda_dst "
    "lambda_gph neighbour_weight beta",
    Range(0, open_low=True): "ridge refine temperature",
    Range(0, 1): "gamma threshold",
    Range(0, 1, open_low=True): "new_threshold cross_threshold",
    Range(0, 1, open_high=True): "validation_size",
    Range(0, 1, open_low=True, open_high=True): "test_size",
    Range(-100, 100): "rho",
    Range(8, 2048): "image_size",
    Range(1, 100): "views",
    Range(1, 10**5): "n_classes n_experiences",
    Range(1, 10**6): "random_features train_mb_size eval_mb_size train_epochs",
    Range(1, 10**7): "n_train n_test",
    Range(1, 10**9): "limit fisher_images sample_size",
    Range(0, 256): "num_workers",
    Range(0, 10**6): "checkpoint_minutes batch_size_mem",
    Range(0, 10**9): "held_images mem_size",
    Range(0, 2**32 - 1): "seed",  # as NumPy's
}
RANGES: dict[str, Range] = {name: own for own, names in _NAMES.items() for name in names.split()}
"""Values that numbers among the settings may have; others may be any finite number."""


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raise a ValueError for a value of the wrong type, such as the text ``"False"``, or out of range."""
    if get_origin(kind) is tuple:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            check_value(name, item, get_args(kind)[0])
        return
    allowed = alternatives(kind)
    if not _fits(value, allowed):
        wanted = " or ".join(PLAIN.get(one, repr(one)) for one in allowed)
        raise ValueError(f"the setting {name} must be {wanted}, not {value!r}.")
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"the setting {name} must not be empty.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the setting {name} must be a finite number, not {value}.")
    if isinstance(value, (int, float)) and value not in RANGES.get(name, Range()):
        raise ValueError(f"the setting {name} must be {RANGES[name]}, not {value}.")


def _fits(value: Any, allowed: list[Any]) -> bool:
    kinds = tuple(one for one in allowed if isinstance(one, type))
    if isinstance(value, bool):  # which Python takes for a number
        return bool in kinds
    return value in allowed or isinstance(value, (*kinds, int) if float in kinds else kinds)
