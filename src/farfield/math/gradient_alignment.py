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


class AlignedHead:
    """The objective and its derivatives, for many batches with one target: views and buffers are made once.

    Weight and bias may change in place between the calls, as they do in local training.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, target: Tensor, gamma: float) -> None:
        weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        size = weight.numel()
        self._weight, self._gamma = weight, gamma
        self._transposed = weight.t()
        self._target, self._bias_target = target[:size].view_as(weight), target[size:]
        # The distance of the gradient from the target, and the derivative by the head; each flat, with its parts.
        self._gap, self._by_head = (target.new_empty(size + (0 if bias is None else len(bias))) for _ in range(2))
        self._gap_weight, self._gap_bias = self._gap[:size].view_as(weight), self._gap[size:]
        self._gap_transposed = self._gap_weight.t()
        self._by_weight, self._by_bias = self._by_head[:size].view_as(weight), self._by_head[size:]
        # A vector of minus ones, a row each.
        self._minus = weight.new_ones(0)

    def __call__(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value and its derivatives by the features and by the head. The last is overwritten by the next call."""
        features = features.detach()  # nothing below needs a graph: the derivatives are written out
        if self._bias is None:
            logits = features @ self._transposed
        else:
            logits = torch.addmm(self._bias, features, self._transposed)
        # Errors stay undivided: 1/n and γ go into the factors of the products, which take them for nothing.
        n, gamma = len(features), self._gamma
        if len(self._minus) != n:
            self._minus = features.new_full((n,), -1.0)
        if logits.shape[1] == 1:
            truth = targets.to(logits.dtype).reshape(-1, 1)
            risk = binary_cross_entropy_with_logits(logits, truth)
            probabilities = logits.sigmoid()
            errors = probabilities - truth
        else:
            risk = cross_entropy(logits, targets)
            probabilities = logits.softmax(dim=1)
            errors = probabilities.scatter_add(1, targets.unsqueeze(1), self._minus.unsqueeze(1))
        across = errors.t()
        torch.addmm(self._target, across, features, beta=-1.0, alpha=1.0 / n, out=self._gap_weight)
        if self._bias is None:
            pull = features @ self._gap_transposed
        else:
            torch.addmv(self._bias_target, across, self._minus, beta=-1.0, alpha=-1.0 / n, out=self._gap_bias)
            pull = torch.addmm(self._gap_bias, features, self._gap_transposed)
        if logits.shape[1] == 1:
            curved = pull.mul_(probabilities).mul_(1.0 - probabilities)
        else:
            curved = torch._softmax_backward_data(pull, probabilities, 1, pull.dtype)
        by_logits = torch.add(errors, curved, alpha=gamma)
        torch.addmm(self._by_weight, by_logits.t(), features, beta=0.0, alpha=1.0 / n, out=self._by_weight)
        if self._bias is not None:
            torch.addmv(self._by_bias, by_logits.t(), self._minus, beta=0.0, alpha=-1.0 / n, out=self._by_bias)
        by_features = torch.addmm(features, by_logits, self._weight, beta=0.0, alpha=1.0 / n)
        by_features.addmm_(errors, self._gap_weight, alpha=gamma / n)
        value = torch.add(risk, torch.dot(self._gap, self._gap), alpha=gamma / 2)
        return value, by_features, self._by_head


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
        size = ctx.shape[0] * ctx.shape[1]
        by_weight, by_bias = by_head[:size].view(ctx.shape), by_head[size:]
        return grad * by_features, grad * by_weight, grad * by_bias if len(by_bias) else None, None, None, None
