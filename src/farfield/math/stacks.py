"""Operations on a stack of clients that have, for each client, the bits of the same operation on it alone.

A batched product has the bits of single ones where every dimension is over 1 and there is enough to multiply: below
`LEAST_WORK` multiplications torch takes another kernel for it, and where a dimension is 1 the library does. Such
products are computed one by one. Sums over rows are the same either way, but for `nll_loss`, whose order is its own.
The derivative of a mean loss divides by the number of rows where torch does it: before the product or after it. An
exponential or a logarithm is computed client by client: torch takes the last few entries of a tensor one at a time,
and rounds these otherwise than those that it takes eight at a time. The clients of a stack can be taken at once where
none has such a rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Rows × columns × terms below which torch's batched product is a kernel of its own.
LEAST_WORK = 400
#: A multiple of the numbers that a processor takes in one step: as many per client, and no client has a rest.
WHOLE_STEPS = 64


def rounds_alike(rows: int, terms: int, columns: int) -> bool:
    """Return whether a batched product of this size has the bits of single ones."""
    return min(rows, terms, columns) > 1 and rows * terms * columns >= LEAST_WORK


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices, or those of two stacks of them."""
    if left.dim() == 2:
        return left @ right
    if rounds_alike(left.shape[1], left.shape[2], right.shape[2]):
        return torch.bmm(left, right)
    out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    for one, two, result in zip(left.unbind(), right.unbind(), out.unbind(), strict=True):
        torch.mm(one, two, out=result)
    return out


def add_product(
    start: Tensor, left: Tensor, right: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """Return beta · start + alpha · left @ right for single matrices or stacks of them, as `addmm` gives it."""
    if left.dim() == 2:
        return torch.addmm(start, left, right, beta=beta, alpha=alpha, out=out)
    if rounds_alike(left.shape[1], left.shape[2], right.shape[2]):
        return torch.baddbmm(start, left, right, beta=beta, alpha=alpha, out=out)
    if out is None:
        out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    for begin, one, two, result in zip(start.unbind(), left.unbind(), right.unbind(), out.unbind(), strict=True):
        torch.addmm(begin, one, two, beta=beta, alpha=alpha, out=result)
    return out


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return inputs (client, row, feature) after each client's layer. Differentiable once."""
    given: Tensor = _StackedLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return given


class _StackedLinear(torch.autograd.Function):
    """A layer of every client, with the derivatives that autograd has for a single one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight.mT) if bias is None else add_product(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x = product(by_output, weight) if ctx.needs_input_grad[0] else None
        by_weight = product(by_output.mT, x) if ctx.needs_input_grad[1] else None
        return by_x, by_weight, by_output.sum(1) if ctx.has_bias else None


def mean_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each client's mean binary cross-entropy, with derivatives as torch takes them of one client's mean."""
    mean: Tensor = _MeanOfLogits.apply(logits, targets)  # type: ignore[no-untyped-call]
    return mean


class _MeanOfLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        pairs = zip(logits.unbind(), targets.unbind(), strict=True)
        return torch.stack([F.binary_cross_entropy_with_logits(own, truth) for own, truth in pairs])

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        probabilities = sigmoid(logits.unsqueeze(-1)).squeeze(-1)
        return (probabilities - targets).mul_(by_mean.unsqueeze(-1)).div_(logits.shape[-1]), None


def log(values: Tensor) -> Tensor:
    """Return the logarithm of one client's table, or of those of a stack (client, row, feature)."""
    if values.dim() < 3 or values[0].numel() % WHOLE_STEPS == 0:
        return values.log()
    return torch.stack([own.log() for own in values.unbind()])


def own_rows(tables: Tensor, numbers: Tensor) -> Tensor:
    """Return rows of a client's table by their numbers; for a stack, of each client's own table."""
    if numbers.dim() == 1:
        return tables[numbers]
    return tables[torch.arange(len(tables), device=tables.device).unsqueeze(1), numbers]


def sigmoid(logits: Tensor) -> Tensor:
    """Return the logistic function of one client's logits (row, 1), or of those of a stack, client by client."""
    if logits.dim() < 3:
        return logits.sigmoid()
    if logits.requires_grad:
        return torch.stack([own.sigmoid() for own in logits.unbind()])
    out = logits.new_empty(logits.shape)
    for own, result in zip(logits.unbind(), out.unbind(), strict=True):
        torch.sigmoid(own, out=result)
    return out


def mean_square(given: Tensor, targets: Tensor) -> Tensor:
    """Return each client's mean squared error, with derivatives as torch takes them of one client's mean."""
    mean: Tensor = _MeanSquare.apply(given, targets)  # type: ignore[no-untyped-call]
    return mean


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(given, targets)
        return F.mse_loss(given, targets, reduction="none").mean(-1)

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor) -> tuple[Tensor, None]:
        given, targets = ctx.saved_tensors
        return (2.0 / given.shape[-1]) * (given - targets) * by_mean.unsqueeze(-1), None


def mean_of_classes(rows: Tensor) -> Tensor:
    """Return the mean over the last axis of the losses of rows, as `cross_entropy` takes it. Differentiable once."""
    mean: Tensor = _MeanOfClasses.apply(rows)  # type: ignore[no-untyped-call]
    return mean


class _MeanOfClasses(torch.autograd.Function):
    """The mean over the last axis with the bits of torch's `nll_loss`, which adds up rows in an order of its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rows = count = rows.shape[-1]
        flat = rows.reshape(-1, count)
        total = _sum_by_columns(flat) if count <= MOST_BY_COLUMNS else _sum_by_levels(flat)
        return (total / count).view(rows.shape[:-1])

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor) -> Tensor:
        rows: int = ctx.rows
        return (by_mean / rows).unsqueeze(-1).expand(*by_mean.shape, rows)


#: Rows up to which torch's sum over columns goes by sixteen rows at a time.
MOST_BY_COLUMNS = 1 << 16


def _sum_by_columns(rows: Tensor) -> Tensor:
    """As `_sum_by_levels`: torch's sum over the first axis goes by the same levels, where whole blocks of columns are
    added up at once.
    """
    clients, count = rows.shape
    columns = rows.new_zeros(count, -(-clients // WHOLE_STEPS) * WHOLE_STEPS)
    columns[:, :clients] = rows.T
    return (columns[1:].sum(0) + columns[0])[:clients]


def _sum_by_levels(rows: Tensor) -> Tensor:
    """Rows are added one after the other into the lowest of eight partial sums; a partial sum passes into the next one
    at row numbers that are multiples of 16, of 256, and so on, row 0 among them.
    """
    columns = rows.unbind(-1)
    total = torch.zeros_like(columns[0])
    levels: dict[int, Tensor] = {}
    for number, column in enumerate(columns[1:], start=1):  # the first row goes to the last level, and there it stays
        levels[0] = levels[0] + column if 0 in levels else column
        level = 0
        while number % 16 ** (level + 1) == 0:
            moved = levels.pop(level)
            levels[level + 1] = levels[level + 1] + moved if level + 1 in levels else moved
            level += 1
    for level in sorted(levels):
        total = total + levels[level]
    return total + columns[0]
