"""AGCN: Augmented Graph Convolutional Network (Du et al., 2022)."""

from typing import Any, Literal

from avalanche.core import BasePlugin

from avalanche_agcn.agcn.correlation import QCounts
from avalanche_agcn.agcn.graph import NEIGHBOUR_WEIGHT, Graph, GraphOptions
from avalanche_agcn.agcn.model import AGCNModel
from avalanche_agcn.agcn.plugins import PAPER_WEIGHTS, ACMPlugin, AGCNPlugin, SoftLabels
from avalanche_agcn.checks import check_choice
from avalanche_agcn.methods.replay import StoragePolicy, make_memory
from avalanche_agcn.training.losses import Reduction
from avalanche_agcn.training.memory import OnlineReplayPlugin
from avalanche_agcn.training.statistics.compact import StatisticsKind
from avalanche_agcn.training.statistics.negatives import StatisticalNegativesPlugin
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins

Preset = Literal["paper", "official", "statistics"]
# Chosen on held-out train photos of coco18, like the settings of model and optimizer that go with them:
STATISTICS_WEIGHTS = {"lambda_cls": 0.5, "lambda_dst": 0.5, "lambda_gph": 1e3}
STATISTICS_MODEL = {"orthogonal_words": True, "lr_gcn": 3e-4}
PRESETS = {"paper": PAPER_WEIGHTS, "official": PAPER_WEIGHTS, "statistics": STATISTICS_WEIGHTS}


class AGCN(MultiLabelTemplate):
    """The paper's method: label relations across experiences, and a frozen teacher that preserves them.

    The model is an `AGCNModel`; ``Adam(model.parameter_groups())`` has the learning rates of the authors'
    code. Any strategy with ``plugins=[AGCNPlugin(...), ACMPlugin(...)]``, the criterion
    `PartialBCEWithLogitsLoss` and ``train(..., reset_optimizer_state=True)`` does the same.

    Arguments that are not below are those of `AGCNPlugin`, `ACMPlugin`, `GraphOptions` and
    `OnlineReplayPlugin`; loss weights that are None are those of the preset.

    Args:
        preset: ``"paper"``, the equations (ℓ_dst and ℓ_gph as means, which λ₃ is for); ``"official"``, the
            soft labels and graph of the authors' code; or ``"statistics"``, the equations with a
            `StatisticalNegativesPlugin` and weights that suit it, best with orthogonal word vectors and
            ``lr_gcn=3e-4``.
        statistics: of the preset ``"statistics"``: ``"exact"`` or ``"compact"``, as of its plugin.
        max_gaussians: of the same, the largest number of Gaussians; None for one per older experience.
        mem_size: number of images in a replay memory; 0 for none, as in the paper.
        storage_policy: which images it keeps: those of the method ``"er"``, ``"prs"`` or ``"ocdm"``.
        seed: seed of the memory (0 if None) and of the stream.
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
        cross_blocks: bool = True,
        neighbour_weight: float = NEIGHBOUR_WEIGHT,
        new_threshold: float | None = None,
        cross_threshold: float | None = None,
        q_counts: QCounts = "experience",
        statistics: StatisticsKind = "exact",
        max_gaussians: int | None = None,
        mem_size: int = 0,
        storage_policy: StoragePolicy = "er",
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        check_choice("preset", preset, Preset)
        check_choice("storage_policy", storage_policy, StoragePolicy)
        weights = PRESETS[preset]
        self.agcn = AGCNPlugin(
            lambda_cls=weights["lambda_cls"] if lambda_cls is None else lambda_cls,
            lambda_dst=weights["lambda_dst"] if lambda_dst is None else lambda_dst,
            lambda_gph=weights["lambda_gph"] if lambda_gph is None else lambda_gph,
            reduction=reduction,
            gph_reduction=gph_reduction,
        )
        options = GraphOptions(
            cross_blocks=cross_blocks,
            neighbour_weight=neighbour_weight,
            new_threshold=new_threshold,
            cross_threshold=cross_threshold,
        )
        self.acm = ACMPlugin(
            preset="official" if preset == "official" else "paper",
            soft_labels=soft_labels,
            graph=graph,
            options=options,
            q_counts=q_counts,
        )
        # AGCNPlugin comes first: λ₁ multiplies the criterion, not what other plugins add to the loss.
        agcn_plugins: list[BasePlugin] = [self.agcn, self.acm]
        if preset == "statistics":
            negatives = StatisticalNegativesPlugin(max_gaussians=max_gaussians, statistics=statistics)
            agcn_plugins.append(negatives)
        if mem_size:
            memory = make_memory(storage_policy, mem_size, seed=seed or 0)
            agcn_plugins.append(
                OnlineReplayPlugin(memory, batch_size_mem=batch_size_mem, newer_as_negative=newer_as_negative)
            )
        super().__init__(plugins=[*agcn_plugins, *(plugins or [])], seed=seed, **base_kwargs)
        AGCNModel.of(self)  # raises an error for another model
