"""AGCN: Augmented Graph Convolutional Network (Du et al., 2022)."""

from typing import Any, Literal

from avalanche_agcn.agcn.correlation import QCounts
from avalanche_agcn.agcn.graph import Graph, GraphOptions
from avalanche_agcn.agcn.model import AGCNModel
from avalanche_agcn.agcn.plugins import PAPER_WEIGHTS, ACMPlugin, AGCNPlugin, SoftLabels
from avalanche_agcn.checks import check_choice
from avalanche_agcn.methods.replay import OptionalReplay
from avalanche_agcn.training.losses import Reduction
from avalanche_agcn.training.statistics.compact import StatisticsKind
from avalanche_agcn.training.statistics.negatives import StatisticalNegativesPlugin
from avalanche_agcn.training.template import Plugins

Preset = Literal["paper", "official", "statistics"]
STATISTICS_WEIGHTS = {"lambda_cls": 0.5, "lambda_dst": 0.5, "lambda_gph": 1e3}  # chosen on photos of coco18
PRESETS = {"paper": PAPER_WEIGHTS, "official": PAPER_WEIGHTS, "statistics": STATISTICS_WEIGHTS}


class AGCN(OptionalReplay):
    """The paper's method: label relations across experiences, and a frozen teacher that preserves them.

    The model is an `AGCNModel`; ``Adam(model.parameter_groups())`` has the learning rates of the authors'
    code. Any strategy with ``plugins=[AGCNPlugin(...), ACMPlugin(...)]``, the criterion
    `PartialBCEWithLogitsLoss` and ``train(..., reset_optimizer_state=True)`` does the same.

    The other arguments are explained at `AGCNPlugin`, `ACMPlugin` (there ``graph_options`` is ``options``),
    `StatisticalNegativesPlugin` and `OptionalReplay`. A loss weight that is None is that of the preset.

    Args:
        preset: ``"paper"``, the equations (with means in place of the sums in Eq. 7 and 8, because λ₃ was
            chosen for means); ``"official"``, the soft labels, counts and graph of the authors' code; or
            ``"statistics"``, the equations with a `StatisticalNegativesPlugin` and weights that suit it, best
            with orthogonal word vectors and ``lr_gcn=3e-4``.
    """

    def __init__(
        self,
        *,
        preset: Preset = "paper",
        lambda_cls: float | None = None,
        lambda_dst: float | None = None,
        lambda_gph: float | None = None,
        reduction: Reduction = "mean",
        gph_reduction: Reduction = "mean",
        soft_labels: SoftLabels | None = None,
        graph: Graph | None = None,
        graph_options: GraphOptions | None = None,
        q_counts: QCounts = "experience",
        statistics: StatisticsKind = "exact",
        max_gaussians: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        check_choice("preset", preset, Preset)
        weights = PRESETS[preset]
        self.agcn = AGCNPlugin(
            lambda_cls=weights["lambda_cls"] if lambda_cls is None else lambda_cls,
            lambda_dst=weights["lambda_dst"] if lambda_dst is None else lambda_dst,
            lambda_gph=weights["lambda_gph"] if lambda_gph is None else lambda_gph,
            reduction=reduction,
            gph_reduction=gph_reduction,
        )
        self.acm = ACMPlugin(
            preset="official" if preset == "official" else "paper",
            soft_labels=soft_labels,
            graph=graph,
            options=graph_options,
            q_counts=q_counts,
        )
        negatives = StatisticalNegativesPlugin(statistics=statistics, max_gaussians=max_gaussians)
        agcn_plugins = [self.agcn, self.acm] + ([negatives] if preset == "statistics" else [])
        # AGCNPlugin comes first: λ₁ multiplies the criterion, not what other plugins add to the loss.
        super().__init__(plugins=[*agcn_plugins, *(plugins or [])], **base_kwargs)
        AGCNModel.of(self)  # raises an error for another model
