"""Numbers as whole multiples of a fixed step, so that their sum is exact and the same in any order.

A number v is sent as round(v / step), ties to even. With n numbers the sum of the integers, times the step, differs
from the sum of the numbers by at most n · step / 2. A number beyond the range is refused, never cut. The sum of at most
`MOST_CLIENTS` integers fits into 64 bits with a sign, so it cannot overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import UserError

#: Bits of an integer besides its sign: exact in float64.
BITS = 52
#: Integers of so many clients add up to less than 2^63.
MOST_CLIENTS = 2**11 - 1
#: The largest number that can be sent, unless a setting says otherwise: 67,108,864, with a step of 1.5e-8.
DEFAULT_RANGE = 2.0**26


class OutOfRange(UserError):
    """A number that is too large for a secure sum, or not a number."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most `limit`, a power of two, as integers of at most 2^52."""

    limit: float = DEFAULT_RANGE

    def __post_init__(self) -> None:
        if not (math.isfinite(self.limit) and self.limit > 0 and math.frexp(self.limit)[0] == 0.5):
            raise ValueError(f"the range of a secure sum is a power of two, not {self.limit:g}")

    @property
    def step(self) -> float:
        return self.limit * 2.0**-BITS

    def integers(self, name: str, values: Tensor | float | int, weight: float = 1.0) -> Tensor:
        """Return weight · values as int64 multiples of the step. Raises OutOfRange."""
        numbers = torch.as_tensor(values).detach().to(torch.float64) * weight
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if not largest <= self.limit:
            raise OutOfRange(
                f"'{name}' has the value {largest:g}, and a secure sum takes numbers up to {self.limit:g}; set "
                "secure_range to a larger power of two, or lower the rate of training"
            )
        return (numbers / self.step).round().to(torch.int64)

    def numbers(self, integers: Tensor) -> Tensor:
        """Return the numbers in float64 that a sum of integers stands for."""
        return integers.to(torch.float64) * self.step

    def possible(self, integers: Tensor, clients: int) -> bool:
        """Return whether integers can be the sum over so many clients; what masks leave behind cannot be by chance."""
        bound = clients * 2**BITS
        return bool(((integers >= -bound) & (integers <= bound)).all())
