"""The fused objective of FedIIR against autograd and a gradient check."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from farfield.math import aligned_cross_entropy, linear_head_gradient


def problem(classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    features, weight, bias = draw(7, 4), draw(classes, 4), draw(classes)
    targets = torch.randint(max(classes, 2), (7,), generator=g)
    return features, weight, bias, targets, draw(classes * 5)


def written_out(
    features: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, target: Tensor, gamma: float
) -> Tensor:
    logits = torch.nn.functional.linear(features, weight, bias)
    one = logits.shape[1] == 1
    risk = (
        torch.nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), y.to(logits.dtype))
        if one
        else torch.nn.functional.cross_entropy(logits, y)
    )
    by_weight, by_bias = linear_head_gradient(features, logits, y)
    flat = by_weight.reshape(-1) if bias is None else torch.cat([by_weight.reshape(-1), by_bias])
    return risk + gamma / 2 * (flat - target[: len(flat)]).square().sum()


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.02, 3.0])
def test_value_and_derivatives_are_those_of_the_formula_written_out(
    classes: int, with_bias: bool, gamma: float
) -> None:
    features, weight, bias, y, target = problem(classes)
    leaves = [t.clone().requires_grad_() for t in (features, weight, *([bias] if with_bias else []))]
    own = [*leaves, *([] if with_bias else [None])]
    for function in (aligned_cross_entropy, written_out):
        value = function(*own, y, target, gamma)
        grads = torch.autograd.grad(3 * value, leaves)
        if function is aligned_cross_entropy:
            first, first_grads = value.detach(), grads
    torch.testing.assert_close(first, value.detach(), rtol=1e-12, atol=1e-12)
    for a, b in zip(first_grads, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_it_passes_a_gradient_check() -> None:
    features, weight, bias, y, target = problem(3, seed=4)
    inputs = [t.requires_grad_() for t in (features, weight, bias)]
    assert torch.autograd.gradcheck(lambda z, w, b: aligned_cross_entropy(z, w, b, y, target, 1.3), inputs)


def test_the_target_is_a_constant_and_no_input_is_changed() -> None:
    features, weight, bias, y, target = problem(3)
    before = [t.clone() for t in (features, weight, bias, y, target)]
    leaves = [t.requires_grad_() for t in (features, weight, bias, target)]
    value = aligned_cross_entropy(features, weight, bias, y, target, 2.0)
    assert torch.autograd.grad(value, leaves, allow_unused=True)[3] is None
    for now, then in zip((features, weight, bias, y, target), before, strict=True):
        assert torch.equal(now.detach(), then)
