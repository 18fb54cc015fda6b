"""Plugins with a memory: replay, A-GEM's projection; and the contrastive loss of SCR."""

from contextlib import nullcontext
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.distributed.distributed_helper import DistributedHelper
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import check_whole_experience, count_seen, origin_of
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import OutputRecorder, unwrap
from avalanche_agcn.training import distributed
from avalanche_agcn.training.gradients import project
from avalanche_agcn.training.loader import is_padding, make_train_loader
from avalanche_agcn.training.losses import TEMPERATURE, MultiLabelContrastiveLoss, newer_as_negative
from avalanche_agcn.training.storage_policy.base import OnlineBuffer


class MemoryPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Base of plugins with a memory: appends images from it to those of the stream in each batch.

    The first `n_stream` rows of a batch are the stream's; ``batch_size_mem`` replayed images follow (as many
    as of the stream if None; all if the memory holds fewer), then further ``views`` of all of them, each with
    its own augmentation.
    """

    observe_stream = False  # whether the memory is updated batch by batch

    def __init__(
        self, storage_policy: OnlineBuffer, *, batch_size_mem: int | None = None, views: int = 1
    ) -> None:
        super().__init__()
        check_range("batch_size_mem", batch_size_mem, least=0)
        check_range("views", views, least=1)
        self.storage_policy, self.batch_size_mem, self.views = storage_policy, batch_size_mem, views
        self.n_stream = 0
        self._batch = 0  # next batch of the epoch
        self._sampler: Any = None
        self._state_at_epoch_start: dict[str, Any] | None = None

    def after_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Open the experience in the memory, before the loader is made."""
        self.storage_policy.open(strategy.experience.current_experience, strategy.adapted_dataset)
        self.storage_policy.share_generators()

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Make the loader, unless the strategy has made one with this memory (`MultiLabelTemplate`)."""
        if getattr(_sampler(strategy), "memory", None) is not self.storage_policy:
            strategy.dataloader = make_train_loader(strategy, memory=self, **kwargs)
        self._sampler = _sampler(strategy)

    def before_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Keep the state of the memory, and check that the loader is still this plugin's."""
        if _sampler(strategy) is not self._sampler or self._sampler is None:
            raise RuntimeError(
                "The loader is not the memory's own: another plugin has replaced it. Two memories do not "
                "work beside each other; remove one of them."
            )
        self._batch = self._sampler.first_batch
        self._state_at_epoch_start = self.storage_policy.state_dict()

    def before_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Count the rows of the batch that are the stream's."""
        self.n_stream = self._sampler.count_stream_rows(self._batch)
        self._batch += 1

    def after_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Let `state_dict` return the memory as it is: it has seen all batches of the epoch."""
        self._state_at_epoch_start = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the memory; within an epoch, that at its start."""
        # Loader workers may have drawn batches ahead of training. To resume, `StreamSampler` offers the
        # finished batches to the memory again, which needs their labels only.
        state = self._state_at_epoch_start
        return self.storage_policy.state_dict() if state is None else dict(state)

    def load_state_dict(self, state: dict[str, Any], train_stream: Any) -> None:
        """Restore a memory, whose images are those of the stream."""
        self._state_at_epoch_start = None
        self.storage_policy.load_state_dict(state, train_stream)


def _sampler(strategy: SupervisedTemplate) -> Any:
    return getattr(strategy.dataloader, "batch_sampler", None)


def find_memory(strategy: SupervisedTemplate) -> MemoryPlugin | None:
    """The memory plugin of a strategy, or None; a ValueError if there are several."""
    memories = [plugin for plugin in strategy.plugins if isinstance(plugin, MemoryPlugin)]
    if len(memories) > 1:
        names = ", ".join(type(plugin).__name__ for plugin in memories)
        raise ValueError(f"A strategy can replay from one memory only, but has {names}; remove one of them.")
    return memories[0] if memories else None


