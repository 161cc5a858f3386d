"""FedILC's weighted geometric mean of gradients, in the log domain.

For one coordinate, the positive and the negative entries are averaged geometrically, each side weighted by its share:

    |E⁺|/E · (∏_{E⁺} |g|)^(1/|E⁺|)  −  |E⁻|/E · (∏_{E⁻} |g|)^(1/|E⁻|)

The paper puts an exact zero into both sets, so that one zero makes the coordinate zero (a logical AND).
`zeros="neither"` leaves zeros out of both sets, while they still count in E. Both are odd: the mean of −g is minus
the mean of g, bit for bit. No epsilon enters a logarithm, so entries of 1e-30 keep their size; the published code
adds 1e-10 and files zeros under the negative entries, which is neither odd nor right for small gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import threshold

Zeros = Literal["paper", "neither"]


#: Columns that are looked at together; more of them would not stay in the processor's cache.
_AT_ONCE = 1 << 14
#: So many float32 numbers, however small or large, have a product that float64 can hold: one logarithm for all of them.
_TOGETHER = 6


class GeometricAccumulator:
    """The weighted geometric mean of rows that arrive in batches, in memory of a few vectors.

    >>> mean = GeometricAccumulator(size=1)
    >>> mean.add(torch.tensor([[1.0], [4.0]]))
    >>> mean.add(torch.tensor([[-9.0]]))
    >>> mean.result()
    tensor([-1.6667], dtype=torch.float64)

    How the rows are cut into batches does not change a bit of the result; their order may change the last ones.
    """

    def __init__(self, size: int, zeros: Zeros = "paper") -> None:
        if zeros not in ("paper", "neither"):
            raise ValueError(f"zeros must be 'paper' or 'neither', got {zeros!r}")
        self.rows = 0
        self._zeros = zeros
        self._size = size
        #: Rows that wait for others, because a few are taken in together; and how many of them there are.
        self._waiting = torch.empty(0, size)
        self._count = 0
        self._sums = _Sums.of_nothing(size)

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Take in a (batch, size) matrix of gradients, or one gradient as a vector."""
        rows = rows.reshape(-1, self._size)
        if rows.dtype != self._waiting.dtype or not len(self._waiting):
            self._fold(self._sums)
            self._waiting = rows.new_empty(_TOGETHER, self._size)
        self.rows += len(rows)
        while len(rows):
            end = min(_TOGETHER, self._count + len(rows))
            taken, rows = rows.tensor_split([end - self._count])
            self._waiting[self._count : end] = taken
            self._count = end
            if end == _TOGETHER:
                self._fold(self._sums)

    def _fold(self, sums: _Sums) -> None:
        """Take the rows that wait into the sums, while a part of each column is at hand."""
        if self._count == 0:
            return
        for start in range(0, self._size, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            sums.add(self._waiting[: self._count, part], part)
        if sums is self._sums:
            self._count = 0

    @torch.no_grad()
    def result(self) -> Tensor:
        """The mean of all rows so far, as a float64 vector. NaN in a column gives NaN there."""
        if self.rows == 0:
            raise ValueError("the geometric mean of no gradients is undefined: add at least one row")
        sums = self._sums.copy()
        self._fold(sums)
        members, balance = sums.members.double(), sums.balance.double()
        counts = torch.stack([members + balance, members - balance]).div_(2.0)
        # An empty side has a log sum of 0 and a share of 0; the clamp only keeps 0/0 out.
        sides = sums.logs.div_(counts.clamp_min(1.0)).exp_().mul_(counts.div_(self.rows))
        mean = sides[0] - sides[1]
        if self._zeros == "paper":
            # A zero anywhere is a veto, but it does not make sense of what is not a number.
            mean.masked_fill_((sums.members < self.rows) & ~mean.isnan(), 0.0)
        return mean


@dataclass
class _Sums:
    """What is known of rows that are gone."""

    #: Of the positive and of the negative entries, the sum of log |g|.
    logs: Tensor
    #: How many entries are not zero, and how many more of them are positive than negative. In float32, where whole
    #: numbers are exact up to 16 million rows.
    members: Tensor
    balance: Tensor

    @classmethod
    def of_nothing(cls, size: int) -> _Sums:
        return cls(torch.zeros(2, size, dtype=torch.float64), torch.zeros(size), torch.zeros(size))

    def copy(self) -> _Sums:
        return _Sums(self.logs.clone(), self.members.clone(), self.balance.clone())

    def add(self, rows: Tensor, part: slice) -> None:
        """Rows, at most `_TOGETHER`, of which these are the columns of `part`."""
        signs = rows.sign()
        self.balance[part].add_(signs.sum(dim=0))
        self.members[part].add_(signs.abs_().sum(dim=0))
        # Entries of the other sign, and zeros, become a factor of 1; NaN stays.
        self.logs[0, part].add_(_log_of_product(threshold(rows, 0.0, 1.0)))
        self.logs[1, part].add_(_log_of_product(threshold(-rows, 0.0, 1.0)))


def _log_of_product(factors: Tensor) -> Tensor:
    if factors.dtype == torch.float64:
        return factors.log().sum(dim=0)
    return factors.prod(dim=0, dtype=torch.float64).log_()


def weighted_geometric_mean(grads: Tensor, zeros: Zeros = "paper") -> Tensor:
    """FedILC's weighted geometric mean over the rows of an (environments, d) matrix, in the dtype of `grads`.

    `zeros="paper"`: one exact zero in a column makes its mean zero. `zeros="neither"`: zeros join neither sign's set.
    """
    accumulator = GeometricAccumulator(grads.shape[1], zeros)
    accumulator.add(grads)
    return accumulator.result().to(grads.dtype)
