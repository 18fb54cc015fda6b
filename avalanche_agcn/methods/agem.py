"""Averaged gradient episodic memory (Chaudhry et al., 2019)."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import check_whole_experience
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training import distributed
from avalanche_agcn.training.buffers import MEM_SIZE, ExperienceReservoirBuffer, OnlineBuffer
from avalanche_agcn.training.loader import is_padding
from avalanche_agcn.training.memory import MemoryPlugin
from avalanche_agcn.training.statistics.sums import in_float64
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins


class AGEM(MultiLabelTemplate):
    """Averaged gradient episodic memory (Chaudhry et al., 2019): no step may raise the loss on memory.

    The memory has equally many images of each experience. A reference batch has ``sample_size`` images, as
    many as of the stream if None; the paper's 256 make a step of 8 images 33 times as long. ``seed`` is that
    of the memory (0 if None) and of the stream.
    """

    def __init__(
        self,
        *,
        mem_size: int = MEM_SIZE,
        sample_size: int | None = None,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        memory = ExperienceReservoirBuffer(mem_size, seed=seed or 0)
        self.agem = AGEMPlugin(memory, sample_size=sample_size)
        super().__init__(plugins=[*(plugins or []), self.agem], seed=seed, **base_kwargs)


class AGEMPlugin(MemoryPlugin):
    """Projects a gradient that would raise the loss on images from memory.

    The reference is the gradient of the loss of a batch from the memory of earlier experiences. The memory is
    updated when an experience ends, as in the paper, so that the current experience is not its own reference.
    Avalanche's ``AGEMPlugin`` projects in the same way, but fails when there are more experiences than images
    in a reference batch, draws from the global generators and cannot be saved.

    An `ExperienceReservoirBuffer` has equally many images of each experience.
    ``sample_size``, the number of images in a reference batch, is the ``batch_size_mem`` of `MemoryPlugin`.
    """

    def __init__(self, storage_policy: OnlineBuffer, *, sample_size: int | None = None) -> None:
        super().__init__(storage_policy, batch_size_mem=sample_size)
        self._reference: list[Tensor] | None = None

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Make the loader, but reject parts of experiences: each would be a reference for the next."""
        check_whole_experience(strategy.experience, "A-GEM")
        super().before_training_exp(strategy, **kwargs)

    def before_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Remove the reference rows from the batch and compute their gradient."""
        super().before_training_iteration(strategy, **kwargs)
        batch = strategy.mbatch
        n_reference = 0 if is_padding(batch) else len(batch[0]) - self.n_stream
        reference_x, reference_y, *_ = _rows_or_padding(batch, slice(self.n_stream, None))
        strategy.mbatch = _rows_or_padding(batch, slice(self.n_stream))
        strategy.is_padding = self.n_stream == 0
        if distributed.largest_of_processes(n_reference) == 0:
            self._reference = None
            return
        with getattr(strategy, "autocast", nullcontext)():
            logits = unwrap(strategy.model)(reference_x)
        with distributed.global_means():
            loss = strategy._criterion(logits, reference_y)
        gradients = torch.autograd.grad(loss, _trained(strategy), allow_unused=True, materialize_grads=True)
        self._reference = distributed.mean_over_processes(*gradients)

    def after_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Project the gradient."""
        if self._reference is None:
            return
        parameters = _trained(strategy)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter, gradient in zip(parameters, project(gradients, self._reference), strict=True):
            parameter.grad = gradient

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Offer the experience to the memory."""
        self.storage_policy.post_adapt(strategy, strategy.experience)


def _rows_or_padding(batch: list[Tensor], rows: slice) -> list[Tensor]:
    """Some rows of a batch; if there are none, its first row without labels, so that every process steps."""
    if len(batch[0][rows]):
        return [part[rows] for part in batch]
    image, target, *rest = (part[:1] for part in batch)
    return [image, torch.full_like(target, torch.nan), *rest]


def _trained(strategy: SupervisedTemplate) -> list[Tensor]:
    return [parameter for parameter in strategy.model.parameters() if parameter.requires_grad]


def project(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> list[Tensor]:
    """Project a gradient g that opposes a reference r: g − (g·r / r·r) r if g·r < 0, else g."""
    along = _dot(gradients, reference)
    if along >= 0:
        return list(gradients)
    step = along / _dot(reference, reference)
    return [g - step.to(g.device, g.dtype) * r for g, r in zip(gradients, reference, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """In float64, so that a projected gradient is orthogonal to the reference up to its own rounding."""
    pairs = zip(map(in_float64, a), map(in_float64, b), strict=True)
    return torch.stack([torch.dot(x.flatten(), y.flatten()) for x, y in pairs]).sum()
