"""Values that settings may have: plain types, choices and ranges."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_origin

from avalanche_agcn.checks import check_range

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
"""Types that settings may have, in words."""


def is_plain(kind: Any) -> bool:
    """Whether a type hint has only plain types and literals: what a settings file can say."""
    return kind is not None and all(isinstance(one, str) or one in [*PLAIN] for one in alternatives(kind))


def alternatives(kind: Any) -> list[Any]:
    """Types and values in a union of types and literals."""
    return [one for part in get_args(kind) for one in alternatives(part)] or [kind]


_LIMITS: list[tuple[str, dict[str, float]]] = [
    ("lr lr_head lr_gcn distillation ewc_lambda alpha contrast_weight", {"least": 0, "most": 1e30}),
    ("lambda_cls lambda_dst lambda_gph neighbour_weight beta", {"least": 0, "most": 1e30}),
    ("ridge refine temperature", {"above": 0}),
    ("gamma threshold", {"least": 0, "most": 1}),
    ("new_threshold cross_threshold", {"above": 0, "most": 1}),
    ("validation_size", {"least": 0, "below": 1}),
    ("test_size", {"above": 0, "below": 1}),
    ("rho", {"least": -100, "most": 100}),
    ("image_size", {"least": 8, "most": 2048}),
    ("views", {"least": 1, "most": 100}),
    ("n_classes n_experiences", {"least": 1, "most": 10**5}),
    ("random_features train_mb_size eval_mb_size train_epochs", {"least": 1, "most": 10**6}),
    ("n_train n_test", {"least": 1, "most": 10**7}),
    ("limit fisher_images sample_size", {"least": 1, "most": 10**9}),
    ("num_workers", {"least": 0, "most": 256}),
    ("checkpoint_minutes batch_size_mem", {"least": 0, "most": 10**6}),
    ("held_images mem_size", {"least": 0, "most": 10**9}),
    ("seed", {"least": 0, "most": 2**32 - 1}),  # as NumPy's
]
RANGES = {name: limits for names, limits in _LIMITS for name in names.split()}
"""Limits of numbers among the settings, as `check_range` takes them; others may be any finite number."""


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
    if isinstance(value, (int, float)):
        check_range(f"the setting {name}", value, **RANGES.get(name, {}))


def _fits(value: Any, allowed: list[Any]) -> bool:
    kinds = tuple(one for one in allowed if isinstance(one, type))
    if isinstance(value, bool):  # which Python takes for a number
        return bool in kinds
    return value in allowed or isinstance(value, (*kinds, int) if float in kinds else kinds)
