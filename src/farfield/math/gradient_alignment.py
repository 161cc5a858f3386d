"""FedIIR's local objective for a linear head, with closed forms for all its derivatives.

    R + γ/2 ‖∇_ω R − g̃‖²,   R the mean cross-entropy of a batch, ω = (W, b) the head, g̃ a constant

With errors E = (P − Y)/n, the head's gradient is G = EᵀZ, g = E summed. For D = γ(G − target), d alike, and
s_i = D z_i + d, the derivative by the logits is E_i + (diag p − ppᵀ)s_i / n; by the features, that times W plus E_i D.
Written with autograd this is a double backward; here it is a dozen small products, so a local step costs hardly more
than cross-entropy alone.

Shapes are those of `head_gradients`; `target` is flat, weight first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from farfield.math.stacks import add_product, mean_of_classes, mean_of_logits, product, sigmoid


class AlignedHead:
    """The objective and its derivatives, for many batches with one target: views and buffers are made once.

    Weight and bias may change in place between the calls, as they do in local training. With a leading axis on every
    tensor it is a stack of heads, each with its own batch and target, and the value has one entry per head.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, target: Tensor, gamma: float) -> None:
        weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        self._weight, self._gamma = weight, gamma
        self._stacked = weight.dim() > 2
        size = weight.shape[-2] * weight.shape[-1]
        self._transposed = weight.mT
        self._target, self._minus_bias_target = target[..., :size].reshape(weight.shape), -target[..., size:]
        # The distance of the gradient from the target, and the derivative by the head; each flat, with its parts.
        flat = (*weight.shape[:-2], size + (0 if bias is None else bias.shape[-1]))
        self._gap, self._by_head = (target.new_empty(flat) for _ in range(2))
        self._gap_weight, self._gap_bias = self._gap[..., :size].view(weight.shape), self._gap[..., size:]
        self._gap_transposed = self._gap_weight.mT
        self._by_weight, self._by_bias = self._by_head[..., :size].view(weight.shape), self._by_head[..., size:]
        # A vector of minus ones, one entry per row.
        self._minus = weight.new_ones(0)

    def __call__(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value and its derivatives by the features and by the head. The last is overwritten by the next call."""
        features = features.detach()  # nothing below needs a graph: the derivatives are written out
        logits = self._through(features, self._transposed, self._bias)
        # Errors stay undivided: 1/n and γ go into the factors of the products, which take them for nothing.
        n, gamma = features.shape[-2], self._gamma
        if len(self._minus) != n:
            self._minus = features.new_full((n,), -1.0)
        risk, probabilities, errors = self._risk(logits, targets)
        across = errors.mT
        add_product(self._target, across, features, beta=-1.0, alpha=1.0 / n, out=self._gap_weight)
        if self._bias is not None:
            torch.add(self._minus_bias_target, errors.sum(-2), alpha=1.0 / n, out=self._gap_bias)
        pull = self._through(features, self._gap_transposed, None if self._bias is None else self._gap_bias)
        if logits.shape[-1] == 1:
            curved = pull.mul_(probabilities).mul_(1.0 - probabilities)
        else:
            curved = torch._softmax_backward_data(pull, probabilities, -1, pull.dtype)
        by_logits = torch.add(errors, curved, alpha=gamma)
        add_product(self._by_weight, by_logits.mT, features, beta=0.0, alpha=1.0 / n, out=self._by_weight)
        if self._bias is not None:
            torch.mul(by_logits.sum(-2), 1.0 / n, out=self._by_bias)
        by_features = add_product(features, by_logits, self._weight, beta=0.0, alpha=1.0 / n)
        add_product(by_features, errors, self._gap_weight, alpha=gamma / n, out=by_features)
        return torch.add(risk, self._gap.square().sum(-1), alpha=gamma / 2), by_features, self._by_head

    def _through(self, inputs: Tensor, transposed: Tensor, bias: Tensor | None) -> Tensor:
        """Inputs through a linear layer."""
        if bias is None:
            return product(inputs, transposed) if self._stacked else inputs @ transposed
        return add_product(bias.unsqueeze(-2) if self._stacked else bias, inputs, transposed)

    def _risk(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean cross-entropy, the probabilities, and the errors P − Y."""
        if logits.shape[-1] == 1:
            truth = targets.to(logits.dtype).unsqueeze(-1)
            if self._stacked:
                risk, probabilities = mean_of_logits(logits.squeeze(-1), truth.squeeze(-1)), sigmoid(logits)
            else:
                risk, probabilities = binary_cross_entropy_with_logits(logits, truth), logits.sigmoid()
            return risk, probabilities, probabilities - truth
        if self._stacked:
            rows = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            risk = mean_of_classes(rows.view(targets.shape))
        else:
            risk = cross_entropy(logits, targets)
        probabilities = logits.softmax(dim=-1)
        minus = self._minus.expand(targets.shape).unsqueeze(-1)
        return risk, probabilities, probabilities.scatter_add(-1, targets.unsqueeze(-1), minus)


def aligned_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, target: Tensor, gamma: float
) -> Tensor:
    """The objective as a function for autograd. Differentiable in features, weight and bias once."""
    value: Tensor = _AlignedCrossEntropy.apply(features, weight, bias, targets, target, gamma)  # type: ignore[no-untyped-call]
    return value


class _AlignedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, target: Tensor, gamma: float
    ) -> Tensor:
        value, by_features, by_head = AlignedHead(weight, bias, target, gamma)(features, targets)
        ctx.save_for_backward(by_features, by_head)
        ctx.shape = weight.shape
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_features, by_head = ctx.saved_tensors
        size = ctx.shape[-2] * ctx.shape[-1]
        by_weight, by_bias = by_head[..., :size].view(ctx.shape), by_head[..., size:]
        # One factor per head of a stack, over the rows and columns of each.
        wide, long = grad.view(*grad.shape, 1, 1), grad.view(*grad.shape, 1)
        return wide * by_features, wide * by_weight, long * by_bias if by_bias.shape[-1] else None, None, None, None
