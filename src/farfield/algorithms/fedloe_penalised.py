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
shares are taken (`HeadMixture.collapsed`). Fish's λ is small: sequential steps of size α correspond to λ = α(C−1)/4.

With `phi_solver=sgd` or `adam`, φ makes few steps from p instead. IRM and V-REx then stand λ = 100, the paper's. Fish
makes its own sequential steps, in the order of the clients, and follows them by `meta_lr`; λ has no part in it.

Differs from the paper in: see `fedloe.py`; λ is 1, because the paper's 100, meant for a few SGD steps, gives away most
of the risk when the problem is solved; Fish is solved as the penalty of appendix C.1 unless there are steps; λ does not
grow over the first ten steps, as it does in the published code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from farfield.algorithms.fedloe import FedLOE, PhiObjective
from farfield.algorithms.parameters import choices, log_range, parameter
from farfield.algorithms.registry import register


class Penalised(FedLOE.Params):
    """What all penalties share."""

    lam: float = parameter(1.0, "λ, weight of the penalty; 0 gives fedloe-erm", log_range(1e-2, 1e3), ge=0)
    anneal: int = parameter(
        1, "steps in which λ grows, from φ's optimum without it; 0 starts at p", choices(0, 1, 5), ge=0
    )

    def idle(self) -> dict[str, str]:
        if self.phi_solver != "exact":
            return {"anneal": f"phi_solver is {self.phi_solver}, whose steps all have the whole λ", **super().idle()}
        return super().idle() if self.lam else {"anneal": "lam is 0", **super().idle()}


@register
class FedLOEIRM(FedLOE):
    """Locally overfit heads, mixed so that no client would rescale the mixture (IRM)."""

    name: ClassVar[str] = "fedloe-irm"

    class Params(Penalised):
        pass

    params: Params

    @property
    def objective(self) -> PhiObjective:
        return PhiObjective("irm", self.params.lam, self.params.anneal)


@register
class FedLOEREx(FedLOE):
    """Locally overfit heads, mixed so that the clients' risks are alike (V-REx)."""

    name: ClassVar[str] = "fedloe-rex"
    published_steps: ClassVar[Mapping[str, tuple[float, float]]] = {"sgd": (0.05, 5e-4), "adam": (0.001, 0.0)}

    class Params(Penalised):
        variance: Literal["between", "within"] = parameter("between", "of the clients' risks, or inside each")

        def idle(self) -> dict[str, str]:
            return super().idle() if self.lam else {"variance": "lam is 0", **super().idle()}

    params: Params

    @property
    def objective(self) -> PhiObjective:
        within = self.params.variance == "within"
        return PhiObjective("rex-within" if within else "rex", self.params.lam, self.params.anneal)


@register
class FedLOEFish(FedLOE):
    """Locally overfit heads, mixed so that the clients' gradients by φ agree (Fish)."""

    name: ClassVar[str] = "fedloe-fish"

    class Params(Penalised):
        lam: float = parameter(0.05, "λ, weight of the inner products; 0 gives fedloe-erm", log_range(1e-2, 1e3), ge=0)
        meta_lr: float = parameter(0.05, "share of Fish's sequential steps that φ follows", log_range(1e-3, 1.0), gt=0)

        def idle(self) -> dict[str, str]:
            if self.phi_solver == "exact":
                return {"meta_lr": "phi_solver is exact, and Fish a penalty", **super().idle()}
            return {"lam": f"phi_solver is {self.phi_solver}, and Fish's own steps have no λ", **super().idle()}

    params: Params

    @property
    def objective(self) -> PhiObjective:
        return PhiObjective("fish", self.params.lam, self.params.anneal, self.params.meta_lr)
