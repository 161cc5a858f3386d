"""FedLOE with a penalty in the objective of φ: IRM, V-REx or Fish. The two stages are in `fedloe.py`.

    Arjovsky, Bottou, Gulrajani, Lopez-Paz. Invariant Risk Minimization. 2019.
    Krueger et al. Out-of-Distribution Generalization via Risk Extrapolation (REx). ICML 2021.
    Shi et al. Gradient Matching for Domain Generalization. ICLR 2022.

With f = Σ_c φ_c ŷ_c, R_c its risk on client c's tuning rows, and C clients:

    IRM     r = 1/C Σ_c (∂_w R_c(w · f) at w = 1)²
    V-REx   r = 1/C Σ_c (R_c − R̄)²
    Fish    r = −1/(C(C−1)) Σ_{c≠c'} ⟨∇_φ R_c, ∇_φ R_c'⟩

All have a bad way out: IRM and V-REx are zero where φ = 0 predicts nothing, Fish's inner products are large where
everybody is wrong. A φ that gives up more than half of what the shares gain over predicting nothing is refused, and the
shares are taken. Fish's λ is small: sequential steps of size α correspond to λ = α(C−1)/4.

Differs from the paper in: see `fedloe.py`; λ is 1, because the paper's 100, meant for a few SGD steps, gives away most
of the risk when the problem is solved; Fish is solved as the penalty of appendix C.1, and the published sequential
steps, which depend on the order of the clients, are `passes`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from farfield.algorithms.fedloe import FedLOE, Regularizer
from farfield.algorithms.registry import register
from farfield.math import HeadMixture, fish_step


class Penalised(FedLOE.Params):
    """What all penalties share."""

    lam: float = Field(1.0, ge=0, description="λ, weight of the penalty; 0 gives fedloe-erm")
    anneal: int = Field(1, ge=0, description="steps in which λ grows, from φ's optimum without it; 0 starts at p")


@register
class FedLOEIRM(FedLOE):
    """Locally overfit heads, mixed so that no client would rescale the mixture (IRM)."""

    name: ClassVar[str] = "fedloe-irm"
    regularizer: ClassVar[Regularizer] = "irm"

    class Params(Penalised):
        pass


@register
class FedLOEREx(FedLOE):
    """Locally overfit heads, mixed so that the clients' risks are alike (V-REx)."""

    name: ClassVar[str] = "fedloe-rex"
    regularizer: ClassVar[Regularizer] = "rex"

    class Params(Penalised):
        variance: Literal["between", "within"] = Field("between", description="of the clients' risks, or inside each")


@register
class FedLOEFish(FedLOE):
    """Locally overfit heads, mixed so that the clients' gradients by φ agree (Fish)."""

    name: ClassVar[str] = "fedloe-fish"
    regularizer: ClassVar[Regularizer] = "fish"

    class Params(Penalised):
        lam: float = Field(0.05, ge=0, description="λ, weight of the inner products; 0 gives fedloe-erm")
        passes: int = Field(0, ge=0, description="this many of Fish's own sequential steps instead of the optimum")
        step: float = Field(0.05, gt=0, description="size of a sequential step")
        meta_lr: float = Field(0.05, gt=0, description="how far φ follows the steps on all clients")

    params: Params

    def solve(self, problem: HeadMixture) -> tuple[Tensor, str]:
        if not self.params.passes:
            return super().solve(problem)
        phi, p = problem.centre, self.params
        by_group = [lambda at, g=g: problem.group_gradients(at)[g] for g in range(len(problem.weights))]
        for _ in range(p.passes):
            phi = fish_step(phi, by_group, p.step, p.meta_lr)
        return phi, "Fish's steps led away from the clients' labels" if problem.collapsed(phi) else ""
