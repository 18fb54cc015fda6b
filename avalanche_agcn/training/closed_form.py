"""The base of strategies that solve their classifiers from sums of features."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.models.linear import MultiLabelClassifier
from avalanche_agcn.training.statistics.collector import FeatureCollector
from avalanche_agcn.training.template import MultiLabelTemplate


class ClosedForm(MultiLabelTemplate):
    """Collects sums in training and solves the classifiers when `train` ends or evaluation begins.

    The solution replaces the classifier of a `MultiLabelClassifier`. An optimizer is needed only if the
    network is trained. Subclasses implement `_solution` and have a ``collector``.
    """

    trains_network = False  # unless plugins add a loss that does
    collector: FeatureCollector  # adds to the sums

    def __init__(self, *, model: nn.Module, optimizer: Optimizer | None = None, **base_kwargs: Any) -> None:
        if not isinstance(unwrap(model), MultiLabelClassifier):
            raise TypeError(
                f"{type(self).__name__} needs a linear classifier, not {type(unwrap(model)).__name__}: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )
        if self.trains_network and optimizer is None:
            raise ValueError("A network that is trained needs an optimizer: pass optimizer=.")
        self._solved = True
        optimizer = optimizer or SGD(model.parameters(), lr=0.0)  # Avalanche requires one
        super().__init__(model=model, optimizer=optimizer, **base_kwargs)

    def solve(self) -> None:
        """Collective: replace the model's classifiers by the solution of the current sums."""
        self.collector.synchronize(self)
        unwrap(self.model).set_classifiers(*self._solution())
        self._solved = True

    def _solution(self) -> tuple[Any, ...]:
        """Arguments of `MultiLabelClassifier.set_classifiers`."""
        raise NotImplementedError

    def forward(self) -> Tensor:
        """Logits of the batch; without gradient where the network is frozen."""
        if self.trains_network or not self.is_training:
            return super().forward()
        with torch.no_grad(), evaluation_mode(self.model):
            return super().forward()

    def criterion(self) -> Tensor:
        """Loss of the batch: 0 in training, to which plugins add the losses that train the network."""
        return torch.zeros((), device=self.device) if self.is_training else super().criterion()

    def train(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Train as every strategy, and leave classifiers that others can train, also if interrupted."""
        try:
            return super().train(*args, **kwargs)
        finally:
            unwrap(self.model).classifier.requires_grad_(True)

    def check_model_and_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Exempt the classifiers from training: processes would wait for their gradients."""
        unwrap(self.model).classifier.requires_grad_(False)
        super().check_model_and_optimizer(*args, **kwargs)

    def _before_training_exp(self, **kwargs: Any) -> None:
        unwrap(self.model).refinement = None  # it covers the classes that were solved, not the new ones
        self._solved = False
        super()._before_training_exp(**kwargs)

    def _after_training_iteration(self, **kwargs: Any) -> None:
        super()._after_training_iteration(**kwargs)
        self._solved = False  # also if there was an evaluation within the experience

    def _after_training_exp(self, **kwargs: Any) -> None:
        super()._after_training_exp(**kwargs)
        self._solved = False  # plugins may have changed the sums, also after an evaluation in the last epoch

    def _after_training(self, **kwargs: Any) -> None:
        super()._after_training(**kwargs)
        if not self._solved:
            self.solve()

    def _before_eval(self, **kwargs: Any) -> None:
        if not self._solved:
            self.solve()
        super()._before_eval(**kwargs)
