"""The state of a run on disk: whole, checked on reading, and never executed."""

from __future__ import annotations

import hashlib
import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_agcn.experiments.files import write_atomically

MAGIC = b"avalanche-agcn state 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedState(ValueError):
    """A file that is not a state of this package, or not all of one."""


def save_state(path: str | os.PathLike, state: dict[str, Any]) -> None:
    """Write tensors, numbers, strings and containers of them, atomically and with a checksum.

    Raises:
        OSError: If it could not be written; the state before is still there.
    """
    content = io.BytesIO()
    torch.save(state, content)
    payload = content.getbuffer()

    def write(file: Any) -> None:
        file.write(MAGIC)
        file.write(hashlib.sha256(payload).digest())
        file.write(payload)

    write_atomically(path, write)


def load_state(path: str | os.PathLike) -> dict[str, Any]:
    """Read what `save_state` wrote. No code in the file is run.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedState: If the file is truncated, changed or not one of ours; the message names it.
    """
    content = Path(path).read_bytes()
    header, payload = content[: len(MAGIC) + _DIGEST_BYTES], content[len(MAGIC) + _DIGEST_BYTES :]
    if not header.startswith(MAGIC):
        raise DamagedState(f"{path} is not a saved state of this package")
    if hashlib.sha256(payload).digest() != header[len(MAGIC) :]:
        raise DamagedState(f"{path} is damaged or was only partly written")
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)


def seed_everything(seed: int) -> None:
    """Fix the random numbers of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what other libraries draw from
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Where the random numbers of Python, NumPy and torch stand, as plain values."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` stood."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
