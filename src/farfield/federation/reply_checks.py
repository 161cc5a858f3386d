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
        if isinstance(value, int):
            return None if abs(value) <= MAX_INTEGER else f"'{name}' is too large a number"
        return None if math.isfinite(value) else f"'{name}' is not finite"
    shape = tuple(value.shape)
    if len(shape) != len(sizes) or any(
        want is not None and want != got for want, got in zip(sizes, shape, strict=True)
    ):
        return f"'{name}' has shape {shape}, declared as {declared.dimensions} = {sizes}"
    floats, integers = torch.get_default_dtype(), torch.int64
    wanted = {True: [integers], False: [floats], None: [floats, integers]}[declared.integers]
    if value.dtype not in wanted:
        return f"'{name}' has dtype {value.dtype}, declared as {' or '.join(map(str, wanted))}"
    if value.is_floating_point() and not _is_finite(value):
        return f"'{name}' is not finite"
    return None


def _is_finite(value: Tensor) -> bool:
    """A sum is not finite if an entry is not, and is had much faster; it may overflow as well, so then look at all."""
    return math.isfinite(float(value.sum())) or bool(torch.isfinite(value).all())


def state_fault(state: Mapping[str, object]) -> str | None:
    """Why a client's state cannot be kept, in one phrase; None if it can."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"the state '{name}' is a {type(value).__name__}; only tensors can be kept"
        if value.dtype not in STATE_DTYPES:
            return f"the state '{name}' has dtype {value.dtype}, which cannot be kept"
    return None


def nbytes(values: Named) -> int:
    """What the values weigh on the wire: tensors as they are, a scalar as eight bytes."""
    return sum(v.nbytes if isinstance(v, Tensor) else SCALAR_BYTES for v in values.values())
