"""AGCN: Augmented Graph Convolutional Network (Du et al., 2022)."""

from typing import Any, Literal

from avalanche.core import BasePlugin

from avalanche_agcn.checks import check_choice
from avalanche_agcn.training.acm import QCounts
from avalanche_agcn.training.graph import NEIGHBOUR_WEIGHT, Graph
from avalanche_agcn.training.losses import Reduction
from avalanche_agcn.training.plugins.agcn import PAPER_WEIGHTS, ACMPlugin, AGCNPlugin, SoftLabels, agcn_model
from avalanche_agcn.training.plugins.replay import OnlineReplayPlugin
from avalanche_agcn.training.plugins.statistics import StatisticalNegativesPlugin
from avalanche_agcn.training.storage_policy import OCDMBuffer, PRSBuffer, ReservoirBuffer
from avalanche_agcn.training.strategies.base import MultiLabelTemplate, Plugins

Preset = Literal["paper", "official", "statistics"]
# Chosen on held-out train photos of coco18, like the settings of model and optimizer that go with them:
STATISTICS_WEIGHTS = {"lambda_cls": 0.5, "lambda_dst": 0.5, "lambda_gph": 1e3}
STATISTICS_MODEL = {"orthogonal_words": True, "lr_gcn": 3e-4}
PRESETS = {"paper": PAPER_WEIGHTS, "official": PAPER_WEIGHTS, "statistics": STATISTICS_WEIGHTS}
StoragePolicy = Literal["er", "prs", "ocdm"]
STORAGE_POLICIES = {"er": ReservoirBuffer, "prs": PRSBuffer, "ocdm": OCDMBuffer}


class AGCN(MultiLabelTemplate):
    """The paper's method: label relations across experiences, and a frozen teacher that preserves them.

    The model is an `AGCNModel`; ``Adam(model.parameter_groups())`` has the paper's learning rates. Any
    strategy with ``plugins=[AGCNPlugin(...), ACMPlugin(...)]``, the criterion `PartialBCEWithLogitsLoss` and
    ``train(..., reset_optimizer_state=True)`` does the same.

    Arguments that are not below are those of `AGCNPlugin`, `ACMPlugin` and `OnlineReplayPlugin`; loss weights
    that are None are those of the preset.

    Args:
        preset: ``"paper"``, the equations; ``"official"``, the soft labels and graph of the authors' code;
            or ``"statistics"``, the equations with a `StatisticalNegativesPlugin` and weights that suit it,
            which works best with orthogonal word vectors and ``lr_gcn=3e-4``.
        mem_size: number of images in a replay memory; 0 for none, as in the paper.
        storage_policy: which images it keeps: those of the method ``"er"``, ``"prs"`` or ``"ocdm"``.
        seed: seed of the memory (0 if None) and of the stream.

    Example:
        >>> from avalanche.training.plugins import EvaluationPlugin
        >>> from torch.optim import Adam
        >>> from avalanche_agcn.benchmarks.scenes import SplitScenes
        >>> from avalanche_agcn.models import AGCNModel, create_backbone, load_word_vectors
        >>> benchmark = SplitScenes(n_classes=8, n_experiences=2, n_train=60, n_test=30)
        >>> model = AGCNModel(create_backbone("small"), load_word_vectors(benchmark.class_names))
        >>> optimizer = Adam(model.parameter_groups())
        >>> strategy = AGCN(model=model, optimizer=optimizer, evaluator=EvaluationPlugin())
        >>> for experience in benchmark.train_stream:
        ...     _ = strategy.train(experience)
        >>> model.n_seen
        8
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
        mem_size: int = 0,
        storage_policy: StoragePolicy = "er",
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        check_choice("preset", preset, [*PRESETS])
        check_choice("storage_policy", storage_policy, [*STORAGE_POLICIES])
        given = {"lambda_cls": lambda_cls, "lambda_dst": lambda_dst, "lambda_gph": lambda_gph}
        weights = {name: PRESETS[preset][name] if value is None else value for name, value in given.items()}
        self.agcn = AGCNPlugin(reduction=reduction, gph_reduction=gph_reduction, **weights)
        self.acm = ACMPlugin(
            preset="official" if preset == "official" else "paper",
            soft_labels=soft_labels,
            graph=graph,
            cross_blocks=cross_blocks,
            neighbour_weight=neighbour_weight,
            new_threshold=new_threshold,
            cross_threshold=cross_threshold,
            q_counts=q_counts,
        )
        # First, because λ₁ weighs the criterion, not what other plugins add to the loss.
        own: list[BasePlugin] = [self.agcn, self.acm]
        if preset == "statistics":
            own.append(StatisticalNegativesPlugin())
        if mem_size:
            memory = STORAGE_POLICIES[storage_policy](mem_size, seed=seed or 0)
            own.append(
                OnlineReplayPlugin(memory, batch_size_mem=batch_size_mem, newer_as_negative=newer_as_negative)
            )
        super().__init__(plugins=[*own, *(plugins or [])], seed=seed, **base_kwargs)
        agcn_model(self)
