"""What a study is: streams, their parts, and the rows of each part, as data."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from avalanche_agcn.experiments.methods import Space
from avalanche_agcn.experiments.settings import (
    DATA_PATHS,
    RUNTIME_SETTINGS,
    Settings,
    change_settings,
    differences,
)

HERE = Path(__file__).parent
Choices = Mapping[str, Mapping[str, Any]]
"""Settings that trials chose for each label (`trials.py`)."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of a table.

    Attributes:
        label: its key; the seed of its trials is derived from it.
        settings: settings that differ from those of its part.
        space: settings to choose by trials.
        seeds: its seeds, if they differ from those of its part.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    seeds: Sequence[int] | None = None

    @property
    def trial_seed(self) -> int:
        """Seed of the sampler that proposes settings."""
        return zlib.crc32(self.label.encode())


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that share settings, and have one table.

    Attributes:
        base: settings that all entries share.
        trials: number of settings to try for each entry with a space.
        validation_size: share of the train images that trials are scored on; test images are not used.
        trial_settings: settings of the trials alone, such as ``limit``.
        seeds: seeds of the runs with the chosen settings.
        class_orders: class orders of these runs, each with all seeds; trials use the base's.
    """

    base: Settings
    entries: Sequence[Entry]
    trials: int = 0
    validation_size: float = 0.2
    trial_seed: int = 100
    trial_settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1, 2)
    class_orders: Sequence[str | None] = (None,)

    def final_settings(self, chosen: Choices) -> list[Settings]:
        """Settings of all runs, with those chosen for each label; by class order, then by seed."""
        rows = []
        for entry in self.entries:
            settings = {**entry.settings, **chosen_settings(chosen, entry.label)}
            rows.append((entry, change_settings(self.base, **settings, label=entry.label)))
        wanted = []
        for order, seed in product(self.class_orders, self._all_seeds()):
            for entry, settings in rows:
                if seed in (self.seeds if entry.seeds is None else entry.seeds):
                    class_order = order or settings.class_order
                    wanted.append(change_settings(settings, seed=seed, class_order=class_order))
        return wanted

    def _all_seeds(self) -> list[int]:
        seeds = set(self.seeds)
        for entry in self.entries:
            seeds.update(entry.seeds or ())
        return sorted(seeds)


@dataclass(frozen=True, kw_only=True)
class PartOfStream:
    """A part by name: the title of its section, and what declares it for given paths of data.

    ``declare`` receives the settings that the stream's parts share, and the choices of the part ``frozen``.
    """

    title: str
    declare: Callable[[Settings, Choices], Part]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of photos and what is run on it.

    Attributes:
        name: of its folder.
        title: of its section.
        base: makes the settings that all parts share, given ``dataset_root``, ``cache``, and ``files``.
        files: names of further files that its runs need, by setting: ``split_lists``, ``word_vectors``.
        parts: in the order in which they run.
    """

    name: str
    title: str
    base: Callable[..., Settings]
    parts: Mapping[str, PartOfStream]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of its declaration and tables."""
        return HERE / self.name

    def declare(self, choices: Choices, **paths: str | None) -> dict[str, Part]:
        """All parts by name, given the choices of the part ``frozen`` and paths by setting."""
        base = self.base(**{"dataset_root": self.name, **self.files, **paths})
        return {name: part.declare(base, choices) for name, part in self.parts.items()}


def chosen_settings(chosen: Choices, label: str) -> dict[str, Any]:
    """Settings that trials chose for a label; none if it had no trials."""
    return dict(chosen[label]["settings"]) if label in chosen else {}


PATHS = DATA_PATHS | {"word_vectors"}
NOT_COMPARED = RUNTIME_SETTINGS | DATA_PATHS | {"device", "label"}
"""Settings that may differ between a stored run and a wanted one: a run compares its data by fingerprints."""


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the last part of each path alone, which does not depend on the machine."""
    short = dict(settings)
    for name in PATHS & settings.keys():
        if settings[name] is not None:
            short[name] = Path(settings[name]).name
    return short


def changed_settings(stored: Mapping[str, Any], wanted: Settings) -> list[str]:
    """Settings by which a stored run differs from a wanted one, as text; empty if it need not be run again.

    Word vectors are compared by the name of their file.
    """
    changed = differences(portable(stored), portable(wanted.as_dict()), but=NOT_COMPARED)
    before = stored.get("label") or stored.get("method")
    now = wanted.label or wanted.method
    return changed if before == now else [*changed, f"label: {before}, now {now}"]
