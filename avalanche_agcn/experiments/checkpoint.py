"""Saving a run as it goes, also in the midst of an experience, and going on from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.experiments.loader import resumable_loader
from avalanche_agcn.experiments.state import random_state, set_random_state
from avalanche_agcn.training.plugins.replay import MemoryPlugin
from avalanche_agcn.training.strategies import MultiLabelTemplate

State = dict[str, Any]


def capture(strategy: MultiLabelTemplate) -> State:
    """All that training goes on from: weights, optimizer, plugins, history, random numbers."""
    return {
        "layout": layout(strategy),
        "model": strategy.model.state_dict(),
        "optimizer": strategy.optimizer.state_dict(),
        "scaler": strategy.scaler.state_dict(),
        "plugins": [plugin.state_dict() for plugin in _others(strategy)],
        "nested": find_nested(strategy).state_dict(),
        "clock": {name: value for name, value in vars(strategy.clock).items() if isinstance(value, int)},
        **capture_drawing(strategy),
    }


def layout(strategy: MultiLabelTemplate) -> list[str]:
    """What has a state, by name: a state of another layout was written by another version of the package."""
    return [type(plugin).__name__ for plugin in (*_others(strategy), *_memories(strategy))]


def capture_drawing(strategy: MultiLabelTemplate) -> State:
    """The part of `capture` that decides which images come next: memories and random numbers."""
    return {
        "memories": [plugin.state_dict() for plugin in _memories(strategy)],
        "random": random_state(),
    }


def restore(strategy: MultiLabelTemplate, state: State, train_stream: Any) -> None:
    """Take over what `capture` gave, but for the optimizer, which Avalanche sets up when training begins."""
    strategy.model.load_state_dict(state["model"])
    strategy.scaler.load_state_dict(state["scaler"])
    for plugin, saved in zip(_others(strategy), state["plugins"], strict=True):
        plugin.load_state_dict(saved)
    for memory, saved in zip(_memories(strategy), state["memories"], strict=True):
        memory.load_state_dict(saved, train_stream)
    find_nested(strategy).load_state_dict(state["nested"])
    strategy.clock.__dict__.update(state["clock"])
    set_random_state(state["random"])


class CheckpointPlugin(SupervisedPlugin):
    """Saves the state every few minutes within an experience, and goes on from one.

    It must stand behind all plugins that take part in training; `attach` puts it there. What is drawn in an
    epoch follows from how it began, so that an epoch can begin again and leave out the batches that were
    trained on, without opening their images: see `resumable_loader`.

    Args:
        save: Called with the position in the experience: ``epoch`` and ``batch`` to go on with, and what was
            drawn from as the epoch ``began``, see `capture_drawing`.
        minutes: How often.
    """

    def __init__(self, save: Callable[[State], None], *, minutes: float) -> None:
        super().__init__()
        self._save, self._seconds = save, 60 * minutes
        self._resumed: State | None = None
        self._epoch = self._batch = 0
        self._began: State = {}
        self._last_save = time.monotonic()

    def attach(self, strategy: MultiLabelTemplate) -> None:
        """Put the plugin behind those of the method, before the evaluator."""
        strategy.plugins.insert(strategy.plugins.index(strategy.evaluator), self)

    def resume(self, position: State, optimizer: State, random: State) -> None:
        """Go on in the next experience from a position that was saved.

        Memories must be as when the epoch began, all else as when it was saved.

        Args:
            position: What ``save`` was called with.
            optimizer: Its state then.
            random: Where the random numbers stood then.
        """
        self._resumed = {"position": position, "optimizer": optimizer, "random": random}

    def before_training_exp(
        self, strategy: SupervisedTemplate, *args: Any, num_workers: int = 0, **kwargs: Any
    ) -> None:
        """Make the loader one that can leave out batches, and take over a saved optimizer."""
        self._epoch = 0
        strategy.dataloader = resumable_loader(strategy, num_workers)
        if self._resumed is not None:
            strategy.optimizer.load_state_dict(self._resumed["optimizer"])
            self._epoch = self._resumed["position"]["epoch"]

    def before_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Note how the epoch begins, or let it begin as it did and leave out what was trained on."""
        self._batch = 0
        if self._resumed is not None:
            resumed, self._resumed = self._resumed, None
            set_random_state(resumed["position"]["began"]["random"])
            self._batch = resumed["position"]["batch"]
            go_on = partial(set_random_state, resumed["random"])
            strategy.dataloader.batch_sampler.leave_out(self._batch, go_on)
        self._began = capture_drawing(strategy)

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Save if it is time."""
        self._batch += 1
        if time.monotonic() - self._last_save >= self._seconds:
            self._save({"epoch": self._epoch, "batch": self._batch, "began": self._began})
            self._last_save = time.monotonic()

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the epoch."""
        self._epoch += 1


def _memories(strategy: MultiLabelTemplate) -> list[MemoryPlugin]:
    return [plugin for plugin in strategy.plugins if isinstance(plugin, MemoryPlugin)]


def _others(strategy: MultiLabelTemplate) -> list[Any]:
    plugins = [plugin for plugin in strategy.plugins if not isinstance(plugin, MemoryPlugin)]
    return [plugin for plugin in plugins if hasattr(plugin, "state_dict")]
