"""FedOMG: the server looks for the direction that helps the client it helps least.

Among all directions within κ‖g_FL‖ of the client method's own step g_FL, take the one whose smallest inner product with
a client's update is largest. It needs no more communication than the client method, so it composes with all of them.

    Nguyen et al. Federated Domain Generalization with Data-free On-server Matching Gradient. ICLR 2025. Eq. 15 to 17,
    Algorithm 1.

The problem is convex, over one weight per client, and solved from the Gram matrix of the updates to a certified gap.

Differs from the paper in: the direction is added (eq. 17 subtracts it, which would ascend with Δ_u = θ_u − θ); the
hull is of the raw updates and g_FL their weighted mean, while the published code for unseen domains multiplies updates
by the clients' weights and takes the uniform mean (`hull=weighted`); all published code divides by 1 + κ²
(`rescale=1+kappa^2`) and stops after 20 steps of a heuristic (`solver=paper`); the global step size 0.05 or 0.5 is
`server_lr`, 1 here, so that κ = 0 is the client method itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from farfield.algorithms.fedavg import Direction, FedAvg
from farfield.algorithms.parameters import linear_range, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.supports import No, Supports
from farfield.math import Matching, matching_direction


@register
class FedOMG(FedAvg):
    """Match the clients' updates at the server: maximise the smallest inner product."""

    name: ClassVar[str] = "fedomg"
    family: ClassVar[str] = "gradient matching"
    paper: ClassVar[str] = "Nguyen et al., Data-free On-server Matching Gradient, ICLR 2025"
    differences: ClassVar[tuple[str, ...]] = (
        "the direction is added; eq. 17 subtracts it and would ascend",
        "the convex problem is solved exactly; the published 20-step loop is solver=paper",
        "no division by 1 + κ²; the published code's is rescale=1+kappa^2",
        "raw updates and their weighted mean, with global step size 1, so that κ = 0 is the client method; the "
        "published code for unseen domains weighs updates first and takes a step U times smaller: hull=weighted",
        "where the matched direction vanishes (a client that did not move), g_FL is taken and an event recorded",
    )
    server_half: ClassVar[frozenset[str]] = frozenset({"rule"})
    supports: ClassVar[Supports] = Supports(
        secure_sums=No("matches the clients' updates with one another, and a sum has none of them")
    )
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"kappa": 0.0}

    class Params(FedAvg.Params):
        kappa: float = parameter(
            0.5, "κ, search radius in lengths of the client method's own step", linear_range(0.0, 0.9), ge=0
        )
        solver: Literal["exact", "paper"] = parameter("exact", "to a certified gap, or the published 20 steps")
        rescale: Literal["none", "1+kappa^2", "1+kappa"] = parameter("none", "what the direction is divided by")
        hull: Literal["updates", "weighted"] = parameter(
            "updates", "what is matched: the updates, or p_u times each with the uniform mean, a step U times smaller"
        )

        def idle(self) -> dict[str, str]:
            unused = () if self.kappa else ("solver", "rescale")
            return {**super().idle(), **dict.fromkeys(unused, "kappa is 0")}

    params: Params

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor | Direction:
        p = self.params
        if p.hull == "weighted":
            # Σ p_u Δ_u is the sum of what is matched, and its mean what the code takes for g_FL.
            updates, reference = updates * weights.unsqueeze(1).to(updates.dtype), reference / len(updates)
        matched = matching_direction(updates, weights, p.kappa, p.solver, reference, p.rescale)
        diagnostics = {
            "worst_inner_product": matched.worst,
            "matching_gap": matched.gap,
            "gamma_max": float(matched.gamma.max()),
        }
        return Direction(matched.direction, diagnostics, tuple(self._notes(len(updates), matched)))

    def _notes(self, clients: int, matched: Matching) -> Iterator[str]:
        if matched.vanished:
            yield "the matched direction vanishes; the client method's own direction was taken"
        elif clients == 1 and self.params.kappa > 0:
            yield "one client only: there is nothing to match, and the step is its own made longer"
