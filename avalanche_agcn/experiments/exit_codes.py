"""How commands end: expected errors become one sentence and an exit code; programming errors stay errors."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

FAILED, INTERRUPTED = 1, 130


def expected_errors() -> tuple[type[BaseException], ...]:
    """What can go wrong on a user's machine: an image, a package, disk or memory that is missing."""
    import torch

    from avalanche_agcn.models.backbones import WeightsUnavailable

    missing = (OSError, ValueError, MemoryError, ModuleNotFoundError)
    return (*missing, torch.OutOfMemoryError, WeightsUnavailable)


def is_first_by_environment() -> bool:
    """Whether this is the first of several processes, which alone prints, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def returns_exit_code(command: Callable[P, int]) -> Callable[P, int]:
    """A command that returns its exit code also where it fails, once it has said why in one sentence.

    Wrong options, of which argparse has told the user, give 2; expected errors 1; signals 143 and 130.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except SystemExit as end:  # of argparse
            return end.code if isinstance(end.code, int) else FAILED
        except KeyboardInterrupt as error:
            if is_first_by_environment():
                print(f"\nStopped. {error}".rstrip(), file=sys.stderr)
            return getattr(error, "exit_code", INTERRUPTED)
        except Exception as error:
            if not isinstance(error, expected_errors()):
                raise
            print(f"Stopped: {one_sentence(error)}", file=sys.stderr)
            return FAILED

    return wrapped


def one_sentence(error: BaseException) -> str:
    """The message of an error on one line; of one from a loader worker, without the worker's traceback.

    Example:
        >>> one_sentence(MemoryError())
        'MemoryError.'
    """
    text = str(error).strip()
    if "\nOriginal Traceback" in text:
        text = re.sub(r"^[\w.]+: ", "", text.splitlines()[-1])
    text = " ".join(text.split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
