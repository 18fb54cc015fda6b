"""Variants of AGCN that the paper compares, each as settings in place of the run's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avalanche_agcn.experiments.paper import TABLE_3
from avalanche_agcn.experiments.settings import Settings

PAPER_LAMBDA_GPH = 1e5
"""λ₃ of the paper's full method, for which the run's own stands."""

Variant = Callable[[Settings], dict[str, Any]]


def _weights(weights: tuple[float, float, float]) -> Variant:
    """Loss weights of a row of Table 3; λ₃ in the same proportion to the run's own as to the paper's."""
    lambda_cls, lambda_dst, lambda_gph = weights
    return lambda settings: {
        "lambda_cls": lambda_cls,
        "lambda_dst": lambda_dst,
        "lambda_gph": lambda_gph / PAPER_LAMBDA_GPH * settings.lambda_gph,
    }


VARIANTS: dict[str, Variant] = {
    "agcn": lambda settings: {},
    "agcn without R and Q": lambda settings: {"cross_blocks": False},
    "agcn identity graph": lambda settings: {"graph": "identity"},
    "agcn random word vectors": lambda settings: {"word_vectors": "random"},
    **{
        f"agcn λ {a:g} {b:g} {c / PAPER_LAMBDA_GPH:g}×λ₃": _weights((a, b, c))
        for a, b, c in TABLE_3
        if c != PAPER_LAMBDA_GPH
    },
}
"""By the name each has in tables: Table 2, two more of our own, Table 3."""
