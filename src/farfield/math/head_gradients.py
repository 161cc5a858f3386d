"""Gradients of a linear head's cross-entropy in closed form, from features and logits alone.

The gradient of one sample with respect to the head's weight is the outer product e_i z_iᵀ of its residual e = p − y
and its features, and e_i with respect to the bias. Mean and variance over the samples follow by matrix products,
with no double backward and no gradient per sample. Both functions are differentiable in features and logits, so a
penalty on them reaches the featurizer and the head with one ordinary backward.

Shapes: features (n, d), logits (n, K), targets (n,) class indices. One logit, (n, 1) or (n,), means binary
cross-entropy with targets in [0, 1]. Weight results are (K, d), bias results (K,).
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear_head_gradient(features: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the mean cross-entropy by the head's weight and bias: (P − Y)ᵀ Z / n and its column means.

    This is what autograd returns for the head; being an ordinary expression, it can be penalised (FedIIR) without
    `create_graph`.
    """
    logits, truth = _aligned(logits, targets)
    probabilities = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
    errors = (probabilities - truth) / features.shape[0]
    return errors.T @ features, errors.sum(dim=0)


def residuals(logits: Tensor, targets: Tensor) -> Tensor:
    """The derivative of each sample's cross-entropy by its logits, probabilities − labels, as (n, K).

    Exact in relative terms however sure the prediction is: the true class's entry is minus the sum of the others,
    because p − 1 would round to zero.
    """
    logits, truth = _aligned(logits, targets)
    if logits.shape[1] == 1:
        return (1.0 - truth) * logits.sigmoid() - truth * (-logits).sigmoid()
    wrong = (1.0 - truth) * logits.softmax(dim=1)
    return wrong - truth * wrong.sum(dim=1, keepdim=True)


def head_gradient_variance(features: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Variance over the samples (biased, 1/n) of the head's per-sample gradients, by weight and by bias entry.

    The quantity of Fishr and FedILC, for the per-sample loss (not divided by n). Never negative. Computed in
    float64 and returned in the dtype of the features, because near convergence the squares of residuals underflow
    in float32.
    """
    errors = residuals(logits.to(torch.float64), targets)
    inputs = features.to(torch.float64)
    n = inputs.shape[0]

    # E[g²] − E[g]² would lose every digit where all samples agree. With both factors split into mean and deviation,
    # e = ē + ẽ and z = z̄ + z̃, the deviation of e·z is ē z̃ + z̄ ẽ + (ẽ z̃ − cov), and only deviations get squared.
    mean_error, mean_input = errors.mean(dim=0), inputs.mean(dim=0)
    errors, inputs = errors - mean_error, inputs - mean_input
    error_squares, input_squares = errors.square(), inputs.square()
    error_variance, input_variance = error_squares.mean(dim=0), input_squares.mean(dim=0)
    mean_error, mean_input = mean_error.unsqueeze(1), mean_input.unsqueeze(0)

    covariance = errors.T @ inputs / n
    weight_variance = (
        mean_error.square() * input_variance
        + mean_input.square() * error_variance.unsqueeze(1)
        + (error_squares.T @ input_squares / n - covariance.square())
        + 2.0 * mean_error * mean_input * covariance
        + 2.0 * mean_error * (errors.T @ input_squares / n)
        + 2.0 * mean_input * (error_squares.T @ inputs / n)
    )
    # What the clamp removes is rounding, of the size of the last digit of the terms above.
    return weight_variance.clamp_min(0.0).to(features.dtype), error_variance.to(features.dtype)


def _aligned(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as (n, K) and the labels as a matrix like it: probabilities of the one class, or one-hot rows."""
    logits = logits.reshape(targets.shape[0], -1)
    if logits.shape[1] == 1:
        return logits, targets.reshape(-1, 1).to(logits.dtype)
    classes = torch.arange(logits.shape[1], device=logits.device)
    return logits, (targets.unsqueeze(1) == classes).to(logits.dtype)
