"""A device that is not here, pretended on the CPU: real numbers, and an error where a GPU would raise one.

A tensor "on" the pretended device is a wrapper around a CPU tensor. It says that it is on `pretended:0`, every operator
on it computes real values, and an operator that gets tensors of two devices raises, as torch does with a real GPU. So
whole rounds run, with everything in them that depends on data. What torch allows is allowed: a CPU tensor of a single
number beside others, CPU tensors as indices, and copies from one device to the other. Without float64, as on Apple's
GPUs, a tensor of that type raises as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from farfield.federation import device_rows

NAME = "pretended"
CPU = torch.device("cpu")
aten = torch.ops.aten
#: Operators that may read one device and write to another.
COPIES = {aten.copy_.default, aten._to_copy.default, aten.to.device}
#: Operators whose indices may be on the CPU.
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class MixedDevices(RuntimeError):
    """An operator got tensors of two devices."""


class Pretended(Tensor):
    """A tensor that says that it is on a device, and has its numbers on the CPU."""

    inner: Tensor
    #: Whether the device has numbers of this type.
    float64 = True

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> Pretended:
        if not cls.float64 and inner.dtype == torch.float64:
            raise TypeError("Cannot convert a tensor to float64, which the device does not support")
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
            requires_grad=False,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __repr__(self, **_: Any) -> str:
        return f"Pretended({self.inner}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class PretendedMode(TorchDispatchMode):
    """Makes `torch.zeros(3, device=device)` and `x.to(device)` give pretended tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU tensors inside, and pretend that what comes of it is where a GPU would have it."""
    flat, _ = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, Tensor)]
    asked = kwargs.get("device")
    target = torch.device(asked) if asked is not None else common_device(func, args, tensors)
    inner_args, inner_kwargs = tree_map(inside, (args, kwargs))
    if asked is not None:
        inner_kwargs["device"] = CPU
        if isinstance(inner_kwargs.get("pin_memory"), bool):
            inner_kwargs["pin_memory"] = False
    result = func(*inner_args, **inner_kwargs)
    if asked is not None and func is aten._to_copy.default and result is inner_args[0]:
        result = result.clone()
    if target == CPU:
        return result
    given = {id(value.inner): value for value in tensors if isinstance(value, Pretended)}

    def outside(value: Any) -> Any:
        """What was written in place comes back as it was given."""
        if not isinstance(value, Tensor):
            return value
        return given[id(value)] if id(value) in given else Pretended(value, target)

    return tree_map(outside, result)


def inside(value: Any) -> Any:
    return value.inner if isinstance(value, Pretended) else value


def common_device(func: Any, args: Any, tensors: list[Tensor]) -> torch.device:
    """The device of an operator's tensors; raises if there are two, where a GPU would."""
    if func in COPIES:
        return args[0].device
    if func in INDEXED:
        tensors = [args[0], *(args[2:3] if isinstance(args[2:3], tuple) else ())] + [
            index for index in args[1] if index is not None and index.device != CPU
        ]
    devices = {tensor.device for tensor in tensors if tensor.device != CPU}
    mixed = len(devices) > 1 or (devices and any(t.device == CPU and t.dim() > 0 for t in tensors))
    # What is written in place must be on the device itself, be it one number or many.
    written = func._schema.arguments and func._schema.arguments[0].alias_info
    if devices and written and written.is_write and tensors[0].device == CPU:
        mixed = True
    if mixed:
        found = ", ".join(f"{t.device} {tuple(t.shape)}" for t in tensors)
        raise MixedDevices(f"Expected all tensors to be on the same device: {func} got {found}")
    return devices.pop() if devices else CPU


class _Backend(_DummyBackendModule):
    """What torch asks the module of a backend."""

    def _lazy_init(self) -> None:
        pass

    def device_count(self) -> int:
        return 2


@cache
def _registered() -> None:
    """Tell torch that there is a backend of this name; without it, autograd and indexing refuse its tensors."""
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Backend())


def pretended_device(number: int = 0) -> torch.device:
    """Return a device that is not here."""
    _registered()
    return torch.device(NAME, number)


@contextmanager
def pretended(monkeypatch: Any, free: int = 1 << 30, float64: bool = True) -> Iterator[None]:
    """Let tensors be moved to the pretended device, which has so many bytes of free memory and perhaps no float64."""
    _registered()
    monkeypatch.setattr(device_rows, "free_memory", lambda device: free)
    monkeypatch.setattr(device_rows, "_ROWS", {})
    monkeypatch.setattr(Pretended, "float64", float64)
    with PretendedMode():
        yield