def check_replayed_rows_are_known(strategy: SupervisedTemplate) -> None:
    """Reject Avalanche's replay where no unlabelled cell tells replayed images from those of the stream."""
    n_seen = count_seen(strategy.experience)
    unlabelled = strategy.experience.dataset.targets[0][:n_seen].isnan().any()  # type: ignore[attr-defined]
    n_own = getattr(origin_of(strategy.experience), "n_own_classes", n_seen)
    if n_own < n_seen and not unlabelled and any(isinstance(one, ReplayPlugin) for one in strategy.plugins):
        raise ValueError(
            "Images of Avalanche's ReplayPlugin would be counted as images of the stream, as the benchmark "
            "has unlabelled_as_negative=True: use OnlineReplayPlugin(ReservoirBuffer(...))."
        )


class OnlineReplayPlugin(MemoryPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Trains on the stream and on images from memory in one batch, and updates the memory batch by batch.

    The loss is that of the joint batch: `PartialBCEWithLogitsLoss` averages over its annotated cells, where a
    replayed image has those of its own experience. After the step, the targets of replayed rows become NaN,
    so that the ACM and training metrics count no image twice. Avalanche's ``ReplayPlugin`` takes the same
    memories, but updates them at the end of an experience only.

    Args:
        storage_policy: the memory, such as ``PRSBuffer(2000)``; for the next ones see `MemoryPlugin`.
        newer_as_negative: whether a replayed image is a negative of the classes of later experiences. It may
            show them nevertheless, but without this a new classifier never sees an image without any new
            class. Off in the papers.
    """

    observe_stream = True

    def __init__(
        self,
        storage_policy: OnlineBuffer,
        *,
        batch_size_mem: int | None = None,
        newer_as_negative: bool = False,
        views: int = 1,
    ) -> None:
        super().__init__(storage_policy, batch_size_mem=batch_size_mem, views=views)
        self.newer_as_negative = newer_as_negative

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Label replayed images as negatives of newer classes."""
        if self.newer_as_negative:
            stream, replayed = strategy.mb_y[: self.n_stream], strategy.mb_y[self.n_stream :]
            replayed = newer_as_negative(replayed, count_seen(strategy.experience))
            strategy.mbatch[1] = torch.cat([stream, replayed])

    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Hide the targets of replayed rows."""
        targets = strategy.mb_y.clone()
        targets[self.n_stream :] = torch.nan
        strategy.mbatch[1] = targets


class AGEMPlugin(MemoryPlugin, supports_distributed=True):  # type: ignore[call-arg]
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
        batch, n = strategy.mbatch, self.n_stream
        n_reference = 0 if is_padding(batch) else len(batch[0]) - n
        reference_x, reference_y, *_ = _rows_or_padding(batch, slice(n, None))
        strategy.mbatch, strategy.is_padding = _rows_or_padding(batch, slice(n)), n == 0
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


class ContrastivePlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Adds `MultiLabelContrastiveLoss` of the batch's features, as the model computed them for its logits."""

    def __init__(self, *, weight: float = 1.0, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        check_range("weight", weight, least=0)
        self.weight, self.loss = weight, MultiLabelContrastiveLoss(temperature)
        self._features = OutputRecorder()

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check that the model has features to contrast."""
        if not isinstance(getattr(unwrap(strategy.model), "backbone", None), nn.Module):
            raise TypeError(
                f"{type(strategy.model).__name__} has no backbone to take features from: use "
                "MultiLabelClassifier(backbone, n_classes)."
            )

    def before_forward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Record the features of the batch."""
        self._features.start(unwrap(strategy.model).backbone)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the loss."""
        features = _of_all_processes(self._features.stop())
        loss = self.loss(features, _of_all_processes(strategy.mb_y))
        strategy.loss = strategy.loss + self.weight * loss


def _of_all_processes(rows: Tensor) -> Tensor:
    """Rows of the global batch, from which every process computes the same loss.

    Gradients flow to this process's own rows, multiplied by the number of processes, since
    `DistributedDataParallel` averages the gradients of all.
    """
    if not DistributedHelper.is_distributed:
        return rows
    rank, n_processes = distributed.process_rank()
    parts = DistributedHelper.gather_all(rows.detach())
    parts[rank] = n_processes * rows - (n_processes - 1) * rows.detach()
    return torch.cat(parts)
