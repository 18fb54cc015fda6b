"""Several processes that train as one: their group, sums and means over all of them, the model's wrapper.

Everything here uses `torch.distributed`; with one process nothing is exchanged and nothing changes. Functions
marked as collective must be called by every process.

**Losses.** `DistributedDataParallel` averages gradients over processes, so the mean of the processes' losses
must be the loss of the global batch. A term that is the same in every process, such as a penalty of weights,
needs no change. A mean over images or annotated cells must be computed by `mean_of`, as in all losses of this
package.
"""

import itertools
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(minutes=30)  # for the other processes, such as the first one while it writes a report
JOIN_TIMEOUT = timedelta(minutes=5)  # for the other processes to start
CONNECT_TIMEOUT = timedelta(seconds=20)  # for torchrun, which is running already
DEFAULT_PORT = "29500"  # torchrun's

_n_groups = itertools.count()  # that this process has joined
_padding: ContextVar[bool | None] = ContextVar("padding", default=None)  # None outside of `global_means`


def is_distributed() -> bool:
    """Whether a process group of ``torch.distributed`` is running."""
    return dist.is_available() and dist.is_initialized()


def process_rank() -> tuple[int, int]:
    """Rank of this process and number of processes: (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return process_rank()[0] == 0


class ProcessLost(ConnectionError):
    """Another process of the group ended, or did not answer in time."""


@contextmanager
def process_group(device: str | torch.device = "cpu", *, timeout: timedelta = TIMEOUT) -> Iterator[None]:
    """Join the process group that the environment describes, and leave it on exit.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; elsewhere, as with SLURM, set
    RANK, WORLD_SIZE and MASTER_ADDR. Without them, with one process, or within a group, nothing happens.
    `ProcessLost` is raised if another process did not start, ended before its work was done, or let this one
    wait longer than the timeout.

    The device is that of the model: NCCL connects CUDA devices, gloo all others. ``"cuda"`` is the k-th CUDA
    device for process k of a machine.
    """
    if is_distributed() or "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    for name in ("RANK", "WORLD_SIZE"):
        if not os.environ[name].isdecimal():
            raise ValueError(
                f"the variable {name} must be a whole number, not {os.environ[name]!r}: set it as torchrun "
                "does, or unset it to run in one process."
            )
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda:
        local_rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
        torch.cuda.set_device(int(local_rank or int(os.environ["RANK"]) % torch.cuda.device_count()))
    _join("nccl" if on_cuda else "gloo", timeout)
    try:
        yield
        dist.barrier()  # no process leaves before the first one has written its files
    except RuntimeError as error:
        if not any(name in str(error) for name in ("gloo", "NCCL")):
            raise
        rank, n_processes = process_rank()
        raise ProcessLost(
            f"process {rank} of {n_processes} stopped, because another process ended or did not answer: see "
            f"its own message ({str(error).splitlines()[0]})."
        ) from error
    finally:
        dist.destroy_process_group()


def _join(backend: str, timeout: timedelta) -> None:
    """Wait for all processes and make the group."""
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    errors: list[Exception] = []
    # In a thread, as torch waits without handling signals: Ctrl-C would have no effect.
    thread = threading.Thread(target=_make_group, args=(backend, timeout, errors), daemon=True)
    thread.start()
    # The signal may reach another thread, which does not wake this one: look for it again and again.
    while thread.is_alive():
        thread.join(timeout=0.2)
    for error in errors:
        if not isinstance(error, dist.DistError):
            raise error
        raise ProcessLost(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not find the others: start all "
            f"with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT ({str(error).splitlines()[0]})."
        ) from error


def _make_group(backend: str, timeout: timedelta, errors: list[Exception]) -> None:
    """Make the group, or append the error."""
    # torchrun's store is ready before its processes start: if it cannot be reached, torchrun has ended.
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    connecting = min(timeout, CONNECT_TIMEOUT if has_store else JOIN_TIMEOUT)
    try:
        store, rank, n_processes = next(iter(dist.rendezvous("env://", timeout=connecting)))
        store.set_timeout(min(timeout, JOIN_TIMEOUT))
        # The store still has the addresses of earlier groups, so each group gets its own keys.
        own = dist.PrefixStore(f"group {next(_n_groups)}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=n_processes, timeout=timeout)
    except Exception as error:
        errors.append(error)


def sum_over_processes(*tensors: Tensor) -> list[Tensor]:
    """Sums of tensors over all processes, in one message; the tensors as they are with one. Collective.

    All tensors must have one dtype, and the same shapes in every process.
    """
    if not is_distributed():
        return list(tensors)
    flat = torch.cat([tensor.detach().flatten().to(collective_device()) for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor).to(tensor.device) for part, tensor in zip(parts, tensors, strict=True)]


def mean_over_processes(*tensors: Tensor) -> list[Tensor]:
    """Means of tensors over all processes, as `DistributedDataParallel` does with gradients. Collective."""
    return [total / process_rank()[1] for total in sum_over_processes(*tensors)]


def largest_of_processes(value: int) -> int:
    """The largest of all processes' values. Collective."""
    if not is_distributed():
        return value
    values = torch.tensor(value, device=collective_device())
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return int(values)


