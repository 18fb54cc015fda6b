"""The interface of all models: features, one classifier per seen class, logits."""

from typing import Any, NamedTuple

import torch
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_agcn.models.backbones import count_features
from avalanche_agcn.models.forward import unwrap

LR_BACKBONE = 1e-4  # of Adam; the authors' code
LR_HEAD = 3e-3  # of a linear head with random initial weights
LR_AUXILIARY = 1e-3  # chosen on held-out train photos of coco18: with 3e-3 the network oscillates
PER_CLASS = ("auxiliary.", "classifier.", "word_vectors")  # layers and buffers with one row per class
OBSOLETE = ("past_graphs", "past_sizes")  # in states of version 0.1


class Classifiers(NamedTuple):
    """Linear classifiers of the classes seen so far: weight ``[n_seen, D]`` and bias ``[n_seen]``."""

    weight: Tensor
    bias: Tensor | None


class GrowingLinear(nn.Linear):
    """A linear layer with outputs for classes that were added to it, block after block.

    It computes the blocks up to ``n_used`` outputs only, so that a block that is not in use yet does not even
    change the rounding of others: results are those of the layer before it was added.
    """

    def __init__(self, layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
        """The outputs of a layer, then further ones: ``weight [n, D]`` and ``bias [n]``."""
        super().__init__(layer.in_features, layer.out_features + len(weight), device="meta")
        self.weight = nn.Parameter(torch.cat([layer.weight.detach(), weight.to(layer.weight)]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach(), bias.to(layer.bias)]))
        self.block_ends = [*getattr(layer, "block_ends", [layer.out_features]), self.out_features]
        self.n_used = self.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of all blocks that are in use."""
        end = next(end for end in self.block_ends if self.n_used <= end)
        return nn.functional.linear(x, self.weight[:end], self.bias[:end])


class MultiLabelModel(DynamicModule):
    """Logits of the classes seen so far: features times one weight vector per class.

    Subclasses implement `n_seen` and `classifiers`, and have `parameter_groups` with a learning rate for each
    part. No parameter grows with the classes, so optimizers and distributed training are unaffected.

    Args:
        backbone: network from images to ``[B, D]``, with D as its attribute ``num_features``.
        n_auxiliary: outputs of an auxiliary head that trains the backbone, while the classifiers are trained
            on detached features (`DecoupledTrainingPlugin`); 0 for none.
    """

    resized_buffers: tuple[str, ...] = ()
    """Buffers of the model itself that take the size of the saved ones when a state is loaded."""
    example = ""
    """Code that makes such a model, for messages."""

    def __init__(self, backbone: nn.Module, *, n_auxiliary: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.auxiliary = nn.Linear(count_features(backbone), n_auxiliary) if n_auxiliary else None
        if self.auxiliary is not None:  # zeros, so that rows of future classes do not affect the backbone
            nn.init.zeros_(self.auxiliary.weight)
            nn.init.zeros_(self.auxiliary.bias)

    @classmethod
    def of(cls, strategy: Any) -> Any:
        """Return the model of a strategy; a TypeError if it is of another class."""
        model = unwrap(strategy.model)
        if not isinstance(model, cls):
            found = type(model).__name__
            raise TypeError(f"The method needs a model of class {cls.__name__}, not {found}: {cls.example}.")
        return model

    @property
    def n_seen(self) -> int:
        """Number of classes seen so far, and of logits."""
        raise NotImplementedError

    def classifiers(self) -> Classifiers:
        """Classifiers of the classes seen so far, with gradients to the parameters they come from."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """Features of images, ``[B, D]``."""
        return self.backbone(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes seen so far, ``[B, n_seen]``; only the backbone runs under autocast."""
        features = self.features(x)
        if self.auxiliary is not None:
            if self.training:
                use_outputs(self.auxiliary, self.n_seen)
                self.auxiliary(features)  # recorded by DecoupledTrainingPlugin
            features = features.detach()
        with torch.autocast(features.device.type, enabled=False):  # or thousands of images share a score
            return self.logits(features)

    def logits(self, features: Tensor, classifiers: Classifiers | None = None) -> Tensor:
        """Logits of features ``[B, D]``; pass the classifiers if they are known already."""
        weight, bias = self.classifiers() if classifiers is None else classifiers
        return nn.functional.linear(features.to(weight.dtype), weight, bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: object) -> None:
        """Accept a state with fewer classes: the remaining rows keep their values."""
        for name in OBSOLETE:
            state_dict.pop(prefix + name, None)
        for name, values in [*self.named_parameters(), *self.named_buffers()]:
            saved = state_dict.get(prefix + name)
            if saved is None:
                continue
            if name in self.resized_buffers:
                setattr(self, name, values.new_empty(saved.shape))
            elif name.startswith(PER_CLASS) and len(saved) < len(values):
                remaining = values[len(saved) :].detach().to(saved)
                state_dict[prefix + name] = torch.cat([saved, remaining])
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[arg-type]

    def _add_auxiliary_rows(self, n_new: int) -> None:
        """Add outputs of further classes to the auxiliary head, if there is one; zeros, as in a new model."""
        if self.auxiliary is not None:
            weight = torch.zeros(n_new, self.auxiliary.in_features)
            self.auxiliary = GrowingLinear(self.auxiliary, weight, torch.zeros(n_new))

    def _group_parameters(self, head: nn.Module, *rates: float) -> list[dict[str, Any]]:
        """Parameter groups of backbone, head and auxiliary head; parts without parameters have none."""
        groups = []
        for part, rate in zip((self.backbone, head, self.auxiliary), rates, strict=True):
            parameters = [] if part is None else list(part.parameters())
            if parameters:
                groups.append({"params": parameters, "lr": rate})
        return groups


def use_outputs(layer: nn.Linear, n_seen: int) -> None:
    """Tell a layer that grew how many of its outputs are in use."""
    if isinstance(layer, GrowingLinear):
        layer.n_used = n_seen
