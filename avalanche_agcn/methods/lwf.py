"""Learning without forgetting (Li and Hoiem, 2016)."""

from typing import Any

from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.agcn.losses import distillation_loss
from avalanche_agcn.checks import check_range
from avalanche_agcn.training.teacher import TeacherPlugin
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins


class LwF(MultiLabelTemplate):
    """Learning without forgetting (Li and Hoiem, 2016): distils the previous model; see `LwFPlugin`."""

    def __init__(
        self, *, alpha: float = 1.0, temperature: float = 1.0, plugins: Plugins = None, **base_kwargs: Any
    ) -> None:
        self.lwf = LwFPlugin(alpha=alpha, temperature=temperature)
        super().__init__(plugins=[*(plugins or []), self.lwf], **base_kwargs)


class LwFPlugin(TeacherPlugin):
    """Adds a loss that keeps the logits of old classes near those of the previous model.

    Avalanche's own LwF has a softmax over old classes, where one label excludes the others; here each class
    is a decision of its own. ``alpha`` is the weight of `lwf_loss`, 1 in the LwF paper.
    """

    def __init__(self, *, alpha: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        check_range("alpha", alpha, least=0)
        check_range("temperature", temperature, above=0)
        self.alpha, self.temperature = alpha, temperature

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the distillation loss, from the second experience on."""
        if self.teacher.n_old:
            logits = self.teacher.logits(strategy)
            loss = lwf_loss(strategy.mb_output, logits, temperature=self.temperature)
            strategy.loss = strategy.loss + self.alpha * loss


def lwf_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """`distillation_loss` of logits divided by a temperature, which is AGCN's ℓ_dst at temperature 1.

    Multiplied by the square of the temperature, to preserve the size of the gradient (Hinton et al., 2015).
    """
    return temperature**2 * distillation_loss(logits / temperature, teacher_logits / temperature)
