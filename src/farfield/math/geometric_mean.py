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
        for gradient in rows.reshape(-1, self._veto.numel()):
            row = gradient.to(torch.float64)
            logs = row.abs().log()
            for side, members in enumerate((row > 0, row < 0)):
                self._logs[side] += torch.where(members, logs, 0.0)
                self._counts[side] += members
            self._veto |= row == 0
            self._undefined |= row.isnan()
            self.rows += 1

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
