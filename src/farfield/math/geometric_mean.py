"""FedILC's weighted geometric mean of gradients, in the log domain.

For one coordinate, the positive and the negative entries are averaged geometrically, each side weighted by its share:

    |E⁺|/E · (∏_{E⁺} |g|)^(1/|E⁺|)  −  |E⁻|/E · (∏_{E⁻} |g|)^(1/|E⁻|)

The paper puts an exact zero into both sets, so that one zero makes the coordinate zero (a logical AND).
`zeros="neither"` leaves zeros out of both sets, while they still count in E. Both are odd: the mean of −g is minus
the mean of g, bit for bit. No epsilon enters their logarithms, so entries of 1e-30 keep their size.

`zeros="published"` is the authors' code: zeros are in the negative set, and log(|g| + 1e-10) takes the place of
log |g|. It is not odd: [4, 0, 0, 0] gives 1 and [−4, 0, 0, 0] gives −4.5e-8; a column of zeros gives −1e-10.

An entry counts on one side or the other by its sign, however small it is. Entries that are zero in exact arithmetic and
rounding noise in floating point must not count at all: see `without_rounding_noise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import threshold

Zeros = Literal["paper", "neither", "published"]

#: What the published code adds to |g| before it takes the logarithm.
_PUBLISHED_EPSILON = 1e-10
#: An entry below this many roundings of its layer's largest entry has no sign of its own.
_ROUNDINGS = 256

#: Columns that are looked at together; more of them would not stay in the processor's cache.
_AT_ONCE = 1 << 14
#: So many float32 numbers, however small or large, have a product that float64 can hold: one logarithm for all of them.
_TOGETHER = 6


class GeometricAccumulator:
    """The weighted geometric mean of rows that arrive in batches, in memory that does not grow with them.

    >>> mean = GeometricAccumulator(size=1)
    >>> mean.add(torch.tensor([[1.0], [4.0]]))
    >>> mean.add(torch.tensor([[-9.0]]))
    >>> mean.result()
    tensor([-1.6667], dtype=torch.float64)

    About 50 bytes a coordinate for rows in float32. How the rows are cut into batches does not change a bit of the
    result; their order may change the last ones. The rows, the sums and the result are on `device`.
    """

    def __init__(self, size: int, zeros: Zeros = "paper", device: torch.device | str = "cpu") -> None:
        if zeros not in get_args(Zeros):
            raise ValueError(f"zeros must be one of {', '.join(get_args(Zeros))}, got {zeros!r}")
        self.rows = 0
        self._zeros = zeros
        self._size = size
        #: Rows that wait for others, because a few are taken in together; and how many of them there are.
        self._waiting = torch.empty(0, size, device=device)
        self._count = 0
        #: Of the rows that are gone: the sum of log |g| of the positive and of the negative entries, how many entries
        #: are in either set, and how many more of them are positive than negative.
        self._logs = torch.zeros(2, size, dtype=torch.float64, device=device)
        # In float32 whole numbers are exact up to 16 million rows.
        self._members, self._balance = torch.zeros(2, size, dtype=torch.float32, device=device)

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Take in a (batch, size) matrix of gradients, or one gradient as a vector."""
        rows = rows.reshape(-1, self._size)
        if rows.dtype != self._waiting.dtype or not len(self._waiting):
            self._fold()
            self._waiting = rows.new_empty(_TOGETHER, self._size)
        self.rows += len(rows)
        while len(rows):
            end = min(_TOGETHER, self._count + len(rows))
            taken, rows = rows.tensor_split([end - self._count])
            self._waiting[self._count : end] = taken
            self._count = end
            if end == _TOGETHER:
                self._fold()

    def _fold(self) -> None:
        """Take the rows that wait into the sums, some columns at a time."""
        for part in self._parts() if self._count else ():
            for total, more in zip(self._sums(part), self._sums_of(self._waiting[: self._count, part]), strict=True):
                total += more
        self._count = 0

    @torch.no_grad()
    def result(self) -> Tensor:
        """The mean of all rows so far, as a float64 vector. NaN in a column gives NaN there."""
        if self.rows == 0:
            raise ValueError("the geometric mean of no gradients is undefined: add at least one row")
        mean = torch.empty_like(self._logs[0])
        for part in self._parts():
            sums = self._sums(part)
            if self._count:
                sums = tuple(map(torch.add, sums, self._sums_of(self._waiting[: self._count, part])))
            mean[part] = self._mean(*sums)
        return mean

    def _mean(self, logs: Tensor, members: Tensor, balance: Tensor) -> Tensor:
        whole, more = members.double(), balance.double()
        counts = torch.stack([whole + more, whole - more]).div_(2.0)
        # An empty side has a log sum of 0 and a share of 0; the clamp only keeps 0/0 out.
        sides = logs.div(counts.clamp_min(1.0)).exp_().mul_(counts.div_(self.rows))
        mean = sides[0] - sides[1]
        if self._zeros == "paper":
            # A zero anywhere is a veto, but it does not make sense of what is not a number.
            mean.masked_fill_((members < self.rows) & ~mean.isnan(), 0.0)
        return mean

    def _parts(self) -> Iterator[slice]:
        return (slice(start, start + _AT_ONCE) for start in range(0, self._size, _AT_ONCE))

    def _sums(self, part: slice) -> tuple[Tensor, ...]:
        return self._logs[:, part], self._members[part], self._balance[part]

    def _sums_of(self, rows: Tensor) -> tuple[Tensor, ...]:
        return _published_sums_of(rows) if self._zeros == "published" else _sums_of(rows)


