"""The contrastive loss of supervised contrastive replay."""

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from avalanche_agcn.training.contrastive import TEMPERATURE, MultiLabelContrastiveLoss
from avalanche_agcn.training.plugins.agcn import unwrap


class ContrastivePlugin(SupervisedPlugin):
    """Adds a contrastive loss of the batch's features, as the model computed them for its logits.

    Args:
        weight: of the loss beside the criterion.
        temperature: see `MultiLabelContrastiveLoss`.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(self, *, weight: float = 1.0, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f"weight must not be negative, but is {weight}.")
        self.weight, self.loss = weight, MultiLabelContrastiveLoss(temperature)
        self._features: Tensor | None = None
        self._handle: RemovableHandle | None = None

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Listen to the backbone, so that no image goes through it twice."""
        backbone = getattr(unwrap(strategy.model), "backbone", None)
        if not isinstance(backbone, nn.Module):
            raise TypeError(
                f"{type(strategy.model).__name__} has no backbone to take features from: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )
        self._stop_listening()
        self._handle = backbone.register_forward_hook(self._keep)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the loss."""
        assert self._features is not None
        strategy.loss = strategy.loss + self.weight * self.loss(self._features, strategy.mb_y)
        self._features = None

    def after_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Leave the model as it was."""
        self._stop_listening()

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._features = output

    def _stop_listening(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._features = None, None
