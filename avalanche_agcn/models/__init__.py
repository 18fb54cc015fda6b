"""Backbones, and the models built from them."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from avalanche_agcn.agcn.gcn import GCN
    from avalanche_agcn.agcn.model import AGCNModel
    from avalanche_agcn.models.backbones import Backbone, Precomputed, RandomFeatures, create_backbone
    from avalanche_agcn.models.export import export_model
    from avalanche_agcn.models.linear import MultiLabelClassifier
    from avalanche_agcn.models.saved import load_model, save_model
    from avalanche_agcn.models.word_vectors import load_word_vectors

__all__ = [
    "GCN",
    "AGCNModel",
    "Backbone",
    "MultiLabelClassifier",
    "Precomputed",
    "RandomFeatures",
    "create_backbone",
    "export_model",
    "load_model",
    "load_word_vectors",
    "save_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "agcn.gcn": "GCN",
        "agcn.model": "AGCNModel",
        "models.backbones": "Backbone Precomputed RandomFeatures create_backbone",
        "models.export": "export_model",
        "models.linear": "MultiLabelClassifier",
        "models.saved": "load_model save_model",
        "models.word_vectors": "load_word_vectors",
    },
)
