"""Files that are whole or not there: written aside and moved into place."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a reader, or a process killed meanwhile, leaves the old one or the new one.

    Args:
        path: Where the file will be; its folder is made if need be.
        write: Writes the content into the open binary file it is given.

    Raises:
        OSError: If the content could not be written, for example on a full disk. What was there before is
            still there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())  # as any other new file; mkstemp's are for the owner alone
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write ``content`` as JSON, atomically; NaN is not JSON and must have become None before."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
