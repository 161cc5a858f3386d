"""Divergence between diagonal Gaussians, for the representations of FedCiR and FedSR."""

from __future__ import annotations

from torch import Tensor


def gaussian_kl(mu: Tensor, sigma: Tensor, mu_ref: Tensor, sigma_ref: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(μ_ref, diag σ_ref²)) of each sample, summed over the last dimension.

    σ are standard deviations, not variances, and must be positive: keep a floor where they are made. The references
    broadcast, so one Gaussian can serve all samples. Differentiable in all four arguments.
    """
    ratio = sigma / sigma_ref
    shift = (mu - mu_ref) / sigma_ref
    return (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum(dim=-1)
