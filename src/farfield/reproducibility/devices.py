"""Which device computes: what `--device` names, whether it is here, and how it is made ready.

    devices_named("cuda")            # every GPU here; runs take them in turn
    device_named("auto")             # one device: the first GPU, else Apple's, else the processor

Clients compute on the device: models, mini-batches, losses. Whatever travels or is kept (replies, client state,
checkpoints, the server's mathematics, which needs float64) is on the CPU; `federation.execution` moves it. Nothing here
starts CUDA: a process that has started it cannot be forked, so that is left to the process that computes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from farfield.errors import UserError

CPU = torch.device("cpu")
NAMES = "auto, cpu, cuda, cuda:N or mps"
DEFAULT = "cpu"


class DeviceError(UserError):
    """A device that is not here, or that cannot be used so."""


def devices_named(name: str) -> tuple[torch.device, ...]:
    """Return the devices that a name stands for: one, or all GPUs for "cuda" and for "auto" where there are any."""
    if name == "cpu":
        return (CPU,)
    if name == "auto":
        if cuda_count():
            return devices_named("cuda")
        return (torch.device("mps", 0),) if mps_problem() is None else (CPU,)
    if name == "mps":
        problem = mps_problem()
        if problem is not None:
            raise DeviceError(f"there is no MPS device here: {problem}; use --device cpu")
        return (torch.device("mps", 0),)
    found = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    if found is None:
        raise DeviceError(f"there is no device '{name}'; say {NAMES}")
    count = cuda_count()
    if not count:
        why = "torch finds 0 devices" if torch.backends.cuda.is_built() else "torch was built without CUDA"  # type: ignore[no-untyped-call]
        raise DeviceError(f"there is no CUDA device here: {why}; use --device cpu")
    if found[1] is None:
        return tuple(torch.device("cuda", number) for number in range(count))
    if int(found[1]) >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise DeviceError(f"there is no device '{name}' here: torch finds {there}; name one of these or use cpu")
    return (torch.device("cuda", int(found[1])),)


def device_named(name: str) -> torch.device:
    """Return the one device that a name stands for: the first of several GPUs."""
    return devices_named(name)[0]


def cuda_count() -> int:
    """Return the number of CUDA devices, as the driver's library counts them where it is there: that starts no CUDA."""
    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0  # type: ignore[no-untyped-call]


def mps_problem() -> str | None:
    """Return why Apple's GPU cannot be used, in one phrase; None if it can."""
    if not torch.backends.mps.is_built():
        return "torch was built without MPS"
    return None if torch.backends.mps.is_available() else "this machine or its macOS does not offer it"


def processes_at_once(devices: tuple[torch.device, ...], asked: int | None) -> int | None:
    """Return how many processes share these devices where nobody has said: one per GPU; None to leave it to the CPU."""
    if asked is not None or devices[0].type == "cpu":
        return asked
    return len(devices)


def check_processes(devices: tuple[torch.device, ...], processes: int, option: str) -> None:
    """Refuse processes that could not use the device, before anything is made."""
    if processes < 2 or devices[0].type == "cpu":
        return
    if devices[0].type == "mps":
        raise DeviceError(f"one process at a time can use MPS; omit {option} {processes} or use --device cpu")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise DeviceError(
            f"this program uses CUDA already, and the {processes} processes that it would fork cannot use it then; "
            f"give {option} 1, or start before anything uses CUDA"
        )


def device_text(device: torch.device) -> str:
    """Return what a record says of a device: its name, with that of the GPU. Call it where the device is in use."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device.type


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Let a GPU compute what its seed says: float32 without shortcuts, and kernels that repeat their bits."""
    if device.type != "cuda":
        yield
        return
    # Read by cuBLAS when it starts; without it, torch refuses deterministic products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
    exact, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, False, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
        torch.use_deterministic_algorithms(exact, warn_only=warn)
