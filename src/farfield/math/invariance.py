"""Penalties of centralized domain generalization: IRM, V-REx, Fish, Fishr.

FedLOE fits its head mixture with the first ones, FedILC uses Fishr. All are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from farfield.math.head_gradients import residuals


def irm_penalty(logits: Tensor, targets: Tensor, halves: bool = False) -> Tensor:
    """IRMv1: the squared derivative, at w = 1, of the mean cross-entropy of w · logits (Arjovsky et al., 2019).

    `halves` multiplies the derivative on the even rows by the one on the odd rows instead: unbiased under
    mini-batches, and possibly negative (DomainBed, FedLOE's code). Logits and targets as in `linear_head_gradient`.
    """
    errors = residuals(logits, targets)
    scale_gradients = (errors * logits.reshape(errors.shape)).sum(dim=1)
    if not halves:
        return scale_gradients.mean().square()
    if scale_gradients.shape[0] < 2:
        raise ValueError("the two-halves IRM penalty needs at least two samples; use halves=False")
    return scale_gradients[0::2].mean() * scale_gradients[1::2].mean()


def vrex_penalty(losses: Tensor) -> Tensor:
    """V-REx: the population variance of the domains' risks (Krueger et al., 2021).

    Of one domain's per-sample losses it gives what FedLOE's published code calls REx.
    """
    return (losses - losses.mean()).square().mean()


def fish_inner_product(gradients: Tensor) -> Tensor:
    """Σ_{i<j} ⟨g_i, g_j⟩ over the rows of a (domains, d) matrix: what Fish maximises (Shi et al., 2022).

    Each row meets the sum of the rows before it. The shorter (‖Σg‖² − Σ‖g‖²)/2 subtracts two large numbers where the
    domains' gradients are nearly orthogonal.
    """
    return (gradients[1:] * gradients.cumsum(dim=0)[:-1]).sum()


def fish_step(
    parameters: Tensor,
    gradients: Sequence[Callable[[Tensor], Tensor]],
    step: Callable[[Tensor, Tensor], Tensor],
    meta_lr: float,
) -> Tensor:
    """Fish's own first-order step: one optimizer step after the other, domain by domain, then a part of the way there.

    θ + meta_lr (clone − θ), where the clone has made `step(clone, gradient)` on each domain in turn. With plain steps
    of size α it descends, on average over the orders of the domains, on Σ_i R_i − α/2 Σ_{i<j} ⟨g_i, g_j⟩, to first
    order in α.
    """
    clone = parameters
    for gradient in gradients:
        clone = step(clone, gradient(clone))
    return parameters + meta_lr * (clone - parameters)


def fishr_penalty(variances: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """‖v_e − v̄‖² over the rows of an (environments, d) matrix of gradient variances (Rame et al., 2022).

    "mean" averages over the environments, as the papers write it; "sum" is FedILC's published code, E times as
    large for the same weight. A client needs only its own v_e and the mean v̄ for its part of the gradient: 2(v_e −
    v̄) times its own Jacobian is exact with v̄ held constant, since the deviations add up to zero.
    """
    total = (variances - variances.mean(dim=0)).square().sum()
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / variances.shape[0]
    raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
