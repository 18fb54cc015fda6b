"""The folder of a run: one process at a time writes to it, and nothing is overwritten by mistake.

A run is not resumed on other data, which fingerprints detect. They include the contents of all files up to
`CONTENT_BYTES` in total; beyond that, all names and sizes, and the contents of `N_SAMPLED` files, which takes
about a second for a data set like COCO.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.benchmarks.multilabel import Images, MultiLabelSource, Plan, image_name
from avalanche_agcn.checks import UNFINISHED, check_fields
from avalanche_agcn.experiments.checkpoint import DamagedState, State, load_state, write_text
from avalanche_agcn.experiments.results import RESULTS_FILE, Results, read_results
from avalanche_agcn.experiments.settings import (
    DATA_PATHS,
    RUNTIME_SETTINGS,
    Settings,
    check_format,
    differences,
)
from avalanche_agcn.training.loader import preserve_rng_state

CONTENT_BYTES = 2**30
N_SAMPLED = 256

Fingerprint = dict[str, dict[str, str]]
"""Digests by stream and part: images, labels, sizes, contents, order."""
PARENT = "parent"
"""In the fingerprint of a run that continues another: which one, in place of a stream."""


def data_fingerprint(plan: Plan) -> Fingerprint:
    """Digests of images and labels, by stream; a FileNotFoundError names a missing image."""
    streams = {"train": plan.train, **plan.evaluation}
    return {name: _stream_fingerprint(images, plan.class_names) for name, images in streams.items()}


def list_fingerprint(plan: Plan) -> Fingerprint:
    """The parts of `data_fingerprint` that need no image files: names, labels and their order."""
    streams = {"train": plan.train, **plan.evaluation}
    return {name: _list_digests(images, plan.class_names) for name, images in streams.items()}


def changed_data(old: Mapping[str, Mapping[str, str]], new: Fingerprint) -> list[str]:
    """Differences between two fingerprints: ``["the labels of the train stream"]``."""
    changed = []
    for stream in {**old, **new}:
        before = old.get(stream, {})
        now = new.get(stream, {})
        parts = [part for part in {**before, **now} if before.get(part) != now.get(part)]
        if stream == PARENT:
            changed += ["the run that is continued"] if parts else []
            continue
        if "images" in parts:  # other images also have other labels and sizes, which the user need not know
            parts = ["images"]
        changed += [f"the {part} of the {stream} stream" for part in parts]
    return changed


def _stream_fingerprint(images: Images, class_names: Sequence[str]) -> dict[str, str]:
    source = images.source
    by_name = _positions_by_name(images)
    parts = _list_digests(images, class_names)
    if isinstance(source, ImageFiles):
        sizes = [_size(source.path(p)) for p in by_name]
        parts["sizes"] = digest([np.array(sizes, dtype=np.int64).tobytes()])
        chosen = by_name if sum(sizes) <= CONTENT_BYTES else spread(by_name)
        parts["contents"] = digest(file_digest(source.path(p)) for p in chosen)
    else:
        with preserve_rng_state():
            first = digest(image_bytes(source, spread(by_name)))
            again = digest(image_bytes(source, spread(by_name)))
        if first == again:  # else the source augments its images
            parts["contents"] = first
    return parts


def _list_digests(images: Images, class_names: Sequence[str]) -> dict[str, str]:
    source, labels, positions = images
    by_name = _positions_by_name(images)
    orders = [[image_name(source, p) for p in part.tolist()] for part in positions]
    return {
        "images": digest(f"{image_name(source, p)}\n".encode() for p in by_name),
        "labels": digest([repr(list(class_names)).encode(), labels[by_name].numpy().tobytes()]),
        "order": digest(repr(order).encode() for order in orders),
    }


def _positions_by_name(images: Images) -> list[int]:
    """Positions of the images that are used, sorted so that only "order" depends on that of the data."""
    used = torch.cat(list(images.positions)).unique()
    names = {p: image_name(images.source, p) for p in used.tolist()}
    return sorted(names, key=names.__getitem__)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no image {path}, although it has labels; download the images as well."
        ) from None


def spread(positions: Sequence[int], n: int = N_SAMPLED) -> list[int]:
    """Up to ``n`` of the positions, evenly spaced: 0, 3 and 6 of 10."""
    n = min(n, len(positions))
    return [positions[k * len(positions) // n] for k in range(n)]


def image_bytes(source: MultiLabelSource, positions: Iterable[int]) -> Iterable[bytes]:
    """Shape, type and pixels of images of a source."""
    for position in positions:
        image = np.asarray(source[position][0])
        yield f"{image.shape} {image.dtype}\n".encode()
        yield image.tobytes()


def file_digest(path: str | os.PathLike) -> bytes:
    """SHA-256 of a file's contents."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of concatenated bytes, in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


