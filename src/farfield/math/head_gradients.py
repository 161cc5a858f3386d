"""Gradients of a linear head's cross-entropy in closed form, from features and logits alone.

The gradient of one sample with respect to the head's weight is the outer product e_i z_iᵀ of its residual e = p − y
and its features, and e_i with respect to the bias. Mean and variance over the samples follow by matrix products,
with no double backward and no gradient per sample. `linear_head_gradient`, `residuals` and `head_gradient_variance` are
differentiable in features and logits, so a penalty on them reaches the featurizer and the head with one ordinary
backward; the derivatives of the variance are written out as well.

Shapes: features (n, d), logits (n, K), targets (n,) class indices. One logit, (n, 1) or (n,), means binary
cross-entropy with targets in [0, 1]. Weight results are (K, d), bias results (K,). Everything takes a stack of clients
too, with a leading axis on everything, and gives each of them its own bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.math.stacks import add_product, product, sigmoid


def linear_head_gradient(features: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the mean cross-entropy by the head's weight and bias: (P − Y)ᵀ Z / n and its column means.

    This is what autograd returns for the head; being an ordinary expression, it can be penalised (FedIIR) without
    `create_graph`.
    """
    errors = residuals(logits, targets) / features.shape[-2]
    return product(errors.mT, features), errors.sum(dim=-2)


def residuals(logits: Tensor, targets: Tensor) -> Tensor:
    """The derivative of each sample's cross-entropy by its logits, probabilities − labels, as (n, K).

    Exact in relative terms however sure the prediction is: the true class's entry is minus the sum of the others,
    because p − 1 would round to zero.
    """
    logits = logits.reshape(*targets.shape, -1)
    if logits.shape[-1] == 1:
        truth = targets.unsqueeze(-1).to(logits.dtype)
        return (1.0 - truth) * sigmoid(logits) - truth * sigmoid(-logits)
    labels = targets.unsqueeze(-1).long()
    wrong = logits.softmax(dim=-1).scatter(-1, labels, 0.0)
    return wrong.scatter(-1, labels, -wrong.sum(dim=-1, keepdim=True))


def gradient_moments(inputs: Tensor, errors: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Mean and variance of the head's per-sample gradients, each by weight and bias, in the precision of the residuals.

    E[g²] − E[g]² would lose every digit where all samples agree. With both factors split into mean and deviation, e = ē
    + ẽ and z = z̄ + z̃, the deviation of e·z is ē z̃ + z̄ ẽ + (ẽ z̃ − cov), whose mean square is made of small terms alone.
    """
    (n, classes), width = errors.shape[-2:], inputs.shape[-1]
    mean_error, mean_input = errors.sum(dim=-2) / n, (inputs.sum(dim=-2) / n).unsqueeze(-2)
    errors, inputs = (errors - mean_error.unsqueeze(-2)).mT.contiguous(), inputs - mean_input
    squared_errors, squared_inputs = errors.square(), inputs.square()
    # All four products of powers one and two in a single one.
    products = product(torch.cat([errors, squared_errors], -2), torch.cat([inputs, squared_inputs], -1)) / n
    covariance, squared_input = products[..., :classes, :width], products[..., :classes, width:]
    squared_error, both_squared = products[..., classes:, :width], products[..., classes:, width:]
    error_variance, input_variance = squared_errors.sum(dim=-1) / n, squared_inputs.sum(dim=-2, keepdim=True) / n
    slope = mean_error.unsqueeze(-1)
    weight_variance = (
        slope.square() * input_variance
        + mean_input.square() * error_variance.unsqueeze(-1)
        + (both_squared - covariance.square())
        + 2.0 * (slope * (mean_input * covariance + squared_input) + mean_input * squared_error)
    )
    # What the clamp removes is rounding, of the size of the last digit of the terms above.
    return (covariance + slope * mean_input, mean_error), (weight_variance.clamp_min(0.0), error_variance)


class GradientMoments:
    """Mean and variance of the head's per-sample gradients from rows that come in parts, none of which is kept.

    Parts are merged by their means and variances (Chan's formula), so nothing cancels that does not cancel in one.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.mean: tuple[Tensor, Tensor] = (torch.zeros(()), torch.zeros(()))
        self.variance = self.mean

    @torch.no_grad()
    def add(self, inputs: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Rows by what goes into the head and their residuals, both float64. Returns the mean of these rows alone."""
        n = errors.shape[-2]
        mean, variance = gradient_moments(inputs, errors)
        if self.rows == 0:
            self.rows, self.mean, self.variance = n, mean, variance
            return mean
        share = n / (self.rows + n)
        merged = [_merge(*both, share) for both in zip(self.mean, self.variance, mean, variance, strict=True)]
        self.rows += n
        (weight_mean, weight_variance), (bias_mean, bias_variance) = merged
        self.mean, self.variance = (weight_mean, bias_mean), (weight_variance, bias_variance)
        return mean


def _merge(
    mean: Tensor, variance: Tensor, new_mean: Tensor, new_variance: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    gap = new_mean - mean
    spread = gap.square() * (share * (1.0 - share))
    return mean + share * gap, variance.lerp(new_variance, share) + spread


@torch.no_grad()
def variance_derivatives(
    inputs: Tensor, errors: Tensor, mean: tuple[Tensor, Tensor], factors: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Derivatives of Σ_i Σ_k c_k (g_ik − ḡ_k)² by the features and the residuals of these rows.

    g_i are the head's per-sample gradients; their mean ḡ and the factors c are constants, each as (weight, bias).
    Over all rows and divided by their number this is the derivative of c·variance, because the part through ḡ is
    zero; so it can be had a few rows at a time.
    """
    (mean_weight, mean_bias), (c_weight, c_bias) = mean, factors
    c_weight, c_bias = 2.0 * c_weight, 2.0 * c_bias
    pulled = c_weight * mean_weight
    by_inputs = product(errors.square(), c_weight).mul_(inputs)
    add_product(by_inputs, errors, pulled, alpha=-1.0, out=by_inputs)
    by_errors = product(inputs.square(), c_weight.mT).mul_(errors)
    add_product(by_errors, inputs, pulled.mT, alpha=-1.0, out=by_errors)
    return by_inputs, by_errors.addcmul_(errors - mean_bias.unsqueeze(-2), c_bias.unsqueeze(-2))


@torch.no_grad()
def through_softmax(by_errors: Tensor, errors: Tensor, targets: Tensor) -> Tensor:
    """The derivative by the logits, from the one by the residuals (probabilities − labels)."""
    if errors.shape[-1] == 1:
        wrong = errors.abs()  # for labels 0 and 1 the probability of the other one: p(1 − p) without its rounding
        return by_errors * wrong * (1.0 - wrong)
    labels = targets.unsqueeze(-1).long()
    probabilities = errors.scatter_add(-1, labels, errors.new_ones(()).expand_as(labels))
    weighted = by_errors * probabilities
    return weighted.addcmul_(probabilities, weighted.sum(dim=-1, keepdim=True), value=-1.0)
