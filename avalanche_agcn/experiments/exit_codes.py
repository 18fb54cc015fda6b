"""How commands end: expected errors and signals become one sentence and an exit code.

After SIGTERM or Ctrl-C a run saves its state at the next batch and exits; a second signal exits at once.
Programming errors keep their traceback.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import ParamSpec

from avalanche_agcn.checks import shorten

P = ParamSpec("P")
AVALANCHE_FOLDER = ".avalanche"  # in the home directory
PIPE_CLOSED = 141
"""Exit code if the reader of standard output has ended, as of programs that SIGPIPE ends."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def expected_errors() -> tuple[type[BaseException], ...]:
    """Errors of the user's machine or input: a missing file or package, a full disk, too little RAM."""
    import torch

    from avalanche_agcn.models.backbones import WeightsUnavailable

    return (
        OSError,
        ValueError,
        ModuleNotFoundError,
        WeightsUnavailable,
        MemoryError,
        torch.OutOfMemoryError,
    )


def is_first_by_environment() -> bool:
    """Whether this is the only process, or the first of several, which alone prints; as `process_group`."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def returns_exit_code(command: Callable[P, int]) -> Callable[P, int]:
    """Decorate a command to print expected errors as one sentence and return its exit code.

    Wrong options, which argparse reports, give 2; expected errors 1; SIGTERM 143 and Ctrl-C 130. If the
    reader of standard output has ended, nothing is printed, and the code is `PIPE_CLOSED`.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        _accept_any_character()
        try:
            code = command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error is reported
            return code
        except SystemExit as end:  # of argparse
            return end.code if isinstance(end.code, int) else 1
        except KeyboardInterrupt as error:
            if is_first_by_environment():
                print(f"\nStopped. {error}".rstrip(), file=sys.stderr)
            return getattr(error, "exit_code", 130)
        except Exception as error:
            if isinstance(error, BrokenPipeError) and error.filename is None:  # of no file: of the output
                _discard_output()
                return PIPE_CLOSED
            # Torch raises no specific type when a loader worker is killed.
            if type(error) is RuntimeError and str(error).startswith("DataLoader worker"):
                error = OSError(f"{error}, perhaps for lack of memory: use fewer --workers.")
            if not isinstance(error, expected_errors()):
                raise
            print(f"Stopped: {one_sentence(error)}", file=sys.stderr)
            return 1

    return wrapped


def _discard_output() -> None:
    """Write what is left of standard output nowhere: its reader, such as ``head``, has ended."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _accept_any_character() -> None:
    """Print characters that the terminal's encoding lacks, such as ± in ASCII, as escapes."""
    if sys.stderr is None:  # closed; messages would be printed on standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def one_sentence(error: BaseException) -> str:
    """The message of an error on one line; of one from a loader worker, without the worker's traceback."""
    text = str(error).strip()
    if isinstance(error, OSError) and _is_of_avalanche(error):
        text = f"Avalanche writes to {error.filename} when it is imported, but cannot ({error.strerror}): "
        text += "set HOME to a folder that can be written."
    if "\nOriginal Traceback" in text:
        text = re.sub(r"^[\w.]+: ", "", text.splitlines()[-1])
    text = shorten(" ".join(text.split())) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _is_of_avalanche(error: OSError) -> bool:
    """Whether Avalanche could not make its folder, or one above it, such as a missing home directory."""
    if error.filename is None:
        return False
    wanted = Path(os.path.expanduser("~"), AVALANCHE_FOLDER)
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_imported = any(name.startswith("avalanche.") for name in frames)
    return AVALANCHE_FOLDER in str(error.filename) or (
        is_imported and Path(os.fsdecode(error.filename)) in wanted.parents
    )


class Stopped(KeyboardInterrupt):
    """The process has received a signal to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum  # 143 for SIGTERM, 130 for Ctrl-C


_request = SimpleNamespace(signum=0, waits=False, process=0)
"""The received signal, whether it is held back until the end of the batch, and the process that handles it:
loader workers inherit the handler, but ignore signals."""


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into `Stopped`, and kill the remaining loader workers after it."""
    if threading.current_thread() is not threading.main_thread():  # only this one can set handlers
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
        _request.signum = 0
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_between_batches() -> Iterator[None]:
    """Hold back a signal, to be polled by `requested_signal`; it is raised on exit at the latest."""
    _request.waits = True
    try:
        yield
    finally:
        _request.waits = False
    if _request.signum:
        raise Stopped(_request.signum)


def requested_signal() -> int:
    """Number of the signal that is held back; 0 if there is none."""
    return _request.signum


def end_workers() -> None:
    """Kill this process's loader workers, even while they load an image."""
    _expect_dead_workers()
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def _expect_dead_workers() -> None:
    """Remove torch's handler, which raises an error when a worker dies: signals may also reach workers."""
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _handle(signum: int, frame: FrameType | None) -> None:
    if os.getpid() != _request.process:
        return
    if _request.signum:
        end_workers()
        os._exit(128 + signum)
    _request.signum = signum
    _expect_dead_workers()
    if not _request.waits:
        raise Stopped(signum)
    # Not with print: the signal may have interrupted another print.
    message = "\nStopping after this batch; a second signal stops at once.\n"
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno(), message.encode())  # type: ignore[union-attr]
