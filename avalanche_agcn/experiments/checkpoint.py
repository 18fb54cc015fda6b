"""Saving a run as it goes, also in the midst of an experience, and going on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.experiments.state import random_state, set_random_state
from avalanche_agcn.training.plugins.replay import MemoryPlugin
from avalanche_agcn.training.strategies import MultiLabelTemplate

State = dict[str, Any]


def capture(strategy: MultiLabelTemplate) -> State:
    """All that training goes on from: weights, optimizer, plugins, history, random numbers."""
    return {
        "model": strategy.model.state_dict(),
        "optimizer": strategy.optimizer.state_dict(),
        "scaler": strategy.scaler.state_dict(),
        "plugins": [plugin.state_dict() for plugin in _stateful(strategy)],
        "nested": find_nested(strategy).state_dict(),
        "clock": {name: value for name, value in vars(strategy.clock).items() if isinstance(value, int)},
        "random": random_state(),
    }


def restore(strategy: MultiLabelTemplate, state: State, train_stream: Any) -> None:
    """Take over what `capture` gave, but for the optimizer, which Avalanche sets up when training begins."""
    strategy.model.load_state_dict(state["model"])
    strategy.scaler.load_state_dict(state["scaler"])
    for plugin, saved in zip(_stateful(strategy), state["plugins"], strict=True):
        if not isinstance(plugin, MemoryPlugin):
            plugin.load_state_dict(saved)
    find_nested(strategy).load_state_dict(state["nested"])
    strategy.clock.__dict__.update(state["clock"])
    restore_drawing(strategy, state, train_stream)


def restore_drawing(strategy: MultiLabelTemplate, state: State, train_stream: Any) -> None:
    """Let what is drawn go on from `capture`: random numbers, and memories with generators of their own."""
    for plugin, saved in zip(_stateful(strategy), state["plugins"], strict=True):
        if isinstance(plugin, MemoryPlugin):
            plugin.load_state_dict(saved, train_stream)
    set_random_state(state["random"])


class CheckpointPlugin(SupervisedPlugin):
    """Saves the state every few minutes within an experience, and goes on from one.

    It must stand behind all plugins that take part in training; `attach` puts it there. Batches are drawn in
    an order of its own, so that those before the saved one can be left out without opening their images.

    Args:
        save: Called with the position in the experience (``epoch``, ``batch``, ``epoch_random``).
        minutes: How often.
    """

    def __init__(self, save: Callable[[State], None], *, minutes: float) -> None:
        super().__init__()
        self._save, self._seconds = save, 60 * minutes
        self._resumed: State | None = None
        self._restore_random: Callable[[], None] = lambda: None
        self._epoch = self._batch = 0
        self._epoch_random: State = {}
        self._last_save = time.monotonic()

    def attach(self, strategy: MultiLabelTemplate) -> None:
        """Put the plugin behind those of the method, before the evaluator."""
        strategy.plugins.insert(strategy.plugins.index(strategy.evaluator), self)

    def resume(self, position: State, optimizer: State, restore_random: Callable[[], None]) -> None:
        """Go on in the next experience from a position that was saved.

        Args:
            position: What ``save`` was called with.
            optimizer: Its state then.
            restore_random: Sets all random numbers to where they were then.
        """
        self._resumed = {"position": position, "optimizer": optimizer}
        self._restore_random = restore_random

    def before_training_exp(
        self, strategy: SupervisedTemplate, *args: Any, num_workers: int = 0, **kwargs: Any
    ) -> None:
        """Make the loader one that can leave out batches, and take over a saved optimizer."""
        self._epoch = 0
        strategy.dataloader = _resumable(strategy, num_workers)
        if self._resumed is not None:
            strategy.optimizer.load_state_dict(self._resumed["optimizer"])
            self._epoch = self._resumed["position"]["epoch"]

    def before_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Note where the random numbers stand, or set them and leave out what was trained on."""
        self._batch = 0
        if self._resumed is not None:
            position, self._resumed = self._resumed["position"], None
            set_random_state(position["epoch_random"])
            self._batch = position["batch"]
            strategy.dataloader.batch_sampler.leave_out(self._batch, self._restore_random)
        self._epoch_random = random_state()

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Save if it is time."""
        self._batch += 1
        if time.monotonic() - self._last_save >= self._seconds:
            self._save({"epoch": self._epoch, "batch": self._batch, "epoch_random": self._epoch_random})
            self._last_save = time.monotonic()

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the epoch."""
        self._epoch += 1


class _Batches(Sampler[list[Any]]):
    """Batches of another sampler, from any one on."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self._left_out = 0
        self._then: Callable[[], None] = lambda: None

    def leave_out(self, n: int, then: Callable[[], None]) -> None:
        """Begin the next epoch with batch ``n``; ``then`` is called in between."""
        self._left_out, self._then = n, then

    def __len__(self) -> int:
        return len(self.batches) - self._left_out

    def __iter__(self) -> Iterator[list[Any]]:
        iterator = iter(self.batches)
        if self._left_out:
            for _ in range(self._left_out):
                next(iterator)
                if hasattr(self.batches, "next_stream_indices"):
                    self.batches.next_stream_indices()
            self._left_out = 0
            self._then()
        yield from iterator


def _resumable(strategy: SupervisedTemplate, num_workers: int) -> DataLoader:
    """The strategy's loader anew, over `_Batches`."""
    loader: Any = strategy.dataloader
    dataset: Any = strategy.adapted_dataset
    if isinstance(loader, DataLoader):  # a memory's
        dataset, batches = loader.dataset, loader.batch_sampler
    else:
        batches = BatchSampler(RandomSampler(range(len(dataset))), strategy.train_mb_size, drop_last=False)
    collate_fn = strategy.adapted_dataset.collate_fn
    return DataLoader(
        dataset, batch_sampler=_Batches(batches), collate_fn=collate_fn, num_workers=num_workers
    )


def _stateful(strategy: MultiLabelTemplate) -> list[Any]:
    return [plugin for plugin in strategy.plugins if hasattr(plugin, "state_dict")]
