"""Methods without a memory: Fine-Tuning, EWC, LwF, CSC, and the upper bound, Multi-Task."""

from collections.abc import Iterable, Sequence
from typing import Any

from avalanche.benchmarks.scenarios.generic_scenario import EagerCLStream

from avalanche_agcn.benchmarks.experience import MultiLabelExperience
from avalanche_agcn.benchmarks.multilabel import MultiLabelBenchmark
from avalanche_agcn.training.plugins import distillation
from avalanche_agcn.training.plugins.agcn import ACMPlugin, AGCNPlugin, agcn_model
from avalanche_agcn.training.plugins.ewc import EWCPlugin
from avalanche_agcn.training.strategies.base import MultiLabelTemplate, Plugins
from avalanche_agcn.training.strategies.closed_form import StreamingRidge

EWC_LAMBDA = 1e3  # no source gives one for multi-label images: ours, from the embedded benchmark


class FineTuning(MultiLabelTemplate):
    """Does nothing against forgetting: the paper's lower bound."""


class EWC(MultiLabelTemplate):
    """Elastic weight consolidation (Kirkpatrick et al., 2017): penalises changes of important parameters.

    For the arguments see `EWCPlugin`; its seed, 0 if None, is also that of the stream.
    """

    def __init__(
        self,
        *,
        ewc_lambda: float = EWC_LAMBDA,
        fisher_images: int | None = None,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        self.ewc = EWCPlugin(ewc_lambda=ewc_lambda, fisher_images=fisher_images, seed=seed or 0)
        super().__init__(plugins=[*(plugins or []), self.ewc], seed=seed, **base_kwargs)


class LwF(MultiLabelTemplate):
    """Learning without forgetting (Li and Hoiem, 2016): distils the previous model; see `LwFPlugin`."""

    def __init__(
        self, *, alpha: float = 1.0, temperature: float = 1.0, plugins: Plugins = None, **base_kwargs: Any
    ) -> None:
        self.lwf = distillation.LwFPlugin(alpha=alpha, temperature=temperature)
        super().__init__(plugins=[*(plugins or []), self.lwf], **base_kwargs)


class CSC(MultiLabelTemplate):
    """Confidence self-calibration (Du et al., 2024): pseudo-labels, a growing label graph, a penalty.

    A combination of this package's parts, not a copy of the authors' code: the graph is AGCN's, counted
    from labels and the teacher's soft labels, where CSC learns its own (its ablation has 64.1 mAP with a
    counted one, 72.8 with the learned one, on COCO B0-C10); pseudo-labels have one threshold for all classes;
    there is no replay. For the asymmetric loss pass ``criterion=AsymmetricLoss()``. The model is an
    `AGCNModel`. For β and α see `ConfidencePenaltyPlugin`, for the threshold `PseudoLabelPlugin`.
    """

    def __init__(
        self,
        *,
        beta: float = distillation.BETA,
        alpha: float = distillation.ALPHA,
        threshold: float = distillation.THRESHOLD,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        # Its weights leave the loss unchanged: it holds the teacher, which the other three share.
        self.agcn = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0)
        self.acm = ACMPlugin()
        self.penalty = distillation.ConfidencePenaltyPlugin(beta=beta, alpha=alpha, teacher=self.agcn.teacher)
        self.pseudo_labels = distillation.PseudoLabelPlugin(threshold=threshold, teacher=self.agcn.teacher)
        own = [self.agcn, self.acm, self.penalty, self.pseudo_labels]
        super().__init__(plugins=[*own, *(plugins or [])], **base_kwargs)
        agcn_model(self)


class TrainsJointly:
    """Mixin of strategies that train on all images of the stream at once: ``strategy.train(benchmark)``."""

    def train(
        self, experiences: Any, eval_streams: Sequence[Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Train on a benchmark, or on an experience from `multi_task_experience`."""
        if not isinstance(experiences, Iterable) and hasattr(experiences, "complete_train_dataset"):
            experiences = multi_task_experience(experiences)
        for experience in experiences if isinstance(experiences, Iterable) else [experiences]:
            targets = experience.dataset.targets[:]
            n_labelled = getattr(experience, "n_own_classes", targets.shape[1])
            if targets.isnan().any() or n_labelled < targets.shape[1]:
                raise ValueError(
                    "Multi-Task needs all labels of every image, but the stream has only some of them: call "
                    "train(benchmark), not train(benchmark.train_stream)."
                )
        return super().train(experiences, eval_streams, **kwargs)  # type: ignore[misc]


class MultiTask(TrainsJointly, MultiLabelTemplate):
    """Trains on all images and labels at once: the paper's upper bound."""


class MultiTaskRidge(TrainsJointly, StreamingRidge):
    """Ridge regression on all images and labels at once: the upper bound of `StreamingRidge`, without γ."""


def multi_task_experience(benchmark: MultiLabelBenchmark) -> MultiLabelExperience:
    """One experience of all training images, each once, with all their labels."""
    experience = MultiLabelExperience(
        dataset=benchmark.complete_train_dataset,
        current_experience=0,
        own_columns=range(benchmark.n_classes),
        n_classes=benchmark.n_classes,
    )
    EagerCLStream("train", [experience])  # names the experience's stream, as metrics need it
    return experience
