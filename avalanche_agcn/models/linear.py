"""A linear classifier over a backbone, for the baselines."""

from typing import Any

import torch
from avalanche.benchmarks.scenarios.generic_scenario import CLExperience
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.models.base import count_features
from avalanche_agcn.models.groups import group_parameters


class MultiLabelClassifier(DynamicModule):
    """Backbone and one linear layer; gives logits of the classes seen so far.

    The layer has an output for every class from the start, so that no parameter is ever added.
    Avalanche's strategies tell the model of each experience they train on; before the first, and
    outside Avalanche, logits of all classes are given.

    Args:
        backbone: network from images to ``[B, D]``, with D as its attribute ``num_features``.
        n_classes: number of classes in the whole stream.

    Raises:
        ValueError: if the backbone has no ``num_features``.

    Example:
        >>> from avalanche_agcn.models import create_backbone
        >>> model = MultiLabelClassifier(create_backbone("small"), 20)
        >>> model(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 20])
    """

    def __init__(self, backbone: nn.Module, n_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(count_features(backbone), n_classes)
        self._seen: int | None = None

    @property
    def n_seen(self) -> int:
        """Number of logits."""
        return self.classifier.out_features if self._seen is None else self._seen

    def features(self, x: Tensor) -> Tensor:
        """Features of images, ``[B, D]``."""
        return self.backbone(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes seen so far, ``[B, n_seen]``."""
        features = self.features(x)
        with torch.autocast(
            features.device.type, enabled=False
        ):  # or thousands of images would have one score
            logits = self.classifier(features.to(self.classifier.weight.dtype))
        return logits[:, : self.n_seen]

    def parameter_groups(self, *, lr_backbone: float, lr_head: float) -> list[dict[str, Any]]:
        """Parameters for an optimizer, with a learning rate for each part.

        A layer that starts from nothing wants a higher one than a network that was trained before.

        Example:
            >>> from avalanche_agcn.models import create_backbone
            >>> model = MultiLabelClassifier(create_backbone("small"), 20)
            >>> optimizer = torch.optim.Adam(model.parameter_groups(lr_backbone=3e-5, lr_head=1e-3))
        """
        return group_parameters((self.backbone, lr_backbone), (self.classifier, lr_head))

    def adaptation(self, experience: CLExperience) -> None:
        """Avalanche's call before an experience; evaluation does not make the model grow.

        Raises:
            ValueError: if the experience has more classes than the model.
        """
        if not self.training:
            return
        seen = count_seen(experience)
        if seen > self.classifier.out_features:
            raise ValueError(
                f"The stream has {seen} classes by now, but the model was made for "
                f"{self.classifier.out_features}: give it n_classes=benchmark.n_classes."
            )
        self._seen = max(seen, self._seen or 0)

    def get_extra_state(self) -> Tensor:
        """The number of classes seen, for ``state_dict``."""
        return torch.tensor(-1 if self._seen is None else self._seen)

    def set_extra_state(self, state: Tensor) -> None:
        """The number of classes seen, from ``load_state_dict``."""
        self._seen = None if state < 0 else int(state)
