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

Zeros = Literal["paper", "neither"]


#: Numbers that are looked at together; more would not fit into the processor's cache.
_AT_ONCE = 1 << 18


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
        # Sums of log |g| over the positive and over the negative entries, and how many there were of each.
        self._logs = torch.zeros(2, size, dtype=torch.float64)
        self._counts = torch.zeros(2, size, dtype=torch.float64)
        self._veto = torch.zeros(size, dtype=torch.bool)
        self._undefined = torch.zeros(size, dtype=torch.bool)

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Take in a (batch, size) matrix of gradients, or one gradient as a vector."""
        rows = rows.reshape(-1, self._veto.numel())
        for block in torch.split(rows, max(1, _AT_ONCE // max(1, rows.shape[1]))):
            values = block.to(torch.float64)
            logs = values.abs().log()
            for side, members in enumerate((values > 0, values < 0)):
                self._counts[side] += members.sum(dim=0)
                # Row by row: the order of a sum must not depend on how the rows came.
                for row in torch.where(members, logs, 0.0):
                    self._logs[side] += row
            self._veto |= (values == 0).any(dim=0)
            self._undefined |= values.isnan().any(dim=0)
        self.rows += len(rows)

    def result(self) -> Tensor:
        """The mean of all rows so far, as a float64 vector. NaN in a column gives NaN there."""
        if self.rows == 0:
            raise ValueError("the geometric mean of no gradients is undefined: add at least one row")
        # An empty side has a log sum of 0 and a share of 0; the clamp only keeps 0/0 out.
        sides = (self._logs / self._counts.clamp_min(1.0)).exp() * (self._counts / self.rows)
        mean = sides[0] - sides[1]
        if self._zeros == "paper":
            mean = torch.where(self._veto, 0.0, mean)
        return torch.where(self._undefined, torch.nan, mean)


def weighted_geometric_mean(grads: Tensor, zeros: Zeros = "paper") -> Tensor:
    """FedILC's weighted geometric mean over the rows of an (environments, d) matrix, in the dtype of `grads`.

    `zeros="paper"`: one exact zero in a column makes its mean zero. `zeros="neither"`: zeros join neither sign's set.
    """
    accumulator = GeometricAccumulator(grads.shape[1], zeros)
    accumulator.add(grads)
    return accumulator.result().to(grads.dtype)
