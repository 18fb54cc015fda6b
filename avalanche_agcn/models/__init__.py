"""Backbones, the graph convolutional network, and the two models built from them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avalanche_agcn.models.agcn import AGCNModel
    from avalanche_agcn.models.backbones import Backbone, Precomputed, create_backbone
    from avalanche_agcn.models.gcn import GCN
    from avalanche_agcn.models.linear import MultiLabelClassifier
    from avalanche_agcn.models.random_features import RandomFeatures
    from avalanche_agcn.models.saved import load_model
    from avalanche_agcn.models.word_vectors import load_word_vectors

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
]

# Imported at first use: a GCN needs neither Avalanche nor torchvision, which take seconds.
_MODULES = {
    "AGCNModel": "agcn",
    "Backbone": "backbones",
    "GCN": "gcn",
    "MultiLabelClassifier": "linear",
    "Precomputed": "backbones",
    "RandomFeatures": "random_features",
    "create_backbone": "backbones",
    "load_model": "saved",
    "load_word_vectors": "word_vectors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
