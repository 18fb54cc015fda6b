"""AGCN in a training step: its loss against a frozen teacher (`AGCNPlugin`), and its graph (`ACMPlugin`)."""

from typing import Any, Literal

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix, QCounts
from avalanche_agcn.agcn.graph import Graph, GraphOptions, adjacency
from avalanche_agcn.agcn.losses import distillation_loss, relationship_preserving_loss
from avalanche_agcn.agcn.model import AGCNModel
from avalanche_agcn.agcn.official import HARD_START, SOFT_START
from avalanche_agcn.checks import check_choice
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.losses import Reduction, check_loss_weights, labels_per_image
from avalanche_agcn.training.memory import stream_targets
from avalanche_agcn.training.plugin import find_plugin
from avalanche_agcn.training.statistics.counter import StreamCounter
from avalanche_agcn.training.statistics.sums import in_float64
from avalanche_agcn.training.teacher import TeacherPlugin

PAPER_WEIGHTS = {"lambda_cls": 0.07, "lambda_dst": 0.93, "lambda_gph": 1e5}  # λ₁, λ₂ and λ₃: its Table 3

Preset = Literal["paper", "official"]
SoftLabels = Literal["sigmoid", "softmax"]


class AGCNPlugin(TeacherPlugin):
    """Adds AGCN's distillation and relationship-preserving losses (Eq. 7 to 9).

    When an experience with new classes begins, a frozen copy of the model becomes the teacher (the paper's
    expert). From then on the loss is λ₁ ℓ_cls + λ₂ ℓ_dst + λ₃ ℓ_gph; in the first experience it is ℓ_cls
    alone. ℓ_cls is the strategy's criterion, so this plugin must precede others that add to the loss.

    Args:
        lambda_cls: λ₁, weight of the criterion from the second experience on.
        lambda_dst: λ₂, weight of ℓ_dst.
        lambda_gph: λ₃, weight of ℓ_gph. The paper's 1e5 is for 65,000 images; use about 1e3 for 8,000.
        reduction: ``"mean"`` over classes for ℓ_cls and ℓ_dst (the authors' code), or ``"sum"``
            (Eq. 7 and 9): ℓ_dst then weighs more, the more old classes there are.
        gph_reduction: ``"mean"`` over all entries of the embeddings (the authors' code, where
            λ₃ comes from), or ``"sum"`` (Eq. 8), about 70,000 times as much.
    """

    def __init__(
        self,
        *,
        lambda_cls: float = PAPER_WEIGHTS["lambda_cls"],
        lambda_dst: float = PAPER_WEIGHTS["lambda_dst"],
        lambda_gph: float = PAPER_WEIGHTS["lambda_gph"],
        reduction: Reduction = "mean",
        gph_reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_loss_weights(lambda_cls=lambda_cls, lambda_dst=lambda_dst, lambda_gph=lambda_gph)
        check_choice("reduction", reduction, Reduction)
        check_choice("gph_reduction", gph_reduction, Reduction)
        self.lambda_cls, self.lambda_dst, self.lambda_gph = lambda_cls, lambda_dst, lambda_gph
        self.reduction, self.gph_reduction = reduction, gph_reduction
        self._embeddings = OutputRecorder()  # H of the current step, [n_seen, D]

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check that there is a graph; copy the teacher before the model grows."""
        AGCNModel.of(strategy)
        if find_plugin(strategy, ACMPlugin) is None:
            raise ValueError("AGCNPlugin needs the label graph that ACMPlugin counts: pass both as plugins.")
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the embeddings of the forward pass, so that ℓ_gph needs no second one."""
        if self.teacher.n_old and self.lambda_gph:
            self._embeddings.start(AGCNModel.of(strategy).gcn)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the loss: Eq. 9, or ℓ_cls alone in the first experience."""
        loss_cls = strategy.loss  # so far the criterion's value, without old classes: their targets are NaN
        if self.reduction == "sum":
            loss_cls = loss_cls * labels_per_image(strategy.mb_output, strategy.mb_y)
        if self.teacher.n_old == 0:
            strategy.loss = loss_cls
            return
        loss_dst = loss_gph = torch.zeros((), device=strategy.device)
        if self.lambda_dst:
            teacher_logits = self.teacher.logits(strategy)  # ẑ before σ
            loss_dst = distillation_loss(strategy.mb_output, teacher_logits, reduction=self.reduction)
        if self.lambda_gph:
            embeddings = self._embeddings.stop()  # H^t, recorded since before_forward
            old_embeddings = self.teacher.classifiers().weight  # G^{t-1}, [n_old, D]
            loss_gph = relationship_preserving_loss(embeddings, old_embeddings, reduction=self.gph_reduction)
        strategy.loss = self.lambda_cls * loss_cls + self.lambda_dst * loss_dst + self.lambda_gph * loss_gph


class ACMPlugin(StreamCounter):
    """Counts label relations batch by batch and keeps the graph of an `AGCNModel` up to date.

    Old classes have no labels in a batch; their soft labels come from the teacher of the strategy's
    `AGCNPlugin`. Without that plugin, classes of different experiences have no relations. With several epochs
    every image counts once per epoch, which does not change the probabilities of hard labels. Batches of an
    experience that is not the newest one do not count: the relations of its classes are frozen.

    Args:
        preset: ``"paper"`` or ``"official"``, the authors' code: sets the initial values of the sums, and
            each of ``soft_labels``, ``graph`` and ``count_before_step`` that is None.
        soft_labels: ``"sigmoid"`` of the teacher's logits (the paper) or their ``"softmax"`` (authors' code).
        graph: how relations become a graph: the ``preset`` of `adjacency`.
        options: further options of the graph.
        q_counts: see `AugmentedCorrelationMatrix`.
        count_before_step: whether a batch is counted before its own forward pass (authors' code), or after
            its step, so that it changes the graph from the next step on.
    """

    def __init__(
        self,
        *,
        preset: Preset = "paper",
        soft_labels: SoftLabels | None = None,
        graph: Graph | None = None,
        options: GraphOptions | None = None,
        q_counts: QCounts = "experience",
        count_before_step: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("preset", preset, Preset)
        is_official = preset == "official"
        self.graph: Graph = preset if graph is None else graph
        self.options = options or GraphOptions()
        self.options.check(self.graph)
        self.soft_labels = soft_labels or ("softmax" if is_official else "sigmoid")
        check_choice("soft_labels", self.soft_labels, SoftLabels)
        self.count_before_step = is_official if count_before_step is None else count_before_step
        starts = {"hard_start": HARD_START, "soft_start": SOFT_START} if is_official else {}
        self.acm = self.statistics = AugmentedCorrelationMatrix(q_counts=q_counts, **starts)

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience in the sums, unless it is open already, and give the model its graph."""
        super().before_training_exp(strategy, **kwargs)
        self._update_graph(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Count the batch before its step."""
        if self.count_before_step:
            self._count(strategy)

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Count the batch after its step."""
        if not self.count_before_step:
            self._count(strategy)

    def _count(self, strategy: SupervisedTemplate) -> None:
        """Add the batch to the sums of Eq. 2 to 4, and give the model its new graph."""
        if not self.counting:
            return
        targets_new = stream_targets(strategy)[:, self.columns]
        self.acm.update(targets_new, self._soft_labels(strategy), reduce=True)
        self._update_graph(strategy)

    def _soft_labels(self, strategy: SupervisedTemplate) -> Tensor | None:
        """ẑ, the teacher's probabilities of the old classes, ``[B, n_old]``; None without a teacher."""
        agcn = find_plugin(strategy, AGCNPlugin)
        if agcn is None or agcn.teacher.n_old == 0:
            return None
        logits = in_float64(agcn.teacher.logits(strategy))
        return logits.sigmoid() if self.soft_labels == "sigmoid" else logits.softmax(dim=1)

    def _update_graph(self, strategy: SupervisedTemplate) -> None:
        model = unwrap(strategy.model)
        if isinstance(model, AGCNModel):
            model.set_graph(adjacency(self.acm, self.graph, self.options))
