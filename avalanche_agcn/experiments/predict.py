"""Predictions as text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Literal

from avalanche_agcn.models.saved import Prediction


def format_predictions(
    photos: Sequence[str], found: Sequence[Prediction], form: Literal["table", "json", "csv"]
) -> str:
    """Labels and probabilities of photos: a table of what is found, or JSON or CSV of all classes.

    Example:
        >>> found = [Prediction(["dog"], {"dog": 0.9, "cat": 0.25})]
        >>> print(format_predictions(["a.jpg"], found, "table"), end="")
        a.jpg  dog 0.90
        >>> print(format_predictions(["a.jpg"], found, "csv"), end="")
        image,labels,dog,cat
        a.jpg,dog,0.9,0.25
    """
    pairs = list(zip(photos, found, strict=True))
    if form == "json":
        rows = [
            {"image": photo, "labels": own.names, "probabilities": own.probabilities} for photo, own in pairs
        ]
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "labels", *found[0].probabilities])
        writer.writerows([photo, ";".join(own.names), *own.probabilities.values()] for photo, own in pairs)
        return text.getvalue()
    width = max(map(len, photos))
    return "".join(f"{photo:{width}}  {_labels(own)}\n" for photo, own in pairs)


def _labels(found: Prediction) -> str:
    if found.names:
        return ", ".join(f"{_printable(name)} {found.probabilities[name]:.2f}" for name in found.names)
    name, p = max(found.probabilities.items(), key=lambda item: item[1])
    return f"nothing found; most probable is {_printable(name)} {p:.2f}"


def _printable(name: str) -> str:
    """A name without control characters, which would change what a terminal shows."""
    return name if name.isprintable() else ascii(name)
