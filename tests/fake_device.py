"""A device that computes on the CPU and rejects what a GPU rejects, to test code for GPUs without one.

Its tensors report another device than the CPU's. Operations on tensors of both devices raise an error, except
those that a GPU allows too: copies, scalars, and indices on the CPU. Numbers are those of the CPU.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"
aten = torch.ops.aten
COPIES = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.to.dtype_layout,
    aten.to.device,
    aten.to.dtype,
    aten.to.other,
}
INDEXING = {  # their indices, the second argument, may be on the CPU
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}


class _Module:
    """What torch asks of a device's module."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        pass


class FakeTensor(torch.Tensor):
    """A tensor of the device; its values are a tensor on the CPU."""

    values: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "FakeTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> "FakeTensor":
        return FakeTensor(inner["values"])

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.values.detach().__reduce_ex__(protocol)  # states are read to the CPU

    def tolist(self) -> Any:
        return self.cpu().tolist()  # that of torch rejects subclasses

    def __repr__(self, **kwargs: Any) -> str:
        return f"{NAME}: {self.values!r}"


class FakeDevice(TorchDispatchMode):
    """Makes the device available within a ``with`` block."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operation on the CPU, and wrap its results if it is on the device."""
    if torch.is_inference_mode_enabled():  # where wrappers cannot have views
        with torch.inference_mode(False), torch.no_grad():
            return compute(func, args, kwargs)
    leaves, form = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    fake = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
    device = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    on_device = bool(fake) if device is None else device.type == NAME
    if not fake and not on_device:
        return func(*args, **kwargs)
    if fake and func not in COPIES:
        check_devices(func, args, tensors)
    if on_device and not fake and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: a generator of the CPU cannot draw on {NAME}.")
    plain = [leaf.values if isinstance(leaf, FakeTensor) else leaf for leaf in leaves]
    plain = [torch.device("cpu") if isinstance(leaf, torch.device) else leaf for leaf in plain]
    plain_args, plain_kwargs = tree_unflatten(plain, form)
    if func is aten.copy_.default:  # the result is the first argument, on its own device
        func(*plain_args, **plain_kwargs)
        return args[0]
    found = func(*plain_args, **plain_kwargs)
    if not on_device:
        return found.clone() if any(found is value for value in plain) else found
    wrapped = tree_map_only(torch.Tensor, FakeTensor, found)
    if func in COPIES:
        return args[0] if fake and found is args[0].values else wrapped
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def check_devices(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raise the RuntimeError of a GPU unless all tensors are on the device."""
    first = args[0] if args else None
    if func in INDEXING and isinstance(first, FakeTensor):
        tensors = [tensor for tensor in (first, *args[2:3]) if isinstance(tensor, torch.Tensor)]
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, FakeTensor)]
    changes_cpu = func._schema.is_mutable and any(first is tensor for tensor in on_cpu)
    if changes_cpu or any(tensor.ndim for tensor in on_cpu):  # scalars may be anywhere
        shapes = [f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors]
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} of {shapes}")


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **others: Any) -> FakeTensor:
    return FakeTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return compute(aten.copy_.default, (target, source), {})


LIBRARY = torch.library.Library("aten", "IMPL")
FALLBACK = torch.library.Library("_", "IMPL")


def register() -> None:
    """Make the name of the device known to torch, once in a process."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        for name, function in {"empty_strided": _empty_strided, "_copy_from": _copy_from}.items():
            LIBRARY.impl(name, function, "PrivateUse1")  # of torch.tensor(..., device=...), which skips modes
        FALLBACK.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # it changes no type
        torch.autograd.set_multithreading_enabled(False)  # backward runs in this thread
