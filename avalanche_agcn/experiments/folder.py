"""The folder of a run: one process at a time writes to it, and nothing is overwritten by mistake."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from filelock import FileLock

from avalanche_agcn.benchmarks.json_files import check_fields
from avalanche_agcn.experiments.checkpoint import DamagedState, State, load_state, write_json
from avalanche_agcn.experiments.fingerprint import Fingerprint, changed_data
from avalanche_agcn.experiments.results import RESULTS_FILE, Results, read_results
from avalanche_agcn.experiments.settings import (
    DATA_PATHS,
    RUNTIME_SETTINGS,
    Settings,
    check_format,
    differences,
)

LOCK_FILE, STATE_FILE = "lock.json", "state.bin"
PLAIN = bool | int | float | str | None
STATE_FIELDS: dict[str, Any] = {
    "settings": dict[str, PLAIN | list[PLAIN] | dict[str, PLAIN]],
    "position": dict,
    "seconds": dict[str, float],
    "layout": list[str],
    "data": dict[str, dict[str, str]],
}
POSITION_FIELDS: dict[str, Any] = {"experience": int, "trained": bool, "within": dict[str, int] | None}
ADVICE = "choose another --out, or give --overwrite to replace it."


class FolderInUse(ValueError):
    """Another process runs in the folder."""


class OtherRun(ValueError):
    """The folder has a run with other settings or on other data."""


class BegunRun(ValueError):
    """The folder has a run that was begun, and it is not said whether to continue it."""


class FolderContent(NamedTuple):
    """What a run's folder has: the results of a finished run, or else the state of one that was begun."""

    results: Results | None = None
    state: State | None = None

    def check_data(self, folder: Path, data: Fingerprint) -> None:
        """Raise `OtherRun`, with what changed, if the data are others than those of the run."""
        if self.results is not None:
            path, saved = folder / RESULTS_FILE, self.results.data
        else:
            path, saved = folder / STATE_FILE, (self.state or {}).get("data")
        changed = [] if saved is None else changed_data(saved, data)
        if changed:
            raise OtherRun(
                f"{path} was saved with other data; changed: {', '.join(changed)}; restore them, {ADVICE}"
            )


def read_folder(folder: Path, settings: Settings, resume: bool, log: Callable[[str], None]) -> FolderContent:
    """What a folder has of the run with these settings.

    Raises:
        OtherRun: if it has a run with other settings.
        BegunRun: if it has a run that was begun, without ``resume``.
        ValueError: if a file in it is not one of ours, or of another version.
    """
    results, state = folder / RESULTS_FILE, folder / STATE_FILE
    if results.is_file():
        finished = read_results(results)
        _check_settings(results, finished.settings, settings)
        return FolderContent(results=finished)
    if not state.is_file():
        if resume:
            log(f"{settings.name}: no {state} to continue from; starting from the beginning")
        return FolderContent()
    return FolderContent(state=_read_begun(state, settings, resume, log))


def _read_begun(path: Path, settings: Settings, resume: bool, log: Callable[[str], None]) -> State | None:
    """The state of a run that was begun; None if it is damaged, so that there is nothing to continue from."""
    try:
        state = load_state(path)
    except DamagedState as error:
        if not resume:
            raise
        log(f"{settings.name}: {str(error).rstrip('.')}; it is not used: starting from the beginning")
        return None
    check_fields(state, STATE_FIELDS, str(path))
    check_fields(state["position"], POSITION_FIELDS, f"{path}: position")
    if state["position"]["within"] is not None:
        check_fields(state["position"]["within"], {"epoch": int, "batch": int}, f"{path}: position.within")
    _check_settings(path, state["settings"], settings)
    if not resume:
        raise BegunRun(
            f"{path.parent} has a run that was begun: give --resume to continue it, or --overwrite to start "
            "from the beginning."
        )
    return state


def _check_settings(path: Path, old: Mapping[str, Any], new: Settings) -> None:
    check_format(path, old)
    changed = differences(old, new.as_dict(), but=RUNTIME_SETTINGS | DATA_PATHS)
    if changed:
        raise OtherRun(
            f"{path} was saved with other settings ({'; '.join(changed)}): run with those, {ADVICE}"
        )


class RunLock:
    """Lock of a run's folder: a file that names the process which writes there.

    A process that was killed leaves the file behind; the next one on the same machine takes it over. Several
    runs of one process may have the same folder, one after the other.

    Args:
        folder: folder of the run; it is created.

    Raises:
        FolderInUse: if another process has the lock; the message names its id and host.
        OSError: if the folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.path = Path(folder) / LOCK_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._guard():
            owner = _read(self.path)
            if owner is not None and owner != _myself() and _is_alive(owner):
                raise FolderInUse(
                    f"{self.path.parent} is in use by process {owner['pid']} on {owner['host']}: wait for "
                    f"it, choose another --out, or remove {self.path} if that process has ended."
                )
            write_json(self.path, _myself())

    def release(self) -> None:
        """Let other processes use the folder."""
        with self._guard():
            if _read(self.path) == _myself():
                self.path.unlink()

    def _guard(self) -> FileLock:
        """Held for moments only: a process forked from the owner would keep a longer lock past its end."""
        return FileLock(self.path.parent.parent / ".lock")


def _myself() -> dict[str, Any]:
    """This process; its start tells it from a later one of the same id."""
    process = psutil.Process()
    return {"pid": process.pid, "host": socket.gethostname(), "started": process.create_time()}


def _read(path: Path) -> dict[str, Any] | None:
    """The owner that a lock names; None if there is no lock or it is not one of ours."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return {"pid": int(owner["pid"]), "host": str(owner["host"]), "started": float(owner["started"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_alive(owner: dict[str, Any]) -> bool:
    if owner["host"] != socket.gethostname():
        return True  # as far as this machine knows
    try:
        process = psutil.Process(owner["pid"])
        same = abs(process.create_time() - owner["started"]) < 1  # second
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False
