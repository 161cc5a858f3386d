"""Penalties of centralized domain generalization with which FedLOE fits its head mixture: V-REx and Fish."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


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
