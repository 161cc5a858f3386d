"""Aggregation by agreement of signs: FedGMA, and the AND- and SAND-mask of centralized domain generalization.

All three start from the agreement of a coordinate, |mean_c sign(Δ_c)|: one client, one vote, and a client that did
not move the coordinate votes zero, which lowers the agreement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.math.averaging import weighted_mean


@torch.no_grad()
def sign_agreement(updates: Tensor) -> Tensor:
    """|mean of the rows' signs| for every column of a (clients, d) matrix: a float64 vector in [0, 1]."""
    votes = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    for row in updates:
        votes += row.sign()
    return votes.abs() / updates.shape[0]


def masked_mean(updates: Tensor, weights: Tensor, tau: float, hard: bool = False) -> Tensor:
    """FedGMA (Tenison et al.): the weighted mean of the updates, scaled down where their signs disagree.

    A coordinate whose agreement reaches `tau` passes whole; the others are multiplied by their agreement, or by
    zero if `hard`. `tau=0` is the plain weighted mean.
    """
    _check_tau(tau)
    agreement = sign_agreement(updates)
    mask = torch.where(agreement >= tau, 1.0, torch.zeros_like(agreement) if hard else agreement)
    return (mask * weighted_mean(updates, weights)).to(updates.dtype)


def and_mask(updates: Tensor, tau: float, rescale: bool = False) -> Tensor:
    """AND-mask (Parascandolo et al., ICLR 2021): the plain mean where the agreement reaches `tau`, zero elsewhere.

    `rescale` divides by the share of coordinates that passed, which keeps the length of the step comparable; the
    published code does so tensor by tensor, so pass one tensor's columns at a time to reproduce it.
    """
    _check_tau(tau)
    mask = (sign_agreement(updates) >= tau).to(torch.float64)
    return _masked(updates, mask, rescale)


def sand_mask(updates: Tensor, tau: float, k: float, rescale: bool = False) -> Tensor:
    """SAND-mask (Shahtalebi et al., 2021): the plain mean times relu(tanh(k/σ² · (agreement − tau))).

    σ² is the unbiased variance of a coordinate over the clients. Where it vanishes the mask is the limit: 1 above
    `tau`, 0 at or below. No coordinate passes at `tau=1`. `rescale` as in `and_mask`.
    """
    _check_tau(tau)
    if k <= 0.0:
        raise ValueError(f"k must be positive, got {k}")
    excess = sign_agreement(updates) - tau
    sharpness = k / _variance(updates)
    # 0 · ∞ arises only where the agreement is exactly tau, and tanh(0) closes the mask there for every finite
    # variance.
    mask = torch.where(excess == 0, 0.0, sharpness * excess).tanh().relu()
    return _masked(updates, mask, rescale)


def _check_tau(tau: float) -> None:
    if not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau must lie in [0, 1], got {tau}")


def _masked(updates: Tensor, mask: Tensor, rescale: bool) -> Tensor:
    mean = weighted_mean(updates, torch.ones(updates.shape[0])).to(torch.float64)
    passed = float(mask.mean())
    if rescale and passed > 0.0:
        mask = mask / passed
    return (mask * mean).to(updates.dtype)


def _variance(updates: Tensor) -> Tensor:
    if updates.shape[0] == 1:
        return torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    return updates.detach().to(torch.float64).var(dim=0)
