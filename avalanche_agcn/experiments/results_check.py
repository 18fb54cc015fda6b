"""Checks of the content of a ``results.json``, which may come from anywhere, before it is used."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from avalanche_agcn.benchmarks.image_files import check_inside
from avalanche_agcn.checks import check_fields, check_kind, check_value, fail
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import KINDS, method_arguments, split_settings

MAX_NAME = 200
"""Longest name of a class, label or benchmark."""
PICTURE: dict[str, Any] = {"image": int | str, "labels": list[str]}
PICTURES: dict[str, dict[str, Any]] = {
    "pictures": PICTURE | {"probabilities": list[list[float | None]]},
    "worst": PICTURE | {"class": str, "error": str, "probability": float | None},
}
DECISIONS: dict[str, Any] = {
    "thresholds": list[float],
    "true": list[int],
    "found": list[list[int]],
    "right": list[list[int]],
}
PERCENT = (0, 100, "percentages between 0 and 100")
PROBABILITY = (-1e-6, 1 + 1e-6, "probabilities between 0 and 1")
AMOUNT = (0, math.inf, "at least 0")
BOUNDS: dict[str, tuple[float, float, str]] = {
    **dict.fromkeys(("nested", "per_class_ap", "stages", "class_ap"), PERCENT),
    **dict.fromkeys(("acm", "cooccurrence"), PROBABILITY),
    **dict.fromkeys(("seconds", "n_images", "decisions"), AMOUNT),
}
"""Least and greatest number in each field, and both in words."""


def check_results(
    content: Any, kinds: Mapping[str, Any], needed: Collection[str], metrics: Sequence[str], place: str
) -> None:
    """Raise a ValueError, with the place, the value and what it must be, if results cannot be shown.

    Args:
        content: of the file.
        kinds: type of each field that results may have.
        needed: names of those that they must have.
        metrics: names of the metrics that results must have.
        place: name of the file.
    """
    check_kind(content, dict, place)
    check_fields(content, {name: kinds[name] for name in needed}, place)
    for name, value in content.items():
        if name not in kinds:
            raise ValueError(
                f"{place} has {name!r:.60}, which results do not have: is it of another program?"
            )
        check_kind(value, kinds[name], f"{place}: {name}")
    _check_settings(content["settings"], f"{place}: settings")
    _check_names(content, place)
    _check_nested(content, metrics, f"{place}: nested")
    _check_details(content, place)
    for name, bounds in BOUNDS.items():
        _check_numbers(content.get(name), bounds, f"{place}: {name}")
    for part, fields in PICTURES.items():
        for k, picture in enumerate(content.get(part) or []):
            check_fields(picture, fields, f"{place}: {part}[{k}]")
            _check_picture(picture, content, f"{place}: {part}[{k}]")


def _check_settings(settings: dict[str, Any], place: str) -> None:
    """Types and ranges of the settings; those that this version does not know are not looked at."""
    try:
        shared, own = split_settings(settings)
        known = method_arguments(shared["method"]) if shared.get("method") in [*METHODS] else {}
        for name, value in shared.items():
            check_value(name, value, KINDS[name])
        for name in own.keys() & known.keys():
            check_value(name, own[name], known[name].annotation)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _check_names(content: Mapping[str, Any], place: str) -> None:
    """Names are on one line, and classes differ and are as many as the experiences have."""
    names, sizes = content["class_names"], content["classes_per_experience"]
    texts = {"benchmark": content["benchmark"], "method": content["method"]}
    texts |= {"settings.label": content["settings"].get("label") or "none"}
    for where, text in [*texts.items(), *(("class_names", name) for name in names)]:
        if not 0 < len(text) <= MAX_NAME or not text.isprintable():
            fail(f"{place}: {where}", f"a name of 1 to {MAX_NAME} printable characters", text)
    if len(set(names)) != len(names):
        fail(f"{place}: class_names", "different names", names)
    if min(sizes, default=0) < 1 or sum(sizes) != len(names):
        raise ValueError(
            f"{place}: classes_per_experience must be positive and sum to the {len(names)} class_names, but "
            f"is {sizes!r:.60}."
        )
    if set(content["per_class_ap"]) != set(names):
        raise ValueError(f"{place}: per_class_ap must have each of the class_names, and no other name.")


def _check_nested(content: Mapping[str, Any], metrics: Sequence[str], place: str) -> None:
    n_experiences, nested = len(content["classes_per_experience"]), content["nested"]
    check_fields(nested, dict.fromkeys(metrics, list), place)
    lengths = {tuple(map(len, rows)) for rows in nested.values()}
    shape = next(iter(lengths))
    fits = all(length in (0, t + 1) for t, length in enumerate(shape)) and 0 < len(shape) <= n_experiences
    if len(lengths) != 1 or not fits or not shape[-1]:
        raise ValueError(
            f"{place} must have the same rows for each metric, row t with t + 1 scores or none and the last "
            f"with scores, for {n_experiences} experiences; they have {sorted(lengths)!r:.60}."
        )


def _check_details(content: Mapping[str, Any], place: str) -> None:
    """Shapes of what is recorded beside the scores."""
    n, n_experiences = len(content["class_names"]), len(content["classes_per_experience"])
    check_fields(content["seconds"], {"total": float}, f"{place}: seconds")
    packages = content["environment"].get("packages", {})
    if not isinstance(packages, dict):
        fail(f"{place}: environment.packages", "versions by name", packages)
    _check_rows(content.get("class_ap"), content, f"{place}: class_ap")
    for name in ("acm", "cooccurrence"):
        rows = content.get(name)
        if rows is not None and [len(row) for row in rows] != [n] * n:
            fail(f"{place}: {name}", f"a matrix of {n} × {n}", rows)
    for stream, counts in (content.get("n_images") or {}).items():
        if len(counts) != n_experiences:
            fail(f"{place}: n_images.{stream!r:.60}", f"{n_experiences} numbers", counts)
    if (decisions := content.get("decisions")) is not None:
        check_fields(decisions, DECISIONS, f"{place}: decisions")
        rows = [decisions["true"], *decisions["found"], *decisions["right"]]
        same = len(decisions["thresholds"]) == len(decisions["found"]) == len(decisions["right"])
        if not same or any(len(row) != n for row in rows):
            fail(f"{place}: decisions", f"counts of {n} classes for each of the thresholds", decisions)


def _check_picture(picture: Mapping[str, Any], content: Mapping[str, Any], place: str) -> None:
    image, names = picture["image"], content["class_names"]
    if isinstance(image, str):
        check_inside(image, f"{place}.image")
    _check_numbers(image, AMOUNT, f"{place}.image")
    if not set(picture["labels"]) <= set(names):
        fail(f"{place}.labels", "some of the class_names", picture["labels"])
    if picture.get("class", names[0]) not in names:
        fail(f"{place}.class", "one of the class_names", picture["class"])
    _check_rows(picture.get("probabilities"), content, f"{place}.probabilities")
    _check_numbers(picture.get("probabilities"), PERCENT, f"{place}.probabilities")


def _check_rows(rows: list[Any] | None, content: Mapping[str, Any], place: str) -> None:
    """At most as many rows as experiences, and entries as classes."""
    n, n_experiences = len(content["class_names"]), len(content["classes_per_experience"])
    if rows is not None and (len(rows) > n_experiences or any(len(row) > n for row in rows)):
        fail(place, "a row for each experience, with a number for each class", rows)


def _check_numbers(value: Any, bounds: tuple[float, float, str], place: str) -> None:
    low, high, words = bounds
    for number in _numbers(value):
        if not low <= number <= high:
            fail(place, words, number)


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in nested lists and objects."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
