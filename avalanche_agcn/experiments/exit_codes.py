"""How commands end: expected errors and signals become one sentence and an exit code.

After SIGTERM or Ctrl-C a run saves its state at the next batch and ends; a second signal ends it at once.
Programming errors stay errors.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec

P = ParamSpec("P")

FAILED, INTERRUPTED = 1, 130
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def expected_errors() -> tuple[type[BaseException], ...]:
    """What can go wrong on a user's machine: an image, a package, disk or memory that is missing."""
    import torch

    from avalanche_agcn.models.backbones import WeightsUnavailable

    memory = (MemoryError, torch.OutOfMemoryError)
    return (OSError, ValueError, ModuleNotFoundError, WeightsUnavailable, *memory)


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
            # Torch found that a loader worker was ended from outside, for which it has no type.
            if type(error) is RuntimeError and str(error).startswith("DataLoader worker"):
                error = OSError(f"{error}, perhaps for lack of memory: use fewer --workers.")
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


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum  # 143 for SIGTERM, 130 for Ctrl-C


class _Request:
    """The signal that was received, if any, and whether it waits for the end of a batch."""

    signum: int | None = None
    waits = False
    process: int | None = None  # whose it is: loader workers inherit the handler, and leave signals to it


_request = _Request()


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into `Stopped`; on leaving, end the loader workers that are left after it."""
    if threading.current_thread() is not threading.main_thread():  # where Python does not allow it
        yield
        return
    _request.process = os.getpid()
    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        end_workers()
        raise
    finally:
        _request.signum = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_between_batches() -> Iterator[None]:
    """Let a signal wait until `requested_signal` is asked; at the latest it takes effect on leaving."""
    _request.waits = True
    try:
        yield
    finally:
        _request.waits = False
    raise_if_requested()


def requested_signal() -> int:
    """Number of the signal that waits for the end of the batch; 0 if none does."""
    return _request.signum or 0


def raise_if_requested() -> None:
    """Raise `Stopped` if a signal waits."""
    if _request.signum is not None:
        raise Stopped(_request.signum)


def end_workers() -> None:
    """Kill this process's loader workers, which may be in the middle of an image."""
    _expect_dead_workers()
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def _expect_dead_workers() -> None:
    """Remove torch's handler that raises an error when a worker dies: a signal may have reached them, too."""
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _handle(signum: int, frame: FrameType | None) -> None:
    if os.getpid() != _request.process:
        return
    if _request.signum is not None:
        end_workers()
        os._exit(128 + signum)
    _request.signum = signum
    _expect_dead_workers()
    if not _request.waits:
        raise Stopped(signum)
    # Not by print, which the signal may have interrupted.
    message = "\nStopping after this batch; a second signal ends at once.\n"
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno(), message.encode())  # type: ignore[union-attr]
