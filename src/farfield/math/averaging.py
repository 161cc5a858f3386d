"""Averages over clients: the weighted mean of FedAvg and FedIIR's moving average."""

from __future__ import annotations

import torch
from torch import Tensor

# Columns of one block: what is added up stays in the processor's cache, and torch does not split it over threads.
_BLOCK = 1 << 15


def normalised_weights(weights: Tensor, clients: int) -> Tensor:
    """`weights` as float64 shares that add up to one; an error if that cannot be."""
    if weights.shape != (clients,):
        raise ValueError(f"expected one weight for each of the {clients} clients, got shape {tuple(weights.shape)}")
    shares = weights.detach().to(torch.float64)
    total = shares.sum()
    if not bool(torch.isfinite(total)) or bool((shares < 0).any()) or float(total) <= 0.0:
        raise ValueError(f"weights must be finite, non-negative and not all zero, got {shares.tolist()}")
    return shares / total


def ordered_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """Σ_c factors[c] · rows[c] in float64, added in row order.

    Every coordinate sees the same sequence of single multiplications and additions whatever the number of threads,
    so the bits of the result depend on the order of the rows alone. A matrix product promises no such thing.
    """
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    shares = factors.tolist()
    for start in range(0, rows.shape[1], _BLOCK):
        part = total[start : start + _BLOCK]
        scaled = torch.empty_like(part)
        for row, share in zip(rows[:, start : start + _BLOCK], shares, strict=True):
            part += scaled.copy_(row).mul_(share)
    return total


@torch.no_grad()
def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Σ_c w_c rows[c] / Σ_c w_c over the rows of a (clients, d) matrix, in the dtype of `rows`.

    Accumulates in float64 and in row order, so that the same rows give the same bits on any number of threads; sort
    the rows by client to make the result independent of the order in which replies arrived. Weights need not add up
    to one; negative, non-finite or all-zero weights are an error.
    """
    return ordered_sum(rows, normalised_weights(weights, rows.shape[0])).to(rows.dtype)


def ema(previous: Tensor | None, value: Tensor, upsilon: float) -> Tensor:
    """FedIIR's moving average, υ·previous + (1 − υ)·value (appendix C).

    `previous=None` is the start from zero. There is no bias correction, as in the paper: the first result is
    (1 − υ)·value.
    """
    if not 0.0 <= upsilon <= 1.0:
        raise ValueError(f"upsilon must lie in [0, 1], got {upsilon}")
    fresh = (1.0 - upsilon) * value
    return fresh if previous is None else upsilon * previous + fresh
