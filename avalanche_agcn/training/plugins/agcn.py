"""AGCN: losses against a frozen teacher (`AGCNPlugin`), and the graph of label relations (`ACMPlugin`)."""

from functools import partial
from typing import Any, Literal, get_args

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_no_skipped_experience, count_seen
from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training.acm import OFFICIAL_STARTS, AugmentedCorrelationMatrix, QCounts
from avalanche_agcn.training.graph import NEIGHBOUR_WEIGHT, Graph, adjacency
from avalanche_agcn.training.losses import Reduction, distillation_loss, relationship_preserving_loss
from avalanche_agcn.training.moment_sums import in_float64
from avalanche_agcn.training.plugins.distillation import TeacherPlugin
from avalanche_agcn.training.plugins.replay import check_replayed_rows_are_known, find_memory

PAPER_WEIGHTS = {"lambda_cls": 0.07, "lambda_dst": 0.93, "lambda_gph": 1e5}  # λ₁, λ₂ and λ₃: its Table 3

Preset = Literal["paper", "official"]
SoftLabels = Literal["sigmoid", "softmax"]


class AGCNPlugin(TeacherPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds AGCN's distillation and relationship-preserving losses (Eq. 7 to 9).

    When an experience with new classes begins, a frozen copy of the model becomes the teacher (the paper's
    expert). From then on the loss is λ₁ ℓ_cls + λ₂ ℓ_dst + λ₃ ℓ_gph; in the first experience it is ℓ_cls
    alone. ℓ_cls is the value of the strategy's criterion, so this plugin must precede others that add to the
    loss.

    Args:
        lambda_cls: λ₁, weight of the criterion from the second experience on.
        lambda_dst: λ₂, weight of ℓ_dst.
        lambda_gph: λ₃, weight of ℓ_gph. The paper's 1e5 is for 65,000 images; use about 1e3 for 1,000 steps.
        reduction: ``"mean"`` over classes for ℓ_cls and ℓ_dst (the authors' code), or ``"sum"``
            (Eq. 7 and 9): ℓ_dst then weighs more, the more old classes there are.
        gph_reduction: ``"mean"`` over all entries of the embeddings (the authors' code, where
            λ₃ comes from), or ``"sum"`` (Eq. 8), up to 70,000 times as much.
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
        check_choice("reduction", reduction, Reduction)
        check_choice("gph_reduction", gph_reduction, Reduction)
        weights = {"lambda_cls": lambda_cls, "lambda_dst": lambda_dst, "lambda_gph": lambda_gph}
        for name, weight in weights.items():
            check_range(name, weight, least=0)
        if not any(weights.values()):
            raise ValueError(f"All of {sorted(weights)} are 0, so nothing would be learned: set one above 0.")
        self.lambda_cls, self.lambda_dst, self.lambda_gph = lambda_cls, lambda_dst, lambda_gph
        self.reduction, self.gph_reduction = reduction, gph_reduction
        self._n_labelled = 0  # classes that an image of the stream is labelled for
        self._embeddings = OutputRecorder()  # H of the current step, [n_seen, D]

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check that there is a graph, count the classes, and copy the teacher before the model grows."""
        agcn_model(strategy)
        if not any(isinstance(plugin, ACMPlugin) for plugin in strategy.plugins):
            raise ValueError(
                "AGCNPlugin needs the label graph that ACMPlugin counts: use plugins=[AGCNPlugin(...), "
                "ACMPlugin()], or the strategy AGCN."
            )
        target = strategy.experience.dataset.targets[0]  # type: ignore[attr-defined]
        self._n_labelled = int((~target[: count_seen(strategy.experience)].isnan()).sum())
        super().before_train_dataset_adaptation(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the embeddings of the forward pass, so that ℓ_gph needs no second one."""
        if self.teacher.n_old and self.lambda_gph:
            self._embeddings.start(agcn_model(strategy).gcn)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the loss of Eq. 9."""
        if self.reduction == "sum":
            strategy.loss = strategy.loss * self._n_labelled
        if not self.teacher.n_old:
            return
        strategy.loss = self.lambda_cls * strategy.loss
        if self.lambda_dst:
            logits = self.teacher.logits(strategy)
            distillation = distillation_loss(strategy.mb_output, logits, reduction=self.reduction)
            strategy.loss = strategy.loss + self.lambda_dst * distillation
        if self.lambda_gph:
            pair = self._embeddings.stop(), self.teacher.embeddings()
            preservation = relationship_preserving_loss(*pair, reduction=self.gph_reduction)
            strategy.loss = strategy.loss + self.lambda_gph * preservation

    def teacher_logits(self, strategy: SupervisedTemplate) -> Tensor | None:
        """The teacher's logits of the current batch, ``[B, n_old]``; None in the first experience."""
        return self.teacher.logits(strategy) if self.teacher.n_old else None


def agcn_model(strategy: SupervisedTemplate) -> AGCNModel:
    """Return the `AGCNModel` of a strategy; a TypeError if it has another model."""
    model = unwrap(strategy.model)
    if not isinstance(model, AGCNModel):
        raise TypeError(
            f"AGCN needs a model with a label graph, not {type(model).__name__}: "
            "AGCNModel(backbone, load_word_vectors(benchmark.class_names))."
        )
    return model


class ACMPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Counts label relations batch by batch and keeps the graph of an `AGCNModel` up to date.

    Old classes have no labels in a batch; their soft labels come from the teacher of the strategy's
    `AGCNPlugin`. Without that plugin, classes of different experiences have no relations. With several epochs
    every image counts once per epoch, which does not change the probabilities of hard labels.

    ``cross_blocks``, ``neighbour_weight`` and the thresholds are arguments of `adjacency`; ``q_counts`` and
    the starts are arguments of `AugmentedCorrelationMatrix`.

    Args:
        preset: ``"paper"`` or ``"official"``, the authors' code: sets each of ``soft_labels``, ``graph``,
            ``hard_start``, ``soft_start`` and ``count_before_step`` that is None.
        soft_labels: ``"sigmoid"`` of the teacher's logits (the paper) or their ``"softmax"`` (the program).
        graph: how relations become a graph: the ``preset`` of `adjacency`.
        count_before_step: whether a batch is counted before its own forward pass (the program), or after its
            step, so that it changes the graph from the next step on (the paper).
    """

    def __init__(
        self,
        *,
        preset: Preset = "paper",
        soft_labels: SoftLabels | None = None,
        graph: Graph | None = None,
        cross_blocks: bool = True,
        neighbour_weight: float = NEIGHBOUR_WEIGHT,
        new_threshold: float | None = None,
        cross_threshold: float | None = None,
        q_counts: QCounts = "experience",
        hard_start: float | None = None,
        soft_start: float | None = None,
        count_before_step: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("preset", preset, Preset)
        official = preset == "official"
        self.soft_labels = soft_labels or ("softmax" if official else "sigmoid")
        self.count_before_step = official if count_before_step is None else count_before_step
        check_choice("soft_labels", self.soft_labels, SoftLabels)
        check_choice("graph", graph, [None, *get_args(Graph)])
        starts = OFFICIAL_STARTS if official else {}
        given = {"hard_start": hard_start, "soft_start": soft_start}
        starts = starts | {name: start for name, start in given.items() if start is not None}
        self.acm = AugmentedCorrelationMatrix(q_counts=q_counts, **starts)
        self.make_graph = partial(
            adjacency,
            preset=graph or preset,
            cross_blocks=cross_blocks,
            neighbour_weight=neighbour_weight,
            new_threshold=new_threshold,
            cross_threshold=cross_threshold,
        )
        self.make_graph(self.acm)  # checks its settings; there are no classes yet

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience, unless it is open already; earlier ones must have been counted."""
        check_replayed_rows_are_known(strategy)
        n_new = count_seen(strategy.experience) - self.acm.n_seen
        if n_new > 0:
            check_no_skipped_experience(strategy.experience, self.acm.n_seen, "the correlation matrix")
            self.acm.begin(n_new)
            self._update_graph(strategy)

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Count the batch before its step."""
        if self.count_before_step:
            targets = strategy.mb_y.clone()
            memory = find_memory(strategy)
            if memory is not None:  # after the step their targets are hidden already
                targets[memory.n_stream :] = torch.nan
            self._count(strategy, targets)

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Count the batch after its step."""
        if not self.count_before_step:
            self._count(strategy, strategy.mb_y)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums; see `AugmentedCorrelationMatrix`."""
        return self.acm.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the sums; the graph is part of the model's own state."""
        self.acm.load_state_dict(state)

    def _count(self, strategy: SupervisedTemplate, targets: Tensor) -> None:
        plugins = [plugin for plugin in strategy.plugins if isinstance(plugin, AGCNPlugin)]
        soft_old = plugins[0].teacher_logits(strategy) if plugins else None
        if soft_old is not None:
            logits = in_float64(soft_old)
            soft_old = logits.sigmoid() if self.soft_labels == "sigmoid" else logits.softmax(dim=1)
        self.acm.update(targets[:, self.acm.n_old : self.acm.n_seen], soft_old, reduce=True)
        self._update_graph(strategy)

    def _update_graph(self, strategy: SupervisedTemplate) -> None:
        model = unwrap(strategy.model)
        if isinstance(model, AGCNModel):
            model.set_graph(self.make_graph(self.acm))
