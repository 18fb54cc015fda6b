"""The expert, and the two losses that keep the student near it."""

import copy
import math
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.training.losses import (
    Reduction,
    check_reduction,
    distillation_loss,
    relationship_preserving_loss,
)

Model = TypeVar("Model", bound=nn.Module)

LAMBDA_CLS = 0.07  # λ₁, λ₂ and λ₃: the paper's Table 3
LAMBDA_DST = 0.93
LAMBDA_GPH = 1e5


class AGCNPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds AGCN's distillation and relationship-preserving losses (Eq. 7 to 9).

    When an experience with new classes begins, a frozen copy of the model becomes the expert. From
    then on the loss is λ₁ ℓ_cls + λ₂ ℓ_dst + λ₃ ℓ_gph; in the first experience it is ℓ_cls alone.
    ℓ_cls is what the strategy's criterion gave, so this plugin should stand before others that
    add to the loss.

    Args:
        lambda_cls: λ₁, weight of the criterion from the second experience on.
        lambda_dst: λ₂, weight of ℓ_dst; 0 leaves it out.
        lambda_gph: λ₃, weight of ℓ_gph; 0 leaves it out (the paper's Table 3, lines 1 to 3). The
            paper's 1e5 is for 65,000 images; a stream of 1,000 steps wants about 1e3.
        reduction: ``"mean"`` over classes for ℓ_cls and ℓ_dst (the authors' program), or ``"sum"``
            (Eq. 7 and 9): the more old classes there are, the more ℓ_dst then weighs.
        gph_reduction: ``"mean"`` over all entries of the embeddings (the authors' program, where
            λ₃ comes from), or ``"sum"`` (Eq. 8), up to 70,000 times as much.

    Raises:
        ValueError: if a weight is negative or all are 0, or a reduction unknown.

    Example:
        >>> from avalanche_agcn.training.plugins import ACMPlugin
        >>> plugins = [AGCNPlugin(lambda_gph=1e3), ACMPlugin()]  # for any Avalanche strategy
    """

    def __init__(
        self,
        *,
        lambda_cls: float = LAMBDA_CLS,
        lambda_dst: float = LAMBDA_DST,
        lambda_gph: float = LAMBDA_GPH,
        reduction: Reduction = "mean",
        gph_reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        check_reduction(gph_reduction)
        _check_weights(lambda_cls=lambda_cls, lambda_dst=lambda_dst, lambda_gph=lambda_gph)
        self.lambda_cls, self.lambda_dst, self.lambda_gph = lambda_cls, lambda_dst, lambda_gph
        self.reduction, self.gph_reduction = reduction, gph_reduction
        self.expert: AGCNModel | None = None
        self.expert_logits: Tensor | None = None  # of the current batch, [B, n_old]
        self._old_embeddings: Tensor | None = None  # G of the previous experience, [n_old, D]
        self._embeddings: Tensor | None = None  # H of the current step, [n_seen, D]
        self._listening: RemovableHandle | None = None
        self._saved_expert: dict[str, Tensor] = {}

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the expert: Avalanche's first call, when the model has not grown yet."""
        model = agcn_model(strategy)
        if 0 < model.n_seen < count_seen(strategy.experience):
            self.expert = None  # free its memory before the copy
            self.expert = frozen_copy(model)
        elif self._saved_expert:
            self.expert = frozen_copy(model)
            self.expert.load_state_dict(self._saved_expert)
        self._saved_expert = {}

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Compute the old embeddings once."""
        if self.expert is not None:
            with torch.no_grad():
                self._old_embeddings = self.expert.embeddings()

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Listen to the GCN during the forward pass, so that ℓ_gph needs no second one."""
        if self.expert is not None and self.lambda_gph:
            self._listening = agcn_model(strategy).gcn.register_forward_hook(self._keep)

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Ask the expert about the batch, once for the losses and the ACM."""
        if self._listening is not None:
            self._listening.remove()
            self._listening = None
        if self.expert is not None and self._old_embeddings is not None:
            with torch.no_grad(), getattr(strategy, "autocast", nullcontext)():
                features = self.expert.features(strategy.mb_x)
            # Its graph rests, so its classifiers are the old embeddings and need no pass a step.
            self.expert_logits = features.to(self._old_embeddings.dtype) @ self._old_embeddings.T

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Make the loss that of Eq. 9."""
        model = agcn_model(strategy)
        n_old = 0 if self.expert is None else self.expert.n_seen
        if self.reduction == "sum":
            strategy.loss = strategy.loss * (model.n_seen - n_old)
        if self.expert_logits is None or self._old_embeddings is None:
            return
        strategy.loss = self.lambda_cls * strategy.loss
        if self.lambda_dst:
            strategy.loss = strategy.loss + self.lambda_dst * distillation_loss(
                strategy.mb_output, self.expert_logits, reduction=self.reduction
            )
        if self.lambda_gph:
            assert self._embeddings is not None
            strategy.loss = strategy.loss + self.lambda_gph * relationship_preserving_loss(
                self._embeddings, self._old_embeddings, reduction=self.gph_reduction
            )
            self._embeddings = None  # and with it the graph of the step

    def state_dict(self) -> dict[str, Tensor]:
        """The expert's tensors; empty in the first experience."""
        return dict(self._saved_expert) if self.expert is None else self.expert.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over an expert; it is built from the strategy's model when training goes on."""
        self.expert, self._saved_expert = None, dict(state)
        self.expert_logits = self._old_embeddings = None

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._embeddings = output


def agcn_model(strategy: SupervisedTemplate) -> AGCNModel:
    """The model of a strategy, out of its wrapper for distributed training.

    Raises:
        TypeError: if it is not an `AGCNModel`.
    """
    model = unwrap(strategy.model)
    if not isinstance(model, AGCNModel):
        raise TypeError(
            f"AGCN needs a model with a label graph, not {type(model).__name__}: "
            "AGCNModel(backbone, load_word_vectors(benchmark.class_names))."
        )
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """A model out of its wrapper for distributed training."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def frozen_copy(model: Model) -> Model:
    """A copy in evaluation mode and without gradients."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _check_weights(**weights: float) -> None:
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"{name} must be a number that is not negative, but is {weight}.")
    if not any(weights.values()):
        raise ValueError(f"All of {sorted(weights)} are 0: nothing would be learned.")
