"""The linear toy of FedLOE (section 3, appendix A), where frequent and one-shot averaging can be compared exactly.

    x_I = ξ₁,   y = α_Iᵀ x_I + ξ₂,   x_S = y·α_S + ξ₃

The noises are centred and independent, with variances σ₁², σ₂², σ₃² per entry; they differ between domains. x_I
causes y and is invariant; x_S is an effect of y, tempting and spurious. A predictor is one vector: coefficients of
x_I, then of x_S. Solutions are those of the population least squares, so σ₁ does not enter them.

One-shot averaging leans less on x_S than ERM does and lies closer to the invariant solution [α_I, 0] (theorem 3.3).
Its *risk* on a new domain is lower only if that domain's σ₂² is small enough, which `population_risk` shows; corollary
3.4, which claims it for every domain, does not hold.
"""

from __future__ import annotations

import torch
from torch import Tensor


def invariant_solution(alpha_i: Tensor, alpha_s: Tensor) -> Tensor:
    """[α_I, 0]: the mechanism itself, which ignores the spurious features."""
    return torch.cat([alpha_i, torch.zeros_like(alpha_s)])


def local_solution(alpha_i: Tensor, alpha_s: Tensor, sigma2_sq: float | Tensor, sigma3_sq: float | Tensor) -> Tensor:
    """Least squares on one domain (eq. 22): [σ₃²·α_I, σ₂²·α_S] / (σ₂²‖α_S‖² + σ₃²)."""
    return torch.cat([sigma3_sq * alpha_i, sigma2_sq * alpha_s]) / (sigma2_sq * alpha_s.square().sum() + sigma3_sq)


def erm_solution(
    alpha_i: Tensor, alpha_s: Tensor, sigma2_sq: Tensor, sigma3_sq: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """Least squares on the pooled domains (eq. 27), where averaging after every step converges to.

    `sigma2_sq` has one entry a domain, `sigma3_sq` one or a shared value; `weights` are the domains' sizes, equal
    if not given.
    """
    shares, sigma2, sigma3 = _per_domain(alpha_s, sigma2_sq, sigma3_sq, weights)
    return local_solution(alpha_i, alpha_s, shares @ sigma2, shares @ sigma3)


def one_shot_average(
    alpha_i: Tensor, alpha_s: Tensor, sigma2_sq: Tensor, sigma3_sq: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """The average of the domains' own solutions (eq. 28): train to the end, communicate once. Arguments as for ERM."""
    shares, sigma2, sigma3 = _per_domain(alpha_s, sigma2_sq, sigma3_sq, weights)
    local = [local_solution(alpha_i, alpha_s, two, three) for two, three in zip(sigma2, sigma3, strict=True)]
    return shares @ torch.stack(local)


def population_risk(
    w: Tensor,
    alpha_i: Tensor,
    alpha_s: Tensor,
    sigma1_sq: float | Tensor,
    sigma2_sq: float | Tensor,
    sigma3_sq: float | Tensor,
) -> Tensor:
    """Expected squared error of any linear predictor `w` on a domain with the given noise variances.

    With a = w_Sᵀα_S the residual is ((1 − a)α_I − w_I)ᵀξ₁ + (1 − a)ξ₂ − w_Sᵀξ₃, hence
    σ₁²‖(1 − a)α_I − w_I‖² + σ₂²(1 − a)² + σ₃²‖w_S‖². The paper's eq. 49 differs and is wrong.
    """
    w_i, w_s = w[: alpha_i.numel()], w[alpha_i.numel() :]
    kept = 1.0 - w_s @ alpha_s
    return (
        sigma1_sq * (kept * alpha_i - w_i).square().sum() + sigma2_sq * kept.square() + sigma3_sq * w_s.square().sum()
    )


def _per_domain(
    like: Tensor, sigma2_sq: Tensor, sigma3_sq: float | Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    sigma2 = sigma2_sq.to(like)
    sigma3 = torch.as_tensor(sigma3_sq).to(like).expand_as(sigma2)
    shares = torch.ones_like(sigma2) if weights is None else weights.to(like)
    return shares / shares.sum(), sigma2, sigma3
