"""Backbones, the graph convolutional network, and the two models built from them."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_getattr

if TYPE_CHECKING:
    from .agcn import AGCNModel
    from .backbones import Backbone, Precomputed, RandomFeatures, create_backbone
    from .gcn import GCN
    from .linear import MultiLabelClassifier
    from .saved import load_model, save_model
    from .word_vectors import load_word_vectors

__all__ = [
    "GCN",
    "AGCNModel",
    "Backbone",
    "MultiLabelClassifier",
    "Precomputed",
    "RandomFeatures",
    "create_backbone",
    "load_model",
    "load_word_vectors",
    "save_model",
]

__getattr__ = lazy_getattr(__name__, "gcn", "word_vectors", "backbones", "linear", "agcn", "saved")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