def _sums_of(rows: Tensor) -> tuple[Tensor, ...]:
    """What `GeometricAccumulator` adds up, of at most `_TOGETHER` rows."""
    signs = rows.sign()
    balance = signs.sum(dim=0)
    members = signs.abs_().sum(dim=0)
    # Entries of the other sign, and zeros, become a factor of 1; NaN stays.
    sides = threshold(rows, 0.0, 1.0), threshold(-rows, 0.0, 1.0)
    return torch.stack([_log_of_product(side) for side in sides]), members, balance


def _published_sums_of(rows: Tensor) -> tuple[Tensor, ...]:
    """As `_sums_of`, by the published code: whatever is not positive is negative, and an epsilon is added."""
    rows = rows.double()
    positive = rows > 0.0
    balance = torch.where(positive, 1.0, -1.0).sum(dim=0)
    # NaN is not positive, and stays NaN on the negative side.
    sizes = rows.abs() + _PUBLISHED_EPSILON
    one = rows.new_ones(())
    sides = torch.where(positive, sizes, one), torch.where(positive, one, sizes)
    logs = torch.stack([side.prod(dim=0).log_() for side in sides])
    return logs, torch.full_like(balance, float(len(rows))), balance


def _log_of_product(factors: Tensor) -> Tensor:
    if factors.dtype == torch.float64:
        return factors.log().sum(dim=0)
    return factors.prod(dim=0, dtype=torch.float64).log_()


def weighted_geometric_mean(grads: Tensor, zeros: Zeros = "paper") -> Tensor:
    """FedILC's weighted geometric mean over the rows of an (environments, d) matrix, in the dtype of `grads`.

    `zeros="paper"`: one exact zero in a column makes its mean zero. `zeros="neither"`: zeros join neither sign's set.
    `zeros="published"`: zeros join the negative set, so that it matters that the rows are gradients and not steps.
    """
    accumulator = GeometricAccumulator(grads.shape[1], zeros, grads.device)
    accumulator.add(grads)
    return accumulator.result().to(grads.dtype)


@torch.no_grad()
def without_rounding_noise(grads: Tensor, layers: Sequence[slice]) -> Tensor:
    """Gradients, one per row or a single one, with exact zeros in place of entries that are rounding noise.

    Below a normalisation by an example's own statistics (GroupNorm), some derivatives are zero in exact arithmetic: by
    the bias of a channel that is a group of its own, or by everything below groups of which only the mean is used. In
    floating point such derivatives are what is left of terms that cancel, one to some 190 roundings of them, and
    their sign means nothing. `layers` are the columns of each layer's weight and bias together. An entry is noise where
    it is at most 256 roundings (ε of the dtype) of the largest entry of its layer in its row, and a whole layer is
    noise where its largest entry is that small beside the largest of the row.
    """
    rows = grads.reshape(-1, grads.shape[-1]).clone()
    roundings = _ROUNDINGS * torch.finfo(rows.dtype).eps
    sizes = rows.abs()
    largest = sizes.amax(dim=1, keepdim=True)
    for layer in layers:
        of_layer = sizes[:, layer].amax(dim=1, keepdim=True)
        noise = sizes[:, layer] <= roundings * of_layer
        rows[:, layer].masked_fill_(noise | (of_layer <= roundings * largest), 0.0)
    return rows.view_as(grads)
