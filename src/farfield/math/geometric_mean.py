"""FedILC's weighted geometric mean of gradients, in the log domain.

For one coordinate, the positive and the negative entries are averaged geometrically, each side weighted by its share:

    |E⁺|/E · (∏_{E⁺} |g|)^(1/|E⁺|)  −  |E⁻|/E · (∏_{E⁻} |g|)^(1/|E⁻|)

The paper puts an exact zero into both sets, so that one zero makes the coordinate zero (a logical AND).
`zeros="neither"` leaves zeros out of both sets, while they still count in E. Both are odd: the mean of −g is minus
the mean of g, bit for bit. No epsilon enters a logarithm, so entries of 1e-30 keep their size; the published code
adds 1e-10 and files zeros under the negative entries, which is neither odd nor right for small gradients.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import threshold

Zeros = Literal["paper", "neither"]


#: Columns that are looked at together; more would not fit into the processor's cache.
_AT_ONCE = 1 << 15
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
        # Of the positive and of the negative entries: the product of the last few |g|, the sum of log |g| of the rest.
        self._products = torch.ones(2, size, dtype=torch.float64)
        self._logs = torch.zeros(2, size, dtype=torch.float64)
        # How many entries are not zero, and how many more of them are positive than negative. In float32, where whole
        # numbers are exact up to 16 million rows.
        self._members = torch.zeros(size)
        self._balance = torch.zeros(size)

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Take in a (batch, size) matrix of gradients, or one gradient as a vector."""
        rows = rows.reshape(-1, self._members.numel())
        together = _TOGETHER
        if rows.dtype == torch.float64:
            together = 1
            self._fold(slice(None))
        for start in range(0, rows.shape[1], _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            for number, row in enumerate(rows[:, part], self.rows + 1):
                signs = row.sign()
                self._balance[part] += signs
                self._members[part] += signs.abs_()
                # Entries of the other sign, and zeros, become a factor of 1; NaN stays.
                self._products[0, part] *= threshold(row, 0.0, 1.0)
                self._products[1, part] *= threshold(-row, 0.0, 1.0)
                if number % together == 0:
                    self._fold(part)
        self.rows += len(rows)

    def _fold(self, part: slice) -> None:
        products = self._products[:, part]
        self._logs[:, part] += products.log()
        products.fill_(1.0)

    @torch.no_grad()
    def result(self) -> Tensor:
        """The mean of all rows so far, as a float64 vector. NaN in a column gives NaN there."""
        if self.rows == 0:
            raise ValueError("the geometric mean of no gradients is undefined: add at least one row")
        logs = self._logs + self._products.log()
        members, balance = self._members.double(), self._balance.double()
        counts = torch.stack([members + balance, members - balance]).div_(2.0)
        # An empty side has a log sum of 0 and a share of 0; the clamp only keeps 0/0 out.
        sides = logs.div(counts.clamp_min(1.0)).exp_().mul_(counts.div_(self.rows))
        mean = sides[0] - sides[1]
        if self._zeros == "paper":
            # A zero anywhere is a veto, but it does not make sense of what is not a number.
            mean.masked_fill_((self._members < self.rows) & ~mean.isnan(), 0.0)
        return mean


def weighted_geometric_mean(grads: Tensor, zeros: Zeros = "paper") -> Tensor:
    """FedILC's weighted geometric mean over the rows of an (environments, d) matrix, in the dtype of `grads`.

    `zeros="paper"`: one exact zero in a column makes its mean zero. `zeros="neither"`: zeros join neither sign's set.
    """
    accumulator = GeometricAccumulator(grads.shape[1], zeros)
    accumulator.add(grads)
    return accumulator.result().to(grads.dtype)
