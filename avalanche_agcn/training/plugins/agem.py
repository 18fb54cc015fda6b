"""Averaged gradient episodic memory (Chaudhry et al., 2019)."""

from contextlib import nullcontext
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_whole_experience
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.distributed import global_means, largest_of_processes, mean_over_processes
from avalanche_agcn.training.gradients import project
from avalanche_agcn.training.loader import is_padding
from avalanche_agcn.training.plugins.replay import MemoryPlugin
from avalanche_agcn.training.storage_policy.base import OnlineBuffer


class AGEMPlugin(MemoryPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Projects a gradient that would raise the loss on images from memory.

    The reference batch of a step is drawn from the memory of earlier experiences; the gradient of its loss
    is the reference. The memory is updated when an experience ends, as in the paper, so that the current
    experience is not its own reference. An `ExperienceReservoirBuffer` holds equally many images of each.

    Avalanche's ``AGEMPlugin`` projects in the same way, but fails when there are more experiences than images
    in a reference batch, draws from the global generators and cannot be saved.

    Args:
        storage_policy: the memory.
        sample_size: number of images in a reference batch; see `MemoryPlugin`.
    """

    def __init__(self, storage_policy: OnlineBuffer, *, sample_size: int | None = None) -> None:
        super().__init__(storage_policy, batch_size_mem=sample_size)
        self._reference: list[Tensor] | None = None

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Make a loader, but reject parts of experiences: each would be a reference for the next."""
        check_whole_experience(strategy.experience, "A-GEM")
        super().before_training_exp(strategy, *args, **kwargs)

    def before_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Take the reference rows out of the batch and compute their gradient."""
        super().before_training_iteration(strategy, *args, **kwargs)
        batch, n = strategy.mbatch, self.n_stream
        n_reference = 0 if is_padding(batch) else len(batch[0]) - n
        reference_x, reference_y, *_ = _rows_or_padding(batch, slice(n, None))
        strategy.mbatch, strategy.is_padding = _rows_or_padding(batch, slice(n)), n == 0
        if largest_of_processes(n_reference) == 0:
            self._reference = None
            return
        with getattr(strategy, "autocast", nullcontext)():
            logits = unwrap(strategy.model)(reference_x)
        with global_means():
            loss = strategy._criterion(logits, reference_y)
        parameters = _trained(strategy)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        self._reference = mean_over_processes(*gradients)

    def after_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Project the gradient."""
        if self._reference is None:
            return
        parameters = _trained(strategy)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter, gradient in zip(parameters, project(gradients, self._reference), strict=True):
            parameter.grad = gradient

    def after_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Offer the experience to the memory."""
        self.storage_policy.post_adapt(strategy, strategy.experience)


def _rows_or_padding(batch: list[Tensor], rows: slice) -> list[Tensor]:
    """Some rows of a batch; if there are none, its first row without labels, so that the step can be made."""
    if len(batch[0][rows]):
        return [part[rows] for part in batch]
    image, target, *rest = (part[:1] for part in batch)
    return [image, torch.full_like(target, torch.nan), *rest]


def _trained(strategy: SupervisedTemplate) -> list[Tensor]:
    return [parameter for parameter in strategy.model.parameters() if parameter.requires_grad]
