"""Plugins that append images from a memory to each batch."""

from typing import Any

import torch
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.benchmarks.experience import count_seen, origin_of
from avalanche_agcn.checks import check_range
from avalanche_agcn.training.buffers import OnlineBuffer
from avalanche_agcn.training.loader import make_train_loader
from avalanche_agcn.training.plugin import MultiLabelPlugin, check_owner


class MemoryPlugin(MultiLabelPlugin):
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

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Reject a plugin or a memory of another strategy."""
        super().before_training(strategy, **kwargs)
        check_owner(self.storage_policy, strategy)

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

    def stream_rows(self, n_rows: int) -> Tensor:
        """Which rows of a batch are images of the stream, in any of their views, ``[n_rows]``."""
        rows_per_view = max(1, n_rows // self.views)
        return torch.arange(n_rows) % rows_per_view < self.n_stream

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


class OnlineReplayPlugin(MemoryPlugin):
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


def newer_as_negative(targets: Tensor, n_seen: int) -> Tensor:
    """Return targets with 0 for seen classes that are newer than those an image is annotated for."""
    columns = torch.arange(targets.shape[1], device=targets.device)
    last_annotated = columns.where(~targets.isnan(), -1).amax(dim=1, keepdim=True)  # -1: none
    newer = (columns > last_annotated) & (last_annotated >= 0) & (columns < n_seen)
    return targets.masked_fill(newer, 0.0)


def stream_targets(strategy: SupervisedTemplate) -> Tensor:
    """Targets of the current batch, ``[B, n_classes]``, NaN for replayed images: they were counted before."""
    memory = find_memory(strategy)
    if memory is None:
        return strategy.mb_y
    targets = strategy.mb_y.clone()
    targets[memory.n_stream :] = torch.nan
    return targets


def find_memory(strategy: SupervisedTemplate) -> MemoryPlugin | None:
    """The memory plugin of a strategy, or None; a ValueError if there are several."""
    memories = [plugin for plugin in strategy.plugins if isinstance(plugin, MemoryPlugin)]
    if len(memories) > 1:
        names = ", ".join(type(plugin).__name__ for plugin in memories)
        raise ValueError(f"A strategy can replay from one memory only, but has {names}; remove one of them.")
    return memories[0] if memories else None


def check_replay_is_known(strategy: SupervisedTemplate) -> None:
    """Reject Avalanche's replay where no unlabelled cell tells replayed images from those of the stream."""
    if not any(isinstance(plugin, ReplayPlugin) for plugin in strategy.plugins):
        return
    experience = strategy.experience
    n_seen = count_seen(experience)
    unlabelled = experience.dataset.targets[0][:n_seen].isnan().any()  # type: ignore[attr-defined]
    n_own = getattr(origin_of(experience), "n_own_classes", n_seen)
    reason = None
    if origin_of(experience) is not experience:
        reason = "pieces of an online stream have labels for the same classes as earlier ones"
    elif n_own < n_seen and not unlabelled:
        reason = "the benchmark has unlabelled_as_negative=True"
    if reason is not None:
        raise ValueError(
            f"Images of Avalanche's ReplayPlugin would be counted as images of the stream, as {reason}: use "
            "OnlineReplayPlugin(ReservoirBuffer(...))."
        )