STATE_FILE = "state.bin"
LOCK_FILE = ".lock"
OWNER_FILE = "owner.txt"  # who holds the lock: a lock itself cannot be read on every system
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


class UnfinishedRun(ValueError):
    """The folder has an unfinished run, and neither resume nor overwrite is given."""


def check_data(folder: Path, saved: Fingerprint | None, data: Fingerprint) -> None:
    """Raise `OtherRun` with the differences if the run in the folder was saved with other data."""
    changed = [] if saved is None else changed_data(saved, data)
    if changed:
        raise OtherRun(
            f"{folder} was saved with other data; changed: {', '.join(changed)}; restore them, {ADVICE}"
        )


def read_folder(
    folder: Path, settings: Settings, resume: bool, log: Callable[[str], None]
) -> tuple[Results | None, State | None]:
    """Results of the finished run with these settings, or the state of an unfinished one, if there is any.

    Raises `OtherRun` for a run with other settings, and `UnfinishedRun` for a state without ``resume``.
    """
    results_path = folder / RESULTS_FILE
    if results_path.is_file():
        finished = read_results(results_path)
        _check_settings(results_path, finished.settings, settings)
        return finished, None
    state_path = folder / STATE_FILE
    if state_path.is_file():
        try:
            return None, _read_state(state_path, settings, resume)
        except DamagedState as error:
            if not resume:
                raise
            reason = str(error).rstrip(".")
            log(f"{settings.name}: {reason}; it is not used: starting from the beginning")
    return None, None


def _read_state(path: Path, settings: Settings, resume: bool) -> State:
    state = load_state(path)
    check_fields(state, STATE_FIELDS, str(path))
    check_fields(state["position"], POSITION_FIELDS, f"{path}: position")
    _check_settings(path, state["settings"], settings)
    if not resume:
        raise UnfinishedRun(
            f"{path.parent} has an unfinished run: give --resume to continue it, or --overwrite to start "
            "from the beginning."
        )
    return state


def _check_settings(path: Path, old: Mapping[str, Any], new: Settings) -> None:
    check_format(path, old)
    changed = "; ".join(differences(old, new.as_dict(), but=RUNTIME_SETTINGS | DATA_PATHS))
    if changed:
        raise OtherRun(f"{path} was saved with other settings ({changed}): run with those, {ADVICE}")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run's folder, which is created if needed, as long as the context is open.

    The lock ends with the process, however that ends. A process may lock a folder again that it has locked.
    Another one gets `FolderInUse`, which names the owner.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / OWNER_FILE
    lock = FileLock(folder / LOCK_FILE, thread_local=False, is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUse(
            f"{folder} is in use by {_read_owner(owner)}: wait for it to end, or choose another --out."
        ) from None
    try:
        if lock.lock_counter == 1:  # no other process writes, and this one has not begun
            _remove_unfinished(folder)
        write_text(owner, f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        if lock.lock_counter == 1:  # this process holds the lock no longer
            owner.unlink(missing_ok=True)
        lock.release()


def _remove_unfinished(folder: Path) -> None:
    """Remove files that a killed process was writing, see `write_atomically`."""
    for path in folder.glob(".*.part"):
        if UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _read_owner(path: Path) -> str:
    """The process that a file of `lock_folder` names, for a message."""
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"
