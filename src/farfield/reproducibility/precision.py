"""In which precision the layers of a model compute: float32, or bfloat16 where the hardware has it.

With bfloat16 the layers below the head run under torch's autocast, in training and in prediction. Parameters, the head,
losses, gradients and updates stay in float32, and so does everything at the server.

A processor without bfloat16 computes it tens of times slower than float32. So `check_precision` times both first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.errors import UserError

Precision = Literal["float32", "bfloat16"]
#: bfloat16 that takes more than so many times as long as float32 is refused; a little more is the noise of timing.
MOST_TIMES_AS_LONG = 1.5
#: Times that each operation is timed in each precision; the median counts.
REPEATS = 5
#: For tests of the code on processors without bfloat16: nothing is timed, and nothing refused.
UNCHECKED = "FARFIELD_UNCHECKED_PRECISION"


class PrecisionError(UserError):
    """A precision that there is not, or that the hardware does not have."""


def precision_named(name: str) -> Precision:
    """Return the precision of that name; raise a sentence otherwise."""
    for known in get_args(Precision):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise PrecisionError(f"there is no precision '{name}'; say {' or '.join(get_args(Precision))}")


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse bfloat16 where it is much slower than float32, with the figure that was measured, or not there at all."""
    if precision_named(precision) == "bfloat16" and not os.environ.get(UNCHECKED):
        where = "this processor" if device.type == "cpu" else f"the device '{device}'"
        try:
            times = measured_times(device)
        except (RuntimeError, TypeError) as error:  # what torch raises where a device lacks a type or an operator
            first = str(error).strip().partition("\n")[0]
            raise PrecisionError(f"bfloat16 cannot be computed on {where} ({first}); omit --precision") from error
        refuse_slow(times, where)


def refuse_slow(times: Mapping[str, tuple[float, float]], where: str) -> None:
    """Raise if bfloat16 is too slow, given the seconds of each operation in float32 and in bfloat16."""
    slower = max(bfloat16 / float32 for float32, bfloat16 in times.values())
    if not slower <= MOST_TIMES_AS_LONG:
        figure = f"{slower:.0f}" if slower >= 10 else f"{slower:.1f}"
        raise PrecisionError(f"bfloat16 is {figure} times slower than float32 on {where}; omit --precision")


@cache
def measured_times(device: torch.device) -> dict[str, tuple[float, float]]:
    """Time a matrix product and a convolution in both precisions, once per process: seconds by operation."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(256, 256, generator=generator)
    images, kernels = torch.randn(16, 64, 14, 14, generator=generator), torch.randn(64, 64, 3, 3, generator=generator)
    operations: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, Tensor]]] = {
        "product": (torch.mm, (matrix, matrix)),
        "convolution": (F.conv2d, (images, kernels)),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, (compute, given) in operations.items():
        single, half = ([t.to(device, dtype) for t in given] for dtype in (torch.float32, torch.bfloat16))
        found[name] = (_seconds(compute, single, device), _seconds(compute, half, device))
    return found


def _seconds(compute: Callable[..., Tensor], given: list[Tensor], device: torch.device) -> float:
    """Return the median of several times, after one that warms up."""
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        compute(*given)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
        times.append(time.perf_counter() - started)
    return max(median(times[1:]), 1e-9)
