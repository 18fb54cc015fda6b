"""Helpers for models: unwrapping, frozen copies, digests, modes, threads, recording of outputs, devices."""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

COMPILED = "_orig_mod"
"""Name of the model inside the module that ``torch.compile`` returns, as in the keys of its state."""
Model = TypeVar("Model", bound=nn.Module)


def unwrap(model: nn.Module) -> Any:
    """Return the model inside its wrappers for distributed training and compilation, or the model itself."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif list(dict(model.named_children())) == [COMPILED]:
            model = model.get_submodule(COMPILED)
        else:
            return model


def frozen_copy(model: Model) -> Model:
    """Return a copy in evaluation mode whose parameters need no gradient."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def digest_weights(module: nn.Module) -> str:
    """Return a digest of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, then restore the mode of each module, as parts may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch use one thread, and give the number that it had before.

    For little work: threads wait for each other in every layer, long if other programs use the processor.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield n_threads
    finally:
        torch.set_num_threads(n_threads)


class OutputRecorder:
    """Records the output of a module's last forward pass, so that no second pass is needed."""

    def __init__(self) -> None:
        self._handle: RemovableHandle | None = None
        self._output: Any = None

    def start(self, module: nn.Module) -> None:
        """Record the outputs of a module from now on."""
        self.stop()
        self._handle = module.register_forward_hook(self._keep)

    def stop(self) -> Any:
        """Stop recording and return the last output; None if there was none."""
        if self._handle is not None:
            self._handle.remove()
        output = self._output
        self._handle = None
        self._output = None
        return output

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._output = output


def check_device(device: str | torch.device) -> None:
    """Raise a ValueError with the reason for a device that torch cannot use here."""
    try:
        if torch.device(device).type in ("meta", "lazy"):
            raise RuntimeError("it computes nothing")
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # the latter if torch was built without it
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the device {str(device)!r} cannot be used here ({reason}); cpu always can."
        ) from None
