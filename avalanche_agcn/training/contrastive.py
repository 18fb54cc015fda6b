"""A supervised contrastive loss for images with several, partly unknown, labels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEMPERATURE = 0.07  # of supervised contrastive replay (Mai et al., 2021)
_LEFT_OUT = -1e9  # its exponential is 0, and unlike infinity it makes no NaN in a row without any pair


class MultiLabelContrastiveLoss(nn.Module):
    """Draws images together as far as they share labels.

    With z the normalised features, τ the temperature and w_ij the Jaccard overlap of two images' labels
    (`label_overlap`), the loss of image i is the weighted mean, over the other images j, of
    −log(exp(z_i·z_j/τ) / Σ_a exp(z_i·z_a/τ)) with weights w_ij. If every image has one label, w is 0 or 1 and
    this is the single-label loss (Khosla et al., 2020). How SCR was made multi-label for the AGCN paper is
    not known: this is our adaptation.

    Two images that have no column annotated for both say nothing about each other: they are neither drawn
    together nor, as a in the sum, pushed apart. An image that shares no label with any other adds nothing.

    Args:
        temperature: τ.

    Raises:
        ValueError: if the temperature is not above 0.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(MultiLabelContrastiveLoss()(features, targets).item(), 4)  # as good as can be
        0.0
    """

    def __init__(self, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, but is {temperature}.")
        self.temperature = temperature

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the images that share a label with another; 0 if none does.

        Args:
            features: ``[B, D]``; they are normalised here.
            targets: 0, 1 or NaN, ``[B, n_classes]``.
        """
        z = F.normalize(features.float(), dim=1)
        overlap, comparable = label_overlap(targets)
        other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        weights = overlap * other
        logits = (z @ z.T / self.temperature).masked_fill(~(comparable & other), _LEFT_OUT)
        log_probabilities = logits - logits.logsumexp(dim=1, keepdim=True)
        totals = weights.sum(1)
        has_positive = totals > 0
        losses = -(weights * log_probabilities.masked_fill(weights == 0, 0.0)).sum(1)[has_positive]
        return (losses / totals[has_positive]).sum() / has_positive.sum().clamp(min=1)


def label_overlap(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Jaccard overlap of the labels of all pairs of images, on the columns annotated for both.

    Args:
        targets: 0, 1 or NaN, ``[B, n_classes]``.

    Returns:
        The overlap, ``[B, B]``, 0 where neither has a label; and whether a pair can be compared, ``[B, B]``:
        whether there is a column annotated for both.

    Example:
        >>> overlap, _ = label_overlap(torch.tensor([[1.0, 1.0, torch.nan], [1.0, 0.0, 1.0]]))
        >>> overlap
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """
    annotated = (~targets.isnan()).float()
    positive = targets.nan_to_num(0.0).float()
    both = positive @ positive.T
    either = positive @ annotated.T + annotated @ positive.T - both  # labels on the jointly annotated columns
    return both / either.clamp(min=1), annotated @ annotated.T > 0
