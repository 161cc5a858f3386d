"""The variance over samples of a linear head's gradients, differentiable: Fishr on one machine."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.math.head_gradients import gradient_moments, residuals


def head_gradient_variance(features: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Variance over the samples (biased, 1/n) of the head's per-sample gradients, by weight and by bias entry.

    The quantity of Fishr and FedILC, for the per-sample loss (not divided by n). Never negative. Computed in
    float64 and returned in the dtype of the features, because near convergence the squares of residuals underflow
    in float32.
    """
    _, (weight, bias) = gradient_moments(features.to(torch.float64), residuals(logits.to(torch.float64), targets))
    return weight.to(features.dtype), bias.to(features.dtype)
