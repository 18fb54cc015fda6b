"""Variants of AGCN that the paper compares, each as settings in place of the run's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from avalanche_agcn.experiments.settings import Settings

Variant = Callable[[Settings], dict[str, Any]]
Weights = tuple[float, float, float]
"""λ₁, λ₂, λ₃."""

FULL = "agcn"
WITHOUT_CROSS_BLOCKS = "agcn without R and Q"
WORDS_AS_THEY_ARE = "agcn word vectors as they are"
WORDS_ORTHOGONAL = "agcn word vectors made orthogonal"

PAPER_WEIGHTS: Weights = (0.07, 0.93, 1e5)
"""Of the paper's full method, for which the run's own stand."""

WEIGHTS: dict[str, Weights] = {
    "agcn 5/7×λ₁ 0×λ₃": (0.05, 0.95, 0.0),
    "agcn 0×λ₃": (0.07, 0.93, 0.0),
    "agcn 9/7×λ₁ 0×λ₃": (0.09, 0.91, 0.0),
    "agcn 0.1×λ₃": (0.07, 0.93, 1e4),
    FULL: PAPER_WEIGHTS,
    "agcn 10×λ₃": (0.07, 0.93, 1e6),
}
"""Rows of the paper's Table 3, in its order, with its weights."""


def scaled_weights(settings: Settings, weights: Weights) -> Weights:
    """Weights that are to the run's own as ``weights`` are to the paper's; λ₁ + λ₂ stays as it is.

    With the paper's settings they are the paper's weights. Another benchmark may want others, around which
    the same steps are taken.

    Example:
        >>> scaled_weights(Settings(lambda_cls=0.35, lambda_dst=0.65, lambda_gph=1e3), (0.05, 0.95, 1e4))
        (0.25, 0.75, 100.0)
    """
    lambda_cls = weights[0] / PAPER_WEIGHTS[0] * settings.lambda_cls
    lambda_dst = settings.lambda_cls + settings.lambda_dst - lambda_cls
    lambda_gph = weights[2] / PAPER_WEIGHTS[2] * settings.lambda_gph
    return round(lambda_cls, 12), round(lambda_dst, 12), lambda_gph  # 0.05, not 0.05000000000000001


def _weighted(weights: Weights) -> Variant:
    names = ("lambda_cls", "lambda_dst", "lambda_gph")
    return lambda settings: dict(zip(names, scaled_weights(settings, weights), strict=True))


VARIANTS: dict[str, Variant] = {
    FULL: lambda settings: {},
    WITHOUT_CROSS_BLOCKS: lambda settings: {"cross_blocks": False},
    "agcn identity graph": lambda settings: {"graph": "identity"},
    "agcn random word vectors": lambda settings: {"word_vectors": "random", "orthogonal_words": False},
    WORDS_AS_THEY_ARE: lambda settings: {"orthogonal_words": False},
    WORDS_ORTHOGONAL: lambda settings: {"orthogonal_words": True},
    "agcn Q over the stream": lambda settings: {"q_counts": "stream"},
    **{name: _weighted(weights) for name, weights in WEIGHTS.items() if name != FULL},
}
"""By the name each has in tables: Table 2, some of our own, Table 3."""


def variants_of(settings: Settings, variants: Mapping[str, Variant] = VARIANTS) -> dict[str, Settings]:
    """The variants that differ from the run's own settings, and these, by name."""
    own = {name: replace(settings, label=name, **change(settings)) for name, change in variants.items()}
    return {
        name: variant
        for name, variant in own.items()
        if name == FULL or replace(variant, label=settings.label) != settings
    }


OF_OUR_OWN = [name for name in VARIANTS if name not in (*WEIGHTS, WITHOUT_CROSS_BLOCKS)]
"""Variants that the paper does not have."""
