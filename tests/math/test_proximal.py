import pytest
import torch

from farfield.math import proximal_penalty

ANCHOR = torch.tensor([1.0, -2.0], dtype=torch.float64)
VECTOR = torch.tensor([1.5, -1.0], dtype=torch.float64)


def test_penalty_and_gradient_match_the_golden_numbers() -> None:
    vector = VECTOR.clone().requires_grad_()
    penalty = proximal_penalty(vector, ANCHOR, mu=0.1)
    (gradient,) = torch.autograd.grad(penalty, vector)
    assert float(penalty.detach()) == pytest.approx(0.0625, rel=1e-9)
    total = torch.tensor([0.2, 0.1], dtype=torch.float64) + gradient
    torch.testing.assert_close(total, torch.tensor([0.25, 0.2], dtype=torch.float64), rtol=1e-9, atol=0)


def test_nothing_pulls_at_the_anchor_or_with_weight_zero() -> None:
    at_anchor = ANCHOR.clone().requires_grad_()
    proximal_penalty(at_anchor, ANCHOR, mu=1.0).backward()
    assert torch.equal(at_anchor.grad, torch.zeros(2, dtype=torch.float64))
    assert float(proximal_penalty(VECTOR, ANCHOR, mu=0.0)) == 0.0
