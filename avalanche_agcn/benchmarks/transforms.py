"""Transforms as plain values, so that a saved model knows how its images are prepared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from avalanche_agcn.benchmarks.image_files import Transform

ARGUMENTS = {
    "ToImage": (),
    "ToTensor": (),
    "ToPureTensor": (),
    "ToDtype": ("dtype", "scale"),
    "Resize": ("size", "interpolation", "max_size", "antialias"),
    "CenterCrop": ("size",),
    "Normalize": ("mean", "std"),
}
"""Transforms without random numbers, of either version of torchvision's, and their arguments."""
VERSIONS = {"v1": v1, "v2": v2}
MAX_SIZE = 4096  # pixels of a side
Step = dict[str, Any]


def describe_transform(transform: Transform | None) -> list[Step] | None:
    """A transform of torchvision as a list of names and arguments; None if a part of it is not known.

    Example:
        >>> describe_transform(v2.Compose([v2.ToImage(), v2.Normalize([0.5], [0.25])]))
        [{'name': 'v2.ToImage'}, {'name': 'v2.Normalize', 'mean': [0.5], 'std': [0.25]}]
    """
    if isinstance(transform, (v1.Compose, v2.Compose)):
        parts = [describe_transform(part) for part in transform.transforms]
        return None if None in parts else [step for part in parts for step in part or []]
    name = type(transform).__name__
    version = next((key for key, of in VERSIONS.items() if type(transform) is getattr(of, name, None)), None)
    if version is None or name not in ARGUMENTS:
        return None
    values = {key: _plain(getattr(transform, key)) for key in ARGUMENTS[name]}
    return [{"name": f"{version}.{name}", **values}]


def make_transform(steps: Sequence[Step]) -> Transform:
    """The transform that `describe_transform` described.

    Raises:
        ValueError: if a step is not one of the known ones, or has a wrong value.
    """
    return v2.Compose([_make_step(step) for step in steps])


def _make_step(step: Step) -> Transform:
    values = dict(step)
    version, _, name = str(values.pop("name", "")).partition(".")
    if version not in VERSIONS or name not in ARGUMENTS or set(values) != set(ARGUMENTS[name]):
        raise ValueError(f"unknown transform {step!r}")
    for key, value in values.items():
        if not _is_valid(key, value):
            raise ValueError(f"{value!r} for {key} of a transform")
    if "dtype" in values:
        values["dtype"] = getattr(torch, values["dtype"])
    if "interpolation" in values:
        values["interpolation"] = v2.InterpolationMode(values["interpolation"])
    return getattr(VERSIONS[version], name)(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, (list, tuple)) else value


def _is_valid(key: str, value: Any) -> bool:
    if key == "dtype":
        return value == "float32"
    if key == "interpolation":
        return value in [mode.value for mode in v2.InterpolationMode]
    if key in ("scale", "antialias"):
        return isinstance(value, bool) or value is None
    if key in ("mean", "std"):
        return isinstance(value, list) and all(_is_number(x) and (x > 0 or key == "mean") for x in value)
    sides = value if isinstance(value, list) else [value]
    return all(value is None or (type(x) is int and 0 < x <= MAX_SIZE) for x in sides) and len(sides) <= 2


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
