"""State of a run: captured from a strategy, saved to disk and restored, also within an experience.

Files are written atomically and read without executing code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_agcn.checks import check_size, shorten, write_atomically
from avalanche_agcn.evaluation import find_nested
from avalanche_agcn.experiments.exit_codes import Stopped, requested_signal
from avalanche_agcn.experiments.recorder import EvaluationRecorder, count_bytes
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.distributed import largest_of_processes
from avalanche_agcn.training.memory import MemoryPlugin
from avalanche_agcn.training.template import MultiLabelTemplate

State = dict[str, Any]


def capture(strategy: MultiLabelTemplate) -> State:
    """Everything that training resumes from. Collective: first reduces the sums of all processes."""
    for plugin in strategy.plugins:
        if hasattr(plugin, "synchronize"):
            plugin.synchronize(strategy)
    others, memories = _stateful_plugins(strategy)
    return {
        "layout": [type(plugin).__name__ for plugin in others + memories],
        "model": unwrap(strategy.model).state_dict(),
        "optimizer": strategy.optimizer.state_dict(),
        "scaler": strategy.scaler.state_dict(),
        "seed": strategy.seed,
        "piece_of": strategy.piece_of,
        "plugins": [plugin.state_dict() for plugin in others],
        "memories": [plugin.state_dict() for plugin in memories],
        "nested": find_nested(strategy).state_dict(),
        "clock": {name: value for name, value in vars(strategy.clock).items() if isinstance(value, int)},
        "random": random_state(),
    }


def count_stored(strategy: MultiLabelTemplate) -> dict[str, int]:
    """Storage of a method besides its model: ``images`` in memories, and ``bytes`` of tensors of plugins."""
    others, memories = _stateful_plugins(strategy)
    states = [plugin.state_dict() for plugin in others if not isinstance(plugin, EvaluationRecorder)]
    n_images = sum(len(memory.storage_policy) for memory in memories)
    return {"images": n_images, "bytes": count_bytes(states)}


def _stateful_plugins(strategy: MultiLabelTemplate) -> tuple[list[Any], list[MemoryPlugin]]:
    """Plugins with a state, and separately memories, which need the stream to restore theirs."""
    known = [plugin for plugin in strategy.plugins if hasattr(plugin, "state_dict")]
    memories = [plugin for plugin in known if isinstance(plugin, MemoryPlugin)]
    return [plugin for plugin in known if not isinstance(plugin, MemoryPlugin)], memories


def restore(strategy: MultiLabelTemplate, state: State, train_stream: Any) -> None:
    """Restore what `capture` returned, except the optimizer where it is reset when training starts.

    It is kept without ``reset_optimizer_state``, and between two pieces of an online stream. If the state
    does not fit the strategy, an exception of any type is raised; see `fitting_state`. Collective.
    """
    current = capture(strategy)
    if state["layout"] != current["layout"]:
        changed = sorted(set(state["layout"]) ^ set(current["layout"])) or "their order"
        raise ValueError(f"it is of another version or strategy; plugins that differ: {changed}")
    check_form(state, current)
    unwrap(strategy.model).load_state_dict(state["model"])
    strategy.model = strategy.model.to(strategy.device)  # Avalanche would move it only when it trains
    strategy.scaler.load_state_dict(state["scaler"])
    strategy.seed = state["seed"]
    strategy.piece_of = state.get("piece_of")  # states of earlier versions have none
    if strategy.piece_of is not None or not strategy.reset_optimizer_state:
        _restore_optimizer(strategy, state["optimizer"])
    others, memories = _stateful_plugins(strategy)
    for plugin, saved in zip(others, state["plugins"], strict=True):
        plugin.load_state_dict(saved)
    for memory, saved in zip(memories, state["memories"], strict=True):
        memory.load_state_dict(saved, train_stream)
    find_nested(strategy).load_state_dict(state["nested"])
    strategy.clock.__dict__.update(state["clock"])
    set_random_state(state["random"])


def check_form(saved: Any, expected: Any, place: str = "") -> None:
    """Raise a ValueError if a value has another type than in a new strategy, or a tensor other dimensions.

    Values that a new strategy does not have yet, and sizes, which may grow, are not compared.
    """
    if isinstance(expected, dict) and isinstance(saved, dict):
        for name in expected.keys() & saved.keys():
            check_form(saved[name], expected[name], f"{place}[{name!r}]")
    elif isinstance(expected, (list, tuple)) and isinstance(saved, (list, tuple)):
        for k, (saved_item, expected_item) in enumerate(zip(saved, expected, strict=False)):
            check_form(saved_item, expected_item, f"{place}[{k}]")
    elif expected is not None and _form(saved) != _form(expected):
        raise ValueError(f"its {place} is {saved!s:.40}, but must be {_form(expected)}")


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} in {value.ndim} dimensions"
    return f"of type {type(value).__name__}"


def _restore_optimizer(strategy: MultiLabelTemplate, saved: State) -> None:
    """Load the optimizer's state, with averages of 0 for rows of classes that the saved model lacks."""
    optimizer = strategy.optimizer
    names, expected = (
        [group.keys() for group in one["param_groups"]] for one in (saved, optimizer.state_dict())
    )
    if names != expected:
        raise ValueError("its optimizer is of another type or has other groups of parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {}
    for k, averages in saved["state"].items():
        state[k] = {name: _with_rows(value, parameters[k]) for name, value in averages.items()}
    optimizer.load_state_dict({**saved, "state": state})
    strategy.optimized_param_id = dict(unwrap(strategy.model).named_parameters())  # or Avalanche resets it


def _with_rows(value: Any, parameter: Tensor) -> Any:
    """A tensor with as many rows as a parameter, the further ones 0; other values as they are."""
    if not isinstance(value, Tensor) or value.ndim != parameter.ndim or value.ndim == 0:
        return value
    return torch.cat([value, value.new_zeros(len(parameter) - len(value), *value.shape[1:])])


def check_optimizer(optimizer: torch.optim.Optimizer, saved: State) -> None:
    """Load a saved state into an Adam, and raise a ValueError if it is not one of this optimizer.

    PyTorch itself would fail only at the first step, or accept wrong settings.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(saved)
    for loaded, expected_group in zip(optimizer.state_dict()["param_groups"], groups, strict=True):
        # Another version of PyTorch may have more settings.
        if any(loaded.get(name) != value for name, value in expected_group.items()):
            raise ValueError("its optimizer has other settings or other parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for k, averages in saved["state"].items():
        shapes = {name: value.shape for name, value in averages.items() if value.is_floating_point()}
        if shapes != {"step": (), "exp_avg": parameters[k].shape, "exp_avg_sq": parameters[k].shape}:
            raise ValueError(f"its optimizer has averages with other names or shapes for parameter {k}")


def save_strategy(path: str | os.PathLike, strategy: MultiLabelTemplate) -> None:
    """Save a strategy between two experiences, to train it on further ones in another process."""
    save_state(path, capture(strategy))


def load_strategy(path: str | os.PathLike, strategy: MultiLabelTemplate, train_stream: Any) -> None:
    """Load a state of `save_strategy`, or ``state.bin`` of a finished run, into a new strategy.

    It must have the same plugins; its model may be for more classes. The first experiences of the stream are
    those of the saved strategy, for its memory. The optimizer is loaded only where it is not reset when
    training starts: with ``reset_optimizer_state=False``, or between two pieces of an online stream.
    `load_run` makes strategy and stream by itself. Collective.
    """
    state = load_state(path)
    with fitting_state(path, "make the strategy with the settings and plugins that it was saved with."):
        restore(strategy, without_recorder(state), train_stream)


def without_recorder(state: State) -> State:
    """A state without that of the recorder, which only runs have."""
    others = [k for k, name in enumerate(state["layout"]) if name != EvaluationRecorder.__name__]
    layout = [state["layout"][k] for k in others]
    plugins = [state["plugins"][k] for k in others if k < len(state["plugins"])]  # memories follow
    return {**state, "layout": layout, "plugins": plugins}


def without_pictures(state: State) -> State:
    """A state of a run without its recorded pictures, for another choice of pictures."""
    plugins = list(state["plugins"])
    place = state["layout"].index(EvaluationRecorder.__name__)
    plugins[place] = {**plugins[place], "rows": {}}
    return {**state, "plugins": plugins}


LOWER_RATE = "the learning rate is probably too high; choose a lower --lr, --lr-head or --lr-gcn."


class Diverged(ValueError):
    """The loss or weights are not finite."""


class CheckpointPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
    """Saves the state every few minutes within an experience, and resumes from it.

    ``save`` is called with the position to resume at: ``epoch``, ``batch``, and ``iterations`` of the clock.
    """

    def __init__(self, save: Callable[[State], None], *, minutes: float) -> None:
        super().__init__()
        self._save = save
        self._seconds = 60 * minutes
        self._resumed: State | None = None
        self._epoch = 0
        self._batch = 0
        self._iterations = 0  # of all experiences, up to the last batch
        self._last_save = time.monotonic()

    def resume(self, position: State, state: State) -> None:
        """Resume the next experience at a position that ``save`` was called with, and from that state."""
        self._resumed = position | {name: state[name] for name in ("optimizer", "random")}

    def before_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Skip finished epochs and batches, and restore the optimizer."""
        self._epoch = 0
        self._batch = 0
        if self._resumed is not None:
            self._epoch = self._resumed["epoch"]
            self._batch = self._resumed["batch"]
            strategy.train_epochs -= self._epoch
            # The sampler draws skipped batches without their images, so that its memory sees their labels.
            strategy.dataloader.batch_sampler.set_position(self._epoch, self._batch)
            # Only now, since Avalanche has just reset the optimizer for the experience.
            strategy.optimizer.load_state_dict(self._resumed["optimizer"])

    def before_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Restore the RNG state last: plugins may draw random numbers when an experience starts."""
        if self._resumed is not None:
            strategy.train_epochs += self._epoch  # Avalanche's loop has read it; loggers show all epochs
            strategy.clock.train_exp_epochs = self._epoch
            # The clock counts a batch after this plugin has saved; earlier versions kept its number.
            counted = strategy.clock.train_iterations + 1
            strategy.clock.train_iterations = self._resumed.get("iterations", counted)
            set_random_state(self._resumed["random"])
            self._resumed = None

    def after_training_iteration(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Save if due; raise `Stopped` after a save on a signal, or `Diverged` without a save."""
        self._check_loss(strategy)
        self._batch += 1
        self._iterations = strategy.clock.train_iterations + 1  # the clock follows this plugin
        due = time.monotonic() - self._last_save >= self._seconds
        # 0: nothing; 1: save; more: a signal. The largest of all processes, since all must save at the same
        # batch, but their clocks differ, and a signal may reach only one of them.
        request = largest_of_processes(requested_signal() or int(due))
        if request:
            self.save()
        if request > 1:
            raise Stopped(request)

    def save(self) -> None:
        """Save the state after the last batch."""
        self._save({"epoch": self._epoch, "batch": self._batch, "iterations": self._iterations})
        self._last_save = time.monotonic()

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the epoch."""
        self._epoch += 1
        self._batch = 0

    def _check_loss(self, strategy: Any) -> None:
        """With float16, the scaler skips steps that are not finite, until its scale cannot be reduced."""
        loss = float(torch.as_tensor(strategy.loss).detach())
        skipped = strategy.scaler.is_enabled() and strategy.scaler.get_scale() > 1
        if not math.isfinite(loss) and not skipped:
            experience = strategy.experience.current_experience + 1
            place = f"step {self._batch + 1} of epoch {self._epoch + 1} of experience {experience}"
            raise Diverged(f"the loss is {loss} at {place}: {LOWER_RATE}")


MAGIC = b"avalanche-agcn state 1\n"
MAX_STATE_BYTES = 2**36
"""Size of the largest state that is read: the sums of L3A's random features have gigabytes."""


class DamagedState(ValueError):
    """A file that is not a state of this package, or is incomplete."""


def save_state(path: str | os.PathLike, state: State) -> None:
    """Write tensors, numbers, strings and containers of them, atomically and with a checksum."""
    content = io.BytesIO()
    torch.save(state, content)
    payload = content.getbuffer()
    checksum = hashlib.sha256(payload).digest()
    write_atomically(path, lambda file: file.writelines([MAGIC, checksum, payload]))


def load_state(path: str | os.PathLike) -> State:
    """Read a file of `save_state` without running code in it; raise `DamagedState` for any other file."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise DamagedState(f"{path} is not a saved state of this package")
        try:
            check_size(path, os.fstat(file.fileno()).st_size, MAX_STATE_BYTES)
        except ValueError as error:
            raise DamagedState(str(error)) from None
        checksum = file.read(hashlib.sha256().digest_size)
        payload = file.read()
    if hashlib.sha256(payload).digest() != checksum:
        raise DamagedState(f"{path} is damaged or was only partly written")
    try:
        _check_unpacked_size(payload)
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # of torch's reader, of any type
        kind = type(error).__name__
        raise DamagedState(
            f"{path} has the right checksum, but not only tensors and plain values ({kind})"
        ) from error


def _check_unpacked_size(payload: bytes) -> None:
    """Raise a ValueError if the file would grow when it is unpacked: `torch.save` compresses nothing."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        if sum(member.file_size for member in archive.infolist()) > len(payload):
            raise ValueError("it is compressed")


@contextlib.contextmanager
def fitting_state(path: str | os.PathLike, remedy: str) -> Iterator[None]:
    """Turn any error that a state with other keys or shapes causes into a ValueError that names its file."""
    try:
        yield
    except Exception as error:  # of any type, since any value of the state may be wrong
        reason = shorten(" ".join(str(error).split()), 200).rstrip(".")
        message = f"{path} does not fit ({type(error).__name__}: {reason})"
        raise ValueError(f"{message}: {remedy}") from error


def seed_everything(seed: int) -> None:
    """Seed the random number generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that other libraries use
    torch.manual_seed(seed)


def random_state() -> State:
    """State of the random number generators of Python, NumPy and torch, as plain values."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: State) -> None:
    """Restore the RNG state returned by `random_state`."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    for device, generator_state in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(generator_state, device)  # of those that this machine has


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write content as JSON, atomically; NaN is an error: use None."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
