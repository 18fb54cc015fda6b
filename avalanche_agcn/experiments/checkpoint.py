"""Saving a run as it goes, also in the midst of an experience, and going on from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.experiments.state import random_state, set_random_state
from avalanche_agcn.training.plugins.replay import MemoryPlugin
from avalanche_agcn.training.strategies import MultiLabelTemplate

State = dict[str, Any]


def capture(strategy: MultiLabelTemplate) -> State:
    """Everything that training resumes from: weights, optimizer, plugins, scores, generators."""
    return {
        "layout": layout(strategy),
        "model": strategy.model.state_dict(),
        "optimizer": strategy.optimizer.state_dict(),
        "scaler": strategy.scaler.state_dict(),
        "seed": strategy.seed,
        "plugins": [plugin.state_dict() for plugin in _others(strategy)],
        "memories": [plugin.state_dict() for plugin in _memories(strategy)],
        "nested": find_nested(strategy).state_dict(),
        "clock": {name: value for name, value in vars(strategy.clock).items() if isinstance(value, int)},
        "random": random_state(),
    }


def layout(strategy: MultiLabelTemplate) -> list[str]:
    """Names of the plugins with a state: a state with another layout was written by another version."""
    return [type(plugin).__name__ for plugin in (*_others(strategy), *_memories(strategy))]


def restore(strategy: MultiLabelTemplate, state: State, train_stream: Any) -> None:
    """Restore what `capture` returned, except the optimizer, which Avalanche resets when training begins."""
    strategy.model.load_state_dict(state["model"])
    strategy.scaler.load_state_dict(state["scaler"])
    strategy.seed = state["seed"]
    for plugin, saved in zip(_others(strategy), state["plugins"], strict=True):
        plugin.load_state_dict(saved)
    for memory, saved in zip(_memories(strategy), state["memories"], strict=True):
        memory.load_state_dict(saved, train_stream)
    find_nested(strategy).load_state_dict(state["nested"])
    strategy.clock.__dict__.update(state["clock"])
    set_random_state(state["random"])


class CheckpointPlugin(SupervisedPlugin):
    """Saves the state every few minutes within an experience, and resumes from it.

    It must follow all plugins that take part in training; `attach` puts it there.

    Args:
        save: called with the position to resume at: ``epoch`` and ``batch``.
        minutes: minutes between two saves.
    """

    def __init__(self, save: Callable[[State], None], *, minutes: float) -> None:
        super().__init__()
        self._save, self._seconds = save, 60 * minutes
        self._resumed: State | None = None
        self._epoch = self._batch = 0
        self._last_save = time.monotonic()

    def attach(self, strategy: MultiLabelTemplate) -> None:
        """Insert the plugin after those of the method, before the evaluator."""
        strategy.plugins.insert(strategy.plugins.index(strategy.evaluator), self)

    def resume(self, position: State, state: State) -> None:
        """Resume the next experience at a position.

        Args:
            position: what ``save`` was called with.
            state: what `capture` returned then.
        """
        self._resumed = {"position": position, "optimizer": state["optimizer"], "random": state["random"]}

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Skip finished batches and restore the optimizer."""
        self._epoch = self._batch = 0
        if self._resumed is not None:
            position = self._resumed["position"]
            self._epoch, self._batch = position["epoch"], position["batch"]
            strategy.dataloader.batch_sampler.set_position(self._epoch, self._batch)
            strategy.optimizer.load_state_dict(self._resumed["optimizer"])

    def before_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Restore the generators last: plugins may draw while an experience begins."""
        if self._resumed is not None:
            set_random_state(self._resumed["random"])
            self._resumed = None

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Save if it is time."""
        self._batch += 1
        if time.monotonic() - self._last_save >= self._seconds:
            self._save({"epoch": self._epoch, "batch": self._batch})
            self._last_save = time.monotonic()

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the epoch."""
        self._epoch, self._batch = self._epoch + 1, 0


def _memories(strategy: MultiLabelTemplate) -> list[MemoryPlugin]:
    return [plugin for plugin in strategy.plugins if isinstance(plugin, MemoryPlugin)]


def _others(strategy: MultiLabelTemplate) -> list[Any]:
    plugins = [plugin for plugin in strategy.plugins if not isinstance(plugin, MemoryPlugin)]
    return [plugin for plugin in plugins if hasattr(plugin, "state_dict")]
