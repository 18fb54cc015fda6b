"""In place of a backbone where features were computed before."""

from torch import Tensor, nn


class Precomputed(nn.Module):
    """Passes features on, for heads that train on a `feature_benchmark`.

    Args:
        num_features: length of a feature vector.

    Example:
        >>> import torch
        >>> from avalanche_agcn.models import MultiLabelClassifier
        >>> model = MultiLabelClassifier(Precomputed(1280), 20)
        >>> model(torch.zeros(4, 1280)).shape
        torch.Size([4, 20])
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """The features themselves, ``[B, num_features]``.

        Raises:
            ValueError: if they are images, or of another length.
        """
        if x.ndim != 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"Expected features [B, {self.num_features}], got {tuple(x.shape)}: train and evaluate on a "
                "feature_benchmark made with the same backbone."
            )
        return x
