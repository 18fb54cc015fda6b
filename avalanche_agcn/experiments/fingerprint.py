"""Fingerprints of data: digests that change with the images and labels a run is made from.

Of files up to `CONTENT_BYTES` in all, the whole contents count; of more, their names and sizes, and the
contents of `N_SAMPLED` files. That takes about a second for a data set like COCO.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.benchmarks.multilabel import Images, MultiLabelSource, Plan, image_name
from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.training.loader import preserve_rng_state

CONTENT_BYTES = 2**30
N_SAMPLED = 256
SETTLED_SECONDS = 2.0  # older changes than this have a time of their own on every file system

Fingerprint = dict[str, dict[str, str]]
"""Digests by stream and part: images, labels, sizes, contents, order."""


def data_fingerprint(plan: Plan) -> Fingerprint:
    """Digests of the images and labels of a benchmark, those of each stream apart.

    Raises:
        FileNotFoundError: if an image is missing.
    """
    names = list(plan.class_names)
    streams = {"train": plan.train, **plan.evaluation}
    return {name: _stream_fingerprint(images, names) for name, images in streams.items()}


def changed_data(old: Mapping[str, Mapping[str, str]], new: Fingerprint) -> list[str]:
    """What differs between two fingerprints: ``"the labels of the train images"``."""
    changed = []
    for stream in dict.fromkeys([*old, *new]):
        before, now = old.get(stream, {}), new.get(stream, {})
        parts = [part for part in dict.fromkeys([*before, *now]) if before.get(part) != now.get(part)]
        # Other images have other labels and sizes; that they are others is what the user needs to know.
        changed += [
            f"the {part} of the {stream} stream"
            for part in parts
            if part == "images" or "images" not in parts
        ]
    return changed


def _stream_fingerprint(images: Images, class_names: Sequence[str]) -> dict[str, str]:
    source, labels, positions = images
    used = torch.cat(list(positions)).unique()
    names = {p: image_name(source, p) for p in used.tolist()}
    by_name = sorted(names, key=names.__getitem__)  # so that the order of the data counts in "order" alone
    parts = {
        "images": digest(f"{names[p]}\n".encode() for p in by_name),
        "labels": digest([repr(list(class_names)).encode(), labels[by_name].numpy().tobytes()]),
    }
    if isinstance(source, ImageFiles):
        sizes = [_size(source.path(p)) for p in by_name]
        parts["sizes"] = digest([np.array(sizes, dtype=np.int64).tobytes()])
        chosen = by_name if sum(sizes) <= CONTENT_BYTES else spread(by_name)
        parts["contents"] = digest(file_digest(source.path(p)) for p in chosen)
    else:
        with preserve_rng_state():
            first, again = (digest(image_bytes(source, spread(by_name))) for _ in range(2))
        parts |= {"contents": first} if first == again else {}  # images may be augmented in the source
    order = (repr([names[p] for p in part.tolist()]).encode() for part in positions)
    parts["order"] = digest(order)
    return parts


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no image {path}; the labels were read, but the images must be downloaded, too."
        ) from None


def spread(positions: Sequence[int], n: int = N_SAMPLED) -> list[int]:
    """Up to ``n`` of them, evenly spread.

    Example:
        >>> spread(range(10), 3)
        [0, 3, 6]
    """
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


class FileDigests:
    """Digests of the contents of files, remembered as long as the files do not change.

    A file that is as it was in its inode, its size and both times is not read again. The time of the last
    change of an inode cannot be set, so that a file replaced by one of the same size and time is noticed.

    Args:
        folder: where the digests are remembered.
        root: folder of the files.
    """

    def __init__(self, folder: Path, root: str) -> None:
        self._path = folder / f"digests-{digest([os.path.abspath(root).encode()])[:32]}.json"
        self._known: dict[str, Any] = _read_known(self._path)
        self._is_new = False

    def digest(self, path: str) -> bytes:
        """SHA-256 of a file's contents."""
        status = os.stat(path)
        state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(path)
        if isinstance(known, list) and known[:-1] == state:
            return str(known[-1]).encode()
        found = file_digest(path).hex()
        # A file that is being changed may change again without another time; elsewhere than on POSIX, the
        # second time is that of its creation.
        if os.name == "posix" and time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
            self._known[path], self._is_new = [*state, found], True
        return found.encode()

    def save(self) -> None:
        """Remember the digests."""
        if self._is_new:
            write_json(self._path, self._known)


def _read_known(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of some bytes, in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
