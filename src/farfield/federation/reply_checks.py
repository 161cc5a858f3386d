"""Every reply is checked against what its phase declared before the algorithm sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from farfield.federation.phase import Named, Sends
from farfield.models import Layout

#: Where a size is known only to the client, a reply may still not be larger than this.
MAX_BYTES = 1 << 30
SCALAR_BYTES = 8
#: Integers beyond this are not exact as numbers of any tensor, and no count is as large.
MAX_INTEGER = 1 << 53
#: No number of a reply is larger: a sum over a hundred million clients is still a float32.
LARGEST = 1e30
#: No entry of an update or a gradient is larger: its square, which Adam keeps, is still a float32.
LARGEST_UPDATE = 1e18
#: What rounding may add to a figure that lies at the end of its range.
SLACK = 1e-6
#: What a client may keep between rounds: what every engine can carry and every checkpoint can hold.
STATE_DTYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool}
)


def fault(values: Named, sends: Mapping[str, Sends], layout: Layout) -> str | None:
    """Why a reply must not be used, in one phrase; None if it is as declared."""
    for name in values:
        if name not in sends:
            return f"it sent '{name}', which the phase does not declare"
    for name, declared in sends.items():
        if name not in values:
            if declared.optional:
                continue
            return f"'{name}' is missing"
        problem = _fault_of(name, values[name], declared, layout)
        if problem:
            return problem
    if nbytes(values) > MAX_BYTES:
        return f"it is {nbytes(values)} bytes, over the limit of {MAX_BYTES}"
    return None


def _fault_of(name: str, value: Tensor | float | int, declared: Sends, layout: Layout) -> str | None:
    sizes = declared.sizes(layout)
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"'{name}' is a {type(value).__name__}, not a tensor or a number"
        if sizes:
            return f"'{name}' is a number, declared with shape {declared.dimensions}"
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            return f"'{name}' is too large a number"
        return _out_of_range(name, float(value), float(value), declared)
    shape = tuple(value.shape)
    if len(shape) != len(sizes) or any(
        want is not None and want != got for want, got in zip(sizes, shape, strict=True)
    ):
        return f"'{name}' has shape {shape}, declared as {declared.dimensions} = {sizes}"
    floats, integers = torch.get_default_dtype(), torch.int64
    wanted = {True: [integers], False: [floats], None: [floats, integers]}[declared.integers]
    if value.dtype not in wanted:
        return f"'{name}' has dtype {value.dtype}, declared as {' or '.join(map(str, wanted))}"
    if not value.numel():
        return None
    if value.is_floating_point() and declared.range is None:
        most = largest_entry(value)
        return _out_of_range(name, -most, most, declared)
    low, high = value.aminmax()
    return _out_of_range(name, float(low), float(high), declared)


def _out_of_range(name: str, low: float, high: float, declared: Sends) -> str | None:
    """Return why entries between `low` and `high` cannot be, in one phrase; None if they can."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"'{name}' is not finite"
    limit = LARGEST_UPDATE if declared.is_update else LARGEST
    most = max(-low, high)
    if most > limit:
        return f"'{name}' has an entry of size {most:.1e}, and {limit:.0e} is the largest that can be"
    if declared.range is None:
        return None
    least, largest = declared.range
    if low < least - SLACK or high > largest + SLACK:
        outside = low if low < least - SLACK else high
        return f"'{name}' is {outside:g}, and it lies between {least:g} and {largest:g}"
    return None


def largest_entry(value: Tensor) -> float:
    """Return the size of the largest entry, 0 where there is none; NaN or infinite if an entry is."""
    if not value.numel():
        return 0.0
    low, high = value.detach().aminmax()  # a quarter of the time of a norm
    return max(-float(low), float(high))


def state_fault(state: Mapping[str, object]) -> str | None:
    """Why a client's state cannot be kept, in one phrase; None if it can."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"the state '{name}' is a {type(value).__name__}; only tensors can be kept"
        if value.dtype not in STATE_DTYPES:
            return f"the state '{name}' has dtype {value.dtype}, which cannot be kept"
        if value.is_floating_point() and not math.isfinite(largest_entry(value)):
            return f"the state '{name}' is not finite"
    return None


def nbytes(values: Named) -> int:
    """What the values weigh on the wire: tensors as they are, a scalar as eight bytes."""
    return sum(v.nbytes if isinstance(v, Tensor) else SCALAR_BYTES for v in values.values())
