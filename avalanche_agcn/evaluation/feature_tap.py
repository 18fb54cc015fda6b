"""Scores of every saved graph from the one pass through the backbone that evaluation makes anyway."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FeatureTap"]


class FeatureTap:
    """Catches what a model's backbone computes and gives it to ``model.nested_logits(features=…)``.

    Args:
        model: Has a module ``backbone`` and a method ``nested_logits(features=…)`` that returns one
            [B, C_i] for each experience so far, as `AGCNModel` does.

    Raises:
        ValueError: If it does not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = cast(Any, model.module if isinstance(model, DistributedDataParallel) else model)
        if not (hasattr(self._model, "nested_logits") and hasattr(self._model, "backbone")):
            raise ValueError(
                f"saved_graphs=True needs a model with `backbone` and `nested_logits`, as AGCNModel has, "
                f"not {type(self._model).__name__}"
            )
        self._features: Tensor | None = None
        self._handle = self._model.backbone.register_forward_hook(self._catch)

    def nested_logits(self) -> list[Tensor]:
        """Logits of the last batch as each saved graph gives them."""
        return self._model.nested_logits(features=self._features)

    def remove(self) -> None:
        """Leave the model as it was."""
        self._handle.remove()

    def _catch(self, module: nn.Module, inputs: Any, features: Tensor) -> None:
        self._features = features
