"""Checks of the content of a ``results.json``, which may come from anywhere, before it is used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from avalanche_agcn.benchmarks.image_files import check_inside
from avalanche_agcn.benchmarks.json_files import check_fields, check_kind, fail
from avalanche_agcn.experiments.settings import check_stored

MAX_NAME = 200
"""Longest name of a class, label or benchmark."""
PICTURE: dict[str, Any] = {"image": int | str, "labels": list[str]}
PICTURES: dict[str, dict[str, Any]] = {
    "pictures": PICTURE | {"probabilities": list[list[float | None]]},
    "worst": PICTURE | {"class": str, "error": str, "probability": float | None},
}
DECISIONS = {
    "thresholds": list[float],
    "true": list[int],
    "found": list[list[int]],
    "right": list[list[int]],
}


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
    check_stored(content["settings"], f"{place}: settings")
    _check_names(content, place)
    _check_scores(content, metrics, place)
    _check_matrices(content, place)
    _check_pictures(content, place)
    _check_counts(content, place)


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


def _check_scores(content: Mapping[str, Any], metrics: Sequence[str], place: str) -> None:
    n_experiences = len(content["classes_per_experience"])
    nested = content["nested"]
    check_fields(nested, dict.fromkeys(metrics, list), f"{place}: nested")
    lengths = {tuple(map(len, rows)) for rows in nested.values()}
    shape = next(iter(lengths))
    fits = all(length in (0, t + 1) for t, length in enumerate(shape)) and 0 < len(shape) <= n_experiences
    if len(lengths) != 1 or not fits or not shape[-1]:
        raise ValueError(
            f"{place}: nested must have the same rows for each metric, row t with t + 1 scores or none and "
            f"the last with scores, for {n_experiences} experiences; they have {sorted(lengths)!r:.60}."
        )
    for metric, rows in nested.items():
        _check_percent([value for row in rows for value in row], f"{place}: nested.{metric}")
    if set(content["per_class_ap"]) != set(content["class_names"]):
        raise ValueError(f"{place}: per_class_ap must have each of the class_names, and no other name.")
    _check_percent(content["per_class_ap"].values(), f"{place}: per_class_ap")
    for values in (content.get("stages") or {}).values():
        _check_percent(values, f"{place}: stages")
    rows = content.get("class_ap") or []
    _check_percent([value for row in rows for value in row], f"{place}: class_ap")
    if len(rows) > n_experiences or any(len(row) > len(content["class_names"]) for row in rows):
        fail(f"{place}: class_ap", "a row for each experience, with a score for each class", rows)
    check_fields(content["seconds"], {"total": float}, f"{place}: seconds")
    if min(content["seconds"].values()) < 0:
        fail(f"{place}: seconds", "at least 0", min(content["seconds"].values()))


def _check_percent(values: Any, place: str) -> None:
    for value in values:
        if value is not None and not 0 <= value <= 100:
            fail(place, "percentages between 0 and 100", value)


def _check_matrices(content: Mapping[str, Any], place: str) -> None:
    n = len(content["class_names"])
    for name in ("acm", "cooccurrence"):
        rows = content.get(name)
        if rows is not None and (len(rows) != n or any(len(row) != n for row in rows)):
            fail(f"{place}: {name}", f"a matrix of {n} × {n}", rows)
        for value in (value for row in rows or [] for value in row):
            if not -1e-6 <= value <= 1 + 1e-6:
                fail(f"{place}: {name}", "probabilities between 0 and 1", value)


def _check_pictures(content: Mapping[str, Any], place: str) -> None:
    n = len(content["class_names"])
    for part, kinds in PICTURES.items():
        for k, picture in enumerate(content.get(part) or []):
            where = f"{place}: {part}[{k}]"
            check_fields(picture, kinds, where)
            image = picture["image"]
            if isinstance(image, str):
                check_inside(image, f"{where}.image")
            elif image < 0:
                fail(f"{where}.image", "at least 0", image)
            if not set(picture["labels"]) <= set(content["class_names"]):
                fail(f"{where}.labels", "some of the class_names", picture["labels"])
            if picture.get("class", content["class_names"][0]) not in content["class_names"]:
                fail(f"{where}.class", "one of the class_names", picture["class"])
            rows = picture.get("probabilities", [])
            _check_percent([p for row in rows for p in row], f"{where}.probabilities")
            if len(rows) > len(content["classes_per_experience"]) or any(len(row) > n for row in rows):
                fail(f"{where}.probabilities", "a row for each experience, with one for each class", rows)


def _check_counts(content: Mapping[str, Any], place: str) -> None:
    n, n_experiences = len(content["class_names"]), len(content["classes_per_experience"])
    for stream, counts in (content.get("n_images") or {}).items():
        if len(counts) != n_experiences or min(counts) < 0:
            fail(f"{place}: n_images.{stream!r:.60}", f"{n_experiences} numbers of at least 0", counts)
    decisions = content.get("decisions")
    if decisions is None:
        return
    check_fields(decisions, DECISIONS, f"{place}: decisions")
    rows = [decisions["true"], *decisions["found"], *decisions["right"]]
    same = len(decisions["thresholds"]) == len(decisions["found"]) == len(decisions["right"])
    if not same or any(len(row) != n or min(row) < 0 for row in rows):
        fail(f"{place}: decisions", f"counts of {n} classes for each of the thresholds", decisions)