def from_first_process(value: Any) -> Any:
    """The first process's value. Collective."""
    values = [value]
    if is_distributed():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def own_share(rows: Tensor) -> Tensor:
    """This process's share of the first process's rows. Collective."""
    rank, n_processes = process_rank()
    return from_first_process(rows)[rank::n_processes]


def in_order_of_images(batches: Sequence[Tensor]) -> Tensor:
    """Rows of all processes in the order before `own_share`; empty if there are none. Collective."""
    own = torch.cat(list(batches)) if batches else torch.empty(0)
    parts: list[Any] = [own] * process_rank()[1]
    if is_distributed():
        dist.all_gather_object(parts, own)
    first = parts[0]  # has the most rows: if any process has one, its shape and dtype are right
    rows = own.new_empty(sum(map(len, parts)), *first.shape[1:], dtype=first.dtype)
    for k, part in enumerate(parts):
        if len(part):
            rows[k :: len(parts)] = part
    return rows


def collective_device() -> torch.device:
    """Device for tensors that processes exchange: NCCL accepts none on the CPU."""
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@contextmanager
def global_means(*, padding: bool = False) -> Iterator[None]:
    """Let `mean_of` count over all processes: every process must compute the same losses in this block.

    With ``padding``, no row of this process's batch counts.
    """
    token = _padding.set(padding)
    try:
        yield
    finally:
        _padding.reset(token)


def mean_of(total: Tensor, count: Tensor | float) -> Tensor:
    """Mean over rows or cells from their sum, a scalar, and their number; 0 if there are none.

    Within `global_means` the number is that of all processes, and the result is multiplied by the number of
    processes: its mean over processes is the mean over all rows. A padding batch gives 0 and zero gradients.
    """
    padding = _padding.get()
    number = torch.as_tensor(count, dtype=total.dtype, device=total.device)
    if padding is None or not is_distributed():
        return total / number.clamp(min=1)
    if padding:
        total, number = 0 * total, 0 * number
    (n_all,) = sum_over_processes(number)
    return process_rank()[1] * total / n_all.clamp(min=1)


def wrap(model: nn.Module) -> nn.Module:
    """Wrap a model in `DistributedDataParallel`, with the weights of the first process.

    Unlike Avalanche's ``DistributedHelper.wrap_model``, it does not search for unused parameters, since
    losses may use parameters apart from the model's output, and does not broadcast buffers, since they may
    grow. With one process, or if the model is wrapped or has nothing to train, it is returned unchanged.
    """
    trained = any(parameter.requires_grad for parameter in model.parameters())
    if not is_distributed() or not trained or isinstance(model, DistributedDataParallel):
        return model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # torch 2.4 has nothing else
        return DistributedDataParallel(model, broadcast_buffers=False)


def share(tensors: Iterable[Tensor]) -> None:
    """Copy the first process's values into the tensors of all others, in place. Collective.

    One message for each dtype: a network has hundreds of small tensors.
    """
    if not is_distributed():
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    for group in by_dtype.values():
        flat = torch.cat([tensor.flatten().to(collective_device()) for tensor in group])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(part.view_as(tensor))
