"""Diagonal Gaussians: their divergence, and their fit by class, for the representations of FedCiR and FedSR."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.math.stacks import log


def gaussian_kl(mu: Tensor, sigma: Tensor, mu_ref: Tensor, sigma_ref: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(μ_ref, diag σ_ref²)) of each sample, summed over the last dimension.

    σ are standard deviations, not variances, and must be positive: keep a floor where they are made. The references
    broadcast, so one Gaussian can serve all samples. Differentiable in all four arguments.
    """
    ratio = sigma / sigma_ref
    shift = (mu - mu_ref) / sigma_ref
    return (0.5 * (ratio.square() + shift.square() - 1.0) - log(ratio)).sum(dim=-1)


def class_gaussians(samples: Tensor, labels: Tensor, classes: int, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each class by maximum likelihood: two tables, one row a class.

    The standard deviation is the likelihood's, with 1/n, and at least `floor`: a class whose samples coincide would
    otherwise make any divergence to it infinite. A class without samples is an error.
    """
    counts = torch.bincount(labels, minlength=classes).to(samples.dtype).unsqueeze(1)
    if len(counts) != classes or not bool(counts.all()):
        raise ValueError(f"every one of the {classes} classes needs samples; the counts are {counts.long().flatten()}")
    empty = samples.new_zeros(classes, samples.shape[1])
    mu = empty.index_add(0, labels, samples) / counts
    variance = empty.index_add(0, labels, (samples - mu[labels]).square()) / counts
    return mu, variance.sqrt().clamp_min(floor)
