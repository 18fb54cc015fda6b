"""CSC: confidence self-calibration (Du et al., 2024)."""

from typing import Any

import torch.nn.functional as F
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.agcn.losses import distillation_loss
from avalanche_agcn.agcn.model import AGCNModel
from avalanche_agcn.agcn.plugins import ACMPlugin, AGCNPlugin
from avalanche_agcn.checks import check_range
from avalanche_agcn.training.distributed import mean_of
from avalanche_agcn.training.losses import at_least_float32
from avalanche_agcn.training.teacher import THRESHOLD, FrozenTeacher, PseudoLabelPlugin, TeacherPlugin
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins

BETA = 0.04  # of CSC's program
ALPHA = 0.5  # likewise


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
        beta: float = BETA,
        alpha: float = ALPHA,
        threshold: float = THRESHOLD,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        # Its weights leave the loss unchanged: it holds the teacher, which the other three share.
        self.agcn = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0)
        self.acm = ACMPlugin()
        self.penalty = ConfidencePenaltyPlugin(beta=beta, alpha=alpha, teacher=self.agcn.teacher)
        self.pseudo_labels = PseudoLabelPlugin(threshold=threshold, teacher=self.agcn.teacher)
        own = [self.agcn, self.acm, self.penalty, self.pseudo_labels]
        super().__init__(plugins=[*own, *(plugins or [])], **base_kwargs)
        AGCNModel.of(self)


class ConfidencePenaltyPlugin(TeacherPlugin):
    """Makes the loss α ℓ + (1 − α) ℓ_dst + β Σ p log p from the second experience on.

    The losses of CSC (Du et al., 2024): ℓ is the value of the criterion, ℓ_dst the distillation of old
    classes (`distillation_loss`; none at ``alpha`` 1), and the last term, `confidence_penalty`, keeps outputs
    from becoming confident. This plugin must precede others that add to the loss, or α scales them too.
    """

    def __init__(
        self, *, beta: float = BETA, alpha: float = ALPHA, teacher: FrozenTeacher | None = None
    ) -> None:
        super().__init__(teacher)
        check_range("beta", beta, least=0)
        check_range("alpha", alpha, least=0, most=1)
        self.beta, self.alpha = beta, alpha

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the loss."""
        if not self.teacher.n_old:
            return
        strategy.loss = self.alpha * strategy.loss + self.beta * confidence_penalty(strategy.mb_output)
        if self.alpha < 1:
            distillation = distillation_loss(strategy.mb_output, self.teacher.logits(strategy))
            strategy.loss = strategy.loss + (1 - self.alpha) * distillation


def confidence_penalty(logits: Tensor) -> Tensor:
    """Σ p log p over classes, the mean over images: the negative entropy that CSC adds to its loss.

    CSC (Du et al., 2024) penalises confident outputs. Like its program, this has no term for 1 − p, so that
    the entropy is largest at p = 1/e, not at 1/2.
    """
    logits = at_least_float32(logits)
    return mean_of((logits.sigmoid() * F.logsigmoid(logits)).sum(), len(logits))
