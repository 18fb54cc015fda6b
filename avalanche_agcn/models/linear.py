"""A linear classifier over a backbone, for the baselines."""

from typing import Any

import torch
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import MultiLabelExperience, count_seen
from avalanche_agcn.models.backbones import count_features
from avalanche_agcn.models.base import (
    LR_AUXILIARY,
    LR_BACKBONE,
    LR_HEAD,
    Classifiers,
    GrowingLinear,
    MultiLabelModel,
    use_outputs,
)


class MultiLabelClassifier(MultiLabelModel):
    """Backbone and one linear layer; returns logits of the classes seen so far.

    The layer has an output for every class from the start, so that no parameter is ever added. Avalanche's
    strategies call `adaptation` before they train on an experience; before the first call, the model returns
    logits of all classes.

    ``n_classes`` is the number of classes in the whole stream. For ``backbone`` and the auxiliary head that
    ``decoupled`` adds see `MultiLabelModel`.
    """

    def __init__(self, backbone: nn.Module, n_classes: int, *, decoupled: bool = False) -> None:
        super().__init__(backbone, n_auxiliary=n_classes if decoupled else 0)
        self.classifier = nn.Linear(count_features(backbone), n_classes)
        self.refinement: nn.Module | None = None
        self._seen: int | None = None

    @property
    def n_seen(self) -> int:
        """Number of logits."""
        return self.classifier.out_features if self._seen is None else self._seen

    def classifiers(self) -> Classifiers:
        """The rows of the layer for the classes seen so far."""
        return Classifiers(self.classifier.weight[: self.n_seen], self.classifier.bias[: self.n_seen])

    def logits(self, features: Tensor, classifiers: Classifiers | None = None) -> Tensor:
        """Logits of features ``[B, D]`` by the layer itself, refined if the model has a `LogitRefinement`."""
        use_outputs(self.classifier, self.n_seen)
        logits = self.classifier(features.to(self.classifier.weight.dtype))[:, : self.n_seen]
        return logits if self.refinement is None else self.refinement(logits)

    def parameter_groups(
        self,
        *,
        lr_backbone: float = LR_BACKBONE,
        lr_head: float = LR_HEAD,
        lr_auxiliary: float = LR_AUXILIARY,
    ) -> list[dict[str, Any]]:
        """Parameters for an optimizer; a layer with random initial weights needs a higher rate."""
        return self._group_parameters(self.classifier, lr_backbone, lr_head, lr_auxiliary)

    def add_classes(self, n_new: int, generator: torch.Generator | None = None) -> None:
        """Add classes that were not known when the model was made; then make a new optimizer.

        Their weights are drawn as those of a new layer, from the generator or else from torch's own.
        """
        width = self.classifier.in_features
        drawn = 2 * torch.rand(n_new, width + 1, generator=generator) - 1  # weights and bias, in [-1, 1)
        drawn *= width**-0.5
        self.classifier = GrowingLinear(self.classifier, drawn[:, :-1], drawn[:, -1])
        self._add_auxiliary_rows(n_new)

    @torch.no_grad()
    def set_classifiers(self, weight: Tensor, bias: Tensor, refinement: nn.Module | None = None) -> None:
        """Replace the classifiers of the first n classes: ``weight [n, D]``, ``bias [n]``, refinement."""
        self.classifier.weight[: len(weight)] = weight.to(self.classifier.weight)
        self.classifier.bias[: len(bias)] = bias.to(self.classifier.bias)
        self.refinement = None if refinement is None else refinement.to(self.classifier.weight)

    def adaptation(self, experience: MultiLabelExperience) -> None:
        """Add the new classes of an experience, in training mode only."""
        seen = count_seen(experience) if self.training else 0
        if seen > self.classifier.out_features:
            raise ValueError(
                f"The stream has {seen} classes so far, but the model was made for "
                f"{self.classifier.out_features}: pass n_classes=benchmark.n_classes, or call "
                "add_classes(...) and make a new optimizer."
            )
        if seen > (self._seen or 0):
            self._seen = seen
            self.refinement = None  # it covers the previous classes only

    def get_extra_state(self) -> Tensor:
        """Number of classes seen, for ``state_dict``."""
        return torch.tensor(-1 if self._seen is None else self._seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the number of classes seen, from ``load_state_dict``."""
        self._seen = None if state < 0 else int(state)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        """Create the refinement that was saved, if any, before its tensors are loaded."""
        n = len(state_dict.get(f"{prefix}refinement.origin", ()))
        self.refinement = LogitRefinement(torch.zeros(n), torch.zeros(n), torch.zeros(n, n)) if n else None
        super()._load_from_state_dict(state_dict, prefix, *args)


class LogitRefinement(nn.Module):
    """Raises the logits of classes that often occur together with the classes found in an image.

    With u = (logit − origin) / unit, which is about 0 for negatives and 1 for positives of every class, the
    logit of class i grows by unit_i · Σ_j gain_ij clip(u_j, 0, 1).

    Args:
        origin: logit of each class at u = 0, ``[n]``.
        unit: difference between the logits at u = 1 and u = 0, ``[n]``; a class with 0 is ignored.
        gain: ``[n, n]``, zero on the diagonal.
    """

    origin: Tensor
    unit: Tensor
    gain: Tensor

    def __init__(self, origin: Tensor, unit: Tensor, gain: Tensor) -> None:
        super().__init__()
        self.register_buffer("origin", origin)
        self.register_buffer("unit", unit)
        self.register_buffer("gain", gain)

    def forward(self, logits: Tensor) -> Tensor:
        """Refined logits, ``[B, n]``."""
        found = torch.where(self.unit > 0, (logits - self.origin) / self.unit, 0.0).clamp(0, 1)
        return logits + self.unit * (found @ self.gain.T)


class Familiarity(nn.Module):
    """Lowers all logits of images that are unlike the training images, such as black ones or noise.

    With m the mean feature of the training images, f·m / m·m is 1 on average. ``weight`` and ``bias`` make it
    z = f·weight + bias, with mean 0 and standard deviation 1 over the training images. Images with z below
    −`LIMIT` have little in common with them: their logits are at most 0, and lower by `SLOPE` for each unit.

    Args:
        mean: m, ``[D]``.
        mean_square: mean of (f·m)² over the training images.
    """

    LIMIT = 3.0
    SLOPE = 20.0
    weight: Tensor
    bias: Tensor

    def __init__(self, mean: Tensor, mean_square: Tensor) -> None:
        super().__init__()
        length = (mean @ mean).clamp(min=torch.finfo(mean.dtype).tiny)
        deviation = (mean_square / length**2 - 1).clamp(min=1e-12).sqrt()
        self.register_buffer("weight", mean / (length * deviation))
        self.register_buffer("bias", -1 / deviation)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        """Logits ``[B, n]`` of features ``[B, D]``, lower where the features are unfamiliar."""
        z = features.to(self.weight.dtype) @ self.weight + self.bias
        below = (z + self.LIMIT)[:, None].to(logits.dtype)
        return torch.where(below < 0, torch.minimum(logits, self.SLOPE * below), logits)
