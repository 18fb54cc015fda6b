"""Averaged gradient episodic memory (Chaudhry et al., 2019)."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_whole_experience
from avalanche_agcn.training.acm import in_float64
from avalanche_agcn.training.plugins.replay import MemoryPlugin
from avalanche_agcn.training.storage.base import OnlineBuffer


class AGEMPlugin(MemoryPlugin):
    """Turns a gradient that would raise the loss on images from memory.

    The reference batch of a step is drawn from the memory of earlier experiences; the gradient of its loss
    is the reference. The memory is updated when an experience ends, as in the paper, so that the experience
    that streams is not its own reference. Give it an `ExperienceReservoirBuffer` for equally many images of
    each.

    Avalanche's ``AGEMPlugin`` projects alike, but fails when there are more experiences than images in a
    reference batch, draws from the global generators and cannot be saved.

    Args:
        storage_policy: the memory.
        sample_size: images of a reference batch; see `MemoryPlugin`.

    Raises:
        ValueError: if a number makes no sense.
    """

    def __init__(self, storage_policy: OnlineBuffer, *, sample_size: int | None = None) -> None:
        super().__init__(storage_policy, batch_size_mem=sample_size)
        self._reference: list[Tensor] | None = None

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Make a loader, but refuse pieces of experiences: each would be a reference of those behind it."""
        check_whole_experience(strategy.experience, "A-GEM")
        super().before_training_exp(strategy, *args, **kwargs)

    def before_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Take the reference rows out of the batch and compute their gradient."""
        super().before_training_iteration(strategy, *args, **kwargs)
        reference_x, reference_y = (part[self.n_stream :] for part in strategy.mbatch[:2])
        strategy.mbatch = [part[: self.n_stream] for part in strategy.mbatch]
        if len(reference_x) == 0:
            self._reference = None
            return
        with getattr(strategy, "autocast", nullcontext)():
            logits = strategy.model(reference_x)
        loss = strategy._criterion(logits, reference_y)
        parameters = _trained(strategy)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        self._reference = list(gradients)

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


def project(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> list[Tensor]:
    """The gradient nearest to g that has no part against r: g − (g·r / r·r) r if g·r < 0, else g itself.

    Args:
        gradients: g, one tensor per parameter.
        reference: r, of the same shapes.

    Example:
        >>> project([torch.tensor([1.0, -2.0])], [torch.tensor([0.0, 1.0])])
        [tensor([1., 0.])]
    """
    along = _dot(gradients, reference)
    if along >= 0:
        return list(gradients)
    step = along / _dot(reference, reference)
    return [(g - step.to(g.device, g.dtype) * r) for g, r in zip(gradients, reference, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """In float64: what is left of a projected gradient along the reference is rounding alone."""
    products = [
        torch.dot(in_float64(x.flatten()), in_float64(y.flatten())) for x, y in zip(a, b, strict=True)
    ]
    return torch.stack(products).sum()


def _trained(strategy: SupervisedTemplate) -> list[Tensor]:
    return [parameter for parameter in strategy.model.parameters() if parameter.requires_grad]
