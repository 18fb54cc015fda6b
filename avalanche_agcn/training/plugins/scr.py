"""The contrastive loss of supervised contrastive replay."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.distributed import process_rank
from avalanche_agcn.training.losses import TEMPERATURE, MultiLabelContrastiveLoss


class ContrastivePlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds a contrastive loss of the batch's features, as the model computed them for its logits.

    Args:
        weight: weight of the loss beside the criterion.
        temperature: see `MultiLabelContrastiveLoss`.
    """

    def __init__(self, *, weight: float = 1.0, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        check_range("weight", weight, least=0)
        self.weight, self.loss = weight, MultiLabelContrastiveLoss(temperature)
        self._features = OutputRecorder()

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Check that the model has features to contrast."""
        if not isinstance(getattr(unwrap(strategy.model), "backbone", None), nn.Module):
            raise TypeError(
                f"{type(strategy.model).__name__} has no backbone to take features from: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._features.start(unwrap(strategy.model).backbone)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the loss."""
        features = self._features.stop()
        assert features is not None
        loss = self.loss(_of_all_processes(features), _of_all_processes(strategy.mb_y))
        strategy.loss = strategy.loss + self.weight * loss


def _of_all_processes(rows: Tensor) -> Tensor:
    """Rows of the global batch, from which every process computes the same loss.

    Gradients flow to this process's own rows, multiplied by the number of processes, since
    `DistributedDataParallel` averages the gradients of all.
    """
    if not DistributedHelper.is_distributed:
        return rows
    rank, n_processes = process_rank()
    parts = DistributedHelper.gather_all(rows.detach())
    parts[rank] = n_processes * rows - (n_processes - 1) * rows.detach()
    return torch.cat(parts)
