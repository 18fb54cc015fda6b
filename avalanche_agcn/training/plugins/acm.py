"""Updates the Augmented Correlation Matrix and the model's graph."""

from typing import Any, Literal

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_no_skipped_experience, count_seen
from avalanche_agcn.checks import check_choice
from avalanche_agcn.models.agcn import AGCNModel
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.acm import (
    OFFICIAL_HARD_START,
    OFFICIAL_SOFT_START,
    AugmentedCorrelationMatrix,
    QCounts,
    in_float64,
)
from avalanche_agcn.training.graph import NEIGHBOUR_WEIGHT, Graph, adjacency, check_graph
from avalanche_agcn.training.plugins.agcn import AGCNPlugin
from avalanche_agcn.training.plugins.replay import check_replayed_rows_are_known, find_memory

Preset = Literal["paper", "official"]
SoftLabels = Literal["sigmoid", "softmax"]


class ACMPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Counts label relations batch by batch and keeps the graph of an `AGCNModel` up to date.

    Old classes have no labels in a batch; their soft labels come from the teacher of the strategy's
    `AGCNPlugin`. Without that plugin, classes of different experiences have no relations. With several epochs
    every image counts once per epoch, which does not change the probabilities of hard labels.

    Args:
        preset: ``"paper"`` or ``"official"``: sets each of ``soft_labels``, ``graph``, ``hard_start``,
            ``soft_start`` and ``count_before_step`` that is None.
        soft_labels: ``"sigmoid"`` of the teacher's logits (the paper) or their ``"softmax"`` (the
            authors' program).
        graph: how relations become the graph; see `adjacency`.
        cross_blocks: False leaves out R and Q (the paper's Table 2, line 1); see `adjacency`, as for the next
            three.
        neighbour_weight: weight of all neighbours of a node.
        new_threshold: of the official graph.
        cross_threshold: likewise.
        q_counts: see `AugmentedCorrelationMatrix`.
        hard_start: see `AugmentedCorrelationMatrix`; 0 (the paper) or 1e-6 (the authors' program).
        soft_start: see `AugmentedCorrelationMatrix`; 0 (the paper) or 1e-10 (the authors' program).
        count_before_step: whether a batch is counted before its own forward pass (the authors' program), or
            after its step, so that it changes the graph from the next step on (the paper).

    Example:
        >>> plugin = ACMPlugin(preset="official", cross_blocks=False)
        >>> plugin.soft_labels, plugin.graph
        ('softmax', 'official')
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
        self.graph: Graph = graph or preset
        check_choice("soft_labels", self.soft_labels, SoftLabels)
        check_graph(self.graph, neighbour_weight, new_threshold, cross_threshold, name="graph")
        self.graph_settings: dict[str, Any] = {
            "cross_blocks": cross_blocks,
            "neighbour_weight": neighbour_weight,
            "new_threshold": new_threshold,
            "cross_threshold": cross_threshold,
        }
        if hard_start is None:
            hard_start = OFFICIAL_HARD_START if official else 0.0
        if soft_start is None:
            soft_start = OFFICIAL_SOFT_START if official else 0.0
        self.acm = AugmentedCorrelationMatrix(q_counts=q_counts, hard_start=hard_start, soft_start=soft_start)

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Open the experience, unless it is open already.

        Raises:
            ValueError: if earlier experiences were not counted, or replayed images cannot be told apart.
        """
        check_replayed_rows_are_known(strategy)
        n_new = count_seen(strategy.experience) - self.acm.n_seen
        if n_new > 0:
            check_no_skipped_experience(strategy.experience, self.acm.n_seen, "the correlation matrix")
            self.acm.begin(n_new)
            self._update_graph(strategy)

    def before_forward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the batch before its step."""
        if self.count_before_step:
            for plugin in strategy.plugins:
                if isinstance(plugin, AGCNPlugin):
                    plugin.ask_teacher(strategy)
            self._count(strategy)

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the batch after its step."""
        if not self.count_before_step:
            self._count(strategy)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums; see `AugmentedCorrelationMatrix`."""
        return self.acm.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the sums; the graph is part of the model's own state."""
        self.acm.load_state_dict(state)

    def _count(self, strategy: SupervisedTemplate) -> None:
        targets_new = strategy.mb_y[:, self.acm.n_old : self.acm.n_seen]
        memory = find_memory(strategy)
        if memory is not None and self.count_before_step:  # after the step they are hidden already
            replayed = torch.arange(len(targets_new), device=targets_new.device) >= memory.n_stream
            targets_new = targets_new.masked_fill(replayed[:, None], torch.nan)
        self.acm.update(targets_new, self._soft_labels(strategy), reduce=True)
        self._update_graph(strategy)

    def _soft_labels(self, strategy: SupervisedTemplate) -> Tensor | None:
        for plugin in strategy.plugins:
            if isinstance(plugin, AGCNPlugin) and plugin.teacher_logits is not None:
                logits = in_float64(plugin.teacher_logits)
                return logits.sigmoid() if self.soft_labels == "sigmoid" else logits.softmax(dim=1)
        return None

    def _update_graph(self, strategy: SupervisedTemplate) -> None:
        model = unwrap(strategy.model)
        if isinstance(model, AGCNModel):
            model.set_graph(adjacency(self.acm, self.graph, **self.graph_settings))
