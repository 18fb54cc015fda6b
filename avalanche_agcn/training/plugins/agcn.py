"""AGCN's losses: a frozen teacher, and the two terms that keep the student near it."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen
from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.acm import AugmentedCorrelationMatrix
from avalanche_agcn.training.losses import Reduction, distillation_loss, relationship_preserving_loss
from avalanche_agcn.training.teacher import FrozenTeacher

LAMBDA_CLS = 0.07  # λ₁, λ₂ and λ₃: the paper's Table 3
LAMBDA_DST = 0.93
LAMBDA_GPH = 1e5


class AGCNPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds AGCN's distillation and relationship-preserving losses (Eq. 7 to 9).

    When an experience with new classes begins, a frozen copy of the model becomes the teacher (the paper's
    expert). From then on the loss is λ₁ ℓ_cls + λ₂ ℓ_dst + λ₃ ℓ_gph; in the first experience it is ℓ_cls
    alone. ℓ_cls is what the strategy's criterion returned, so this plugin must precede others that add to the
    loss.

    Args:
        lambda_cls: λ₁, weight of the criterion from the second experience on.
        lambda_dst: λ₂, weight of ℓ_dst; 0 leaves it out.
        lambda_gph: λ₃, weight of ℓ_gph; 0 leaves it out (the paper's Table 3, lines 1 to 3). The
            paper's 1e5 is for 65,000 images; a stream of 1,000 steps wants about 1e3.
        reduction: ``"mean"`` over classes for ℓ_cls and ℓ_dst (the authors' program), or ``"sum"``
            (Eq. 7 and 9): the more old classes there are, the more ℓ_dst then weighs.
        gph_reduction: ``"mean"`` over all entries of the embeddings (the authors' program, where
            λ₃ comes from), or ``"sum"`` (Eq. 8), up to 70,000 times as much.

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
        check_choice("reduction", reduction, Reduction)
        check_choice("gph_reduction", gph_reduction, Reduction)
        _check_weights(lambda_cls=lambda_cls, lambda_dst=lambda_dst, lambda_gph=lambda_gph)
        self.lambda_cls, self.lambda_dst, self.lambda_gph = lambda_cls, lambda_dst, lambda_gph
        self.reduction, self.gph_reduction = reduction, gph_reduction
        self.teacher = FrozenTeacher()
        self.teacher_logits: Tensor | None = None  # of the current batch, [B, n_old]
        self._old_embeddings: Tensor | None = None  # G of the previous experience, [n_old, D]
        self._n_labelled = 0  # classes that an image of the stream is labelled for
        self._embeddings = OutputRecorder()  # H of the current step, [n_seen, D]

    def before_train_dataset_adaptation(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Copy the teacher before the model grows."""
        agcn_model(strategy)
        if not any(
            isinstance(getattr(one, "acm", None), AugmentedCorrelationMatrix) for one in strategy.plugins
        ):
            raise ValueError(
                "AGCNPlugin needs the label graph that ACMPlugin counts: use plugins=[AGCNPlugin(...), "
                "ACMPlugin()], or the strategy AGCN."
            )
        self.teacher.begin_experience(strategy)

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Compute the old embeddings once: the teacher's graph does not change."""
        target = strategy.experience.dataset.targets[0]  # type: ignore[attr-defined]
        self._n_labelled = int((~target[: count_seen(strategy.experience)].isnan()).sum())
        if self.teacher.n_old:
            with torch.no_grad():
                self._old_embeddings = self.teacher.model.embeddings()

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Record the embeddings of the forward pass, so that ℓ_gph needs no second one."""
        if self.teacher.n_old and self.lambda_gph:
            self._embeddings.start(agcn_model(strategy).gcn)

    def after_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Ask the teacher about the batch, once for the losses and the ACM."""
        self.ask_teacher(strategy)

    def ask_teacher(self, strategy: SupervisedTemplate) -> None:
        """Compute the teacher's logits of the current batch; its features are computed once per batch."""
        if self._old_embeddings is not None:
            features = self.teacher.features(strategy)
            self.teacher_logits = features.to(self._old_embeddings.dtype) @ self._old_embeddings.T

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Compute the loss of Eq. 9."""
        if self.reduction == "sum":
            strategy.loss = strategy.loss * self._n_labelled
        if self.teacher_logits is None or self._old_embeddings is None:
            return
        strategy.loss = self.lambda_cls * strategy.loss
        if self.lambda_dst:
            strategy.loss = strategy.loss + self.lambda_dst * distillation_loss(
                strategy.mb_output, self.teacher_logits, reduction=self.reduction
            )
        embeddings = self._embeddings.stop()
        if embeddings is not None:
            strategy.loss = strategy.loss + self.lambda_gph * relationship_preserving_loss(
                embeddings, self._old_embeddings, reduction=self.gph_reduction
            )

    def state_dict(self) -> dict[str, Tensor]:
        """The teacher's state."""
        return self.teacher.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the teacher."""
        self.teacher.load_state_dict(state)
        self.teacher_logits = self._old_embeddings = None


def agcn_model(strategy: SupervisedTemplate) -> AGCNModel:
    """Return the `AGCNModel` of a strategy; a TypeError if it is not an `AGCNModel`."""
    model = unwrap(strategy.model)
    if not isinstance(model, AGCNModel):
        raise TypeError(
            f"AGCN needs a model with a label graph, not {type(model).__name__}: "
            "AGCNModel(backbone, load_word_vectors(benchmark.class_names))."
        )
    return model


def _check_weights(**weights: float) -> None:
    for name, weight in weights.items():
        check_range(name, weight, least=0)
    if not any(weights.values()):
        raise ValueError(f"All of {sorted(weights)} are 0: nothing would be learned.")
