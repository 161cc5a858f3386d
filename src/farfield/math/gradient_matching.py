"""FedOMG's on-server gradient matching (Nguyen et al., ICLR 2025, eq. 15 and 16).

Among all directions within κ‖g_FL‖ of the federation's own step g_FL, take the one whose smallest inner product
with a client's update is largest. By duality it is

    g = g_FL + κ‖g_FL‖ · Γ*g/‖Γ*g‖,    Γ* = argmin over the simplex of ⟨Γg, g_FL⟩ + κ‖g_FL‖·‖Γg‖

and min_u ⟨g, g_u⟩ equals the minimum: the difference of the two certifies Γ*. Updates are descent steps (parameters
after minus before), so g is added to the parameters; the paper's eq. 17 subtracts it and would ascend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import frexp, inf, isfinite, ldexp, sqrt
from typing import Literal

import torch
from torch import Tensor

from farfield.math.averaging import normalised_weights, ordered_sum
from farfield.math.gradient_matching_solver import SimplexProblem, minimise_on_simplex

Solver = Literal["exact", "paper"]
Rescale = Literal["none", "1+kappa^2", "1+kappa"]

_BLOCK = 1 << 16
# Stop refining at this gap, relative to the size of the terms of the objective.
_CERTIFIED = 1e-11
# ‖Γg‖ below this share of Σ γ_u‖g_u‖ is what cancellation left over, not a direction.
_TINY = 1e-9


@dataclass(frozen=True)
class Matching:
    """A direction and the proof of its quality.

    `gamma` weighs the clients (float64, on the simplex), `objective` is its value in the convex problem, and the
    optimum lies between `objective - gap` and `objective`. `worst` is the smallest inner product of a client's update
    with the direction, and `vanished` says that Γ*g did, so that the direction is g_FL.
    """

    direction: Tensor
    gamma: Tensor
    gap: float
    objective: float
    worst: float
    vanished: bool


@torch.no_grad()
def matching_direction(
    updates: Tensor,
    weights: Tensor | None = None,
    kappa: float = 0.5,
    solver: Solver = "exact",
    reference: Tensor | None = None,
    rescale: Rescale = "none",
) -> Matching:
    """FedOMG's direction for a (clients, d) matrix of updates, in their dtype.

    `weights` are the clients' shares of g_FL = Σ p_u g_u, equal if not given; `reference` is g_FL itself where it
    is not that mean, and wins over the weights. `kappa=0` returns g_FL, to the bit what `weighted_mean` gives.

    `solver="exact"` solves the problem from the float64 Gram matrix and measures the gap on the updates themselves.
    `solver="paper"` is the published inner loop, 20 momentum steps on a softmax; its constants suit updates of
    length 1 or so, and it falls well short of the optimum beyond some 20 clients. `rescale` divides the result by 1
    + κ², as the published code does, or by 1 + κ, with which identical clients give g_FL; the paper does neither.

    Where Γ*g vanishes (a client that did not move, or updates that cancel) eq. 16 is 0/0 and the direction is g_FL,
    not rescaled; `gap` still certifies `gamma` and `objective`.
    """
    if updates.ndim != 2 or updates.numel() == 0:
        raise ValueError(f"expected a non-empty (clients, d) matrix of updates, got shape {tuple(updates.shape)}")
    if not 0.0 <= kappa < inf:
        raise ValueError(f"kappa must be a finite radius of at least 0, got {kappa}")
    divisors = {"none": 1.0, "1+kappa^2": 1.0 + kappa**2, "1+kappa": 1.0 + kappa}
    if rescale not in divisors:
        raise ValueError(f"rescale must be one of {sorted(divisors)}, got {rescale!r}")
    clients = updates.shape[0]
    shares = normalised_weights(torch.ones(clients) if weights is None else weights, clients)
    step = ordered_sum(updates, shares) if reference is None else reference.to(torch.float64)
    geometry = _Geometry.of(updates, step, kappa)

    if solver == "exact":
        found = _exact(geometry, shares)
        stretch = 0.0 if geometry.cancelled(found) else geometry.radius / found.length
    elif solver == "paper":
        gamma, stretch = _published_loop(geometry)
        found = geometry.measure(gamma)
    else:
        raise ValueError(f"solver must be 'exact' or 'paper', got {solver!r}")

    vanished = solver == "exact" and kappa > 0.0 and geometry.cancelled(found)
    # Where nothing was added to g_FL there is nothing to scale back, except in the published code, which always does.
    divisor = 1.0 if vanished else divisors[rescale]
    direction = step if stretch == 0.0 else step + stretch * found.combined
    products = geometry.linear if stretch == 0.0 else geometry.linear + stretch * found.products
    return Matching(
        direction=(direction / divisor).to(updates.dtype),
        gamma=found.gamma,
        gap=max(found.gap, 0.0) / geometry.unit**2,
        objective=found.objective / geometry.unit**2,
        worst=float(products.min()) / divisor / geometry.unit**2,
        vanished=vanished,
    )


@dataclass(frozen=True)
class _Measured:
    """What the updates say about one Γ: the combined update and bounds on the optimum, in the geometry's unit."""

    gamma: Tensor
    combined: Tensor
    products: Tensor
    length: float
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        return self.objective - self.bound


@dataclass(frozen=True)
class _Geometry:
    """Inner products of the updates and g_FL in float64, in a unit (a power of two) that keeps squares in range."""

    updates: Tensor
    unit: float
    gram: Tensor
    linear: Tensor
    radius: float
    step_length: float
    floor: float

    @staticmethod
    def of(updates: Tensor, step: Tensor, kappa: float) -> _Geometry:
        low, high = torch.aminmax(updates)
        largest = max(-float(low), float(high))
        if not isfinite(largest):
            raise ValueError("updates must be finite: drop the clients that sent NaN or infinity")
        unit = ldexp(1.0, -max(frexp(largest)[1], -1000))
        clients = updates.shape[0]
        gram = torch.zeros(clients, clients, dtype=torch.float64)
        linear = torch.zeros(clients, dtype=torch.float64)
        scaled = step * unit
        for start, block in _blocks(updates, unit):
            gram += block @ block.T
            linear += block @ scaled[start : start + _BLOCK]
        step_length = float(scaled.norm())
        if not isfinite(step_length):
            raise ValueError("the reference must be finite")
        return _Geometry(
            updates=updates,
            unit=unit,
            gram=(gram + gram.T) / 2,
            linear=linear,
            radius=kappa * step_length,
            step_length=step_length,
            # With κ ≥ 1 the zero direction is within reach, and it does no client harm.
            floor=0.0 if kappa >= 1.0 else -inf,
        )

    @property
    def norms(self) -> Tensor:
        return self.gram.diagonal().sqrt()

    def only(self, members: Tensor) -> _Geometry:
        return replace(
            self, updates=self.updates[members], gram=self.gram[members][:, members], linear=self.linear[members]
        )

    def cancelled(self, measured: _Measured) -> bool:
        return measured.length <= _TINY * float(measured.gamma @ self.norms)

    def measure(self, gamma: Tensor, smoothing: float = 0.0) -> _Measured:
        """Combine the updates themselves; the Gram matrix would lose half the digits where they cancel."""
        parts = []
        products = torch.zeros_like(self.linear)
        for _, block in _blocks(self.updates, self.unit):
            parts.append(gamma @ block)
            products += block @ parts[-1]
        combined = torch.cat(parts)
        length = float(combined.norm())
        bound = self.floor
        # Any x/‖x‖ shortened to at most unit length gives a direction within the radius, hence a lower bound.
        for scale in (length, sqrt(length**2 + smoothing**2)):
            slopes = self.linear if scale == 0.0 else self.linear + self.radius * products / scale
            bound = max(bound, float(slopes.min()))
        objective = float(gamma @ self.linear) + self.radius * length
        return _Measured(gamma, combined / self.unit, products, length, objective, bound)


def _blocks(updates: Tensor, unit: float) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, updates.shape[1], _BLOCK):
        yield start, updates[:, start : start + _BLOCK].to(torch.float64) * unit


def _exact(geometry: _Geometry, start: Tensor) -> _Measured:
    norms = geometry.norms
    moved = norms > 1e-15 * norms.max()
    if not bool(moved.any()):
        return geometry.measure(start)
    if geometry.radius == 0.0:
        return geometry.measure(torch.eye(start.numel(), dtype=start.dtype)[int(geometry.linear.argmin())])
    if not bool(moved.all()):
        return _with_idle_clients(geometry, start, moved)

    problem = SimplexProblem(
        gram=geometry.gram,
        linear=geometry.linear,
        radius=geometry.radius,
        floor=geometry.floor,
        smoothing=1e-12 * float(norms.min()),
        origin=torch.zeros_like(start),
        origin_products=torch.zeros_like(start),
        origin_square=0.0,
    )
    tries = [geometry.measure(minimise_on_simplex(problem, start), problem.smoothing)]
    best = tries[0]
    # Once is nearly always enough. A second pass, around the first answer as measured on the updates, helps where
    # these cancel; a third, with more smoothing, where they cancel completely.
    for smoothing in (problem.smoothing, 1e-8 * float(norms.max())):
        if best.gap <= _CERTIFIED * (geometry.step_length + geometry.radius) * float(best.gamma @ norms):
            break
        last = tries[-1]
        problem = replace(
            problem,
            smoothing=smoothing,
            origin=last.gamma,
            origin_products=last.products,
            origin_square=last.length**2,
        )
        tries.append(geometry.measure(minimise_on_simplex(problem, last.gamma), smoothing))
        best = _best(geometry, tries)
    return best


def _best(geometry: _Geometry, tries: list[_Measured]) -> _Measured:
    """The try nearest to the optimum, with the best bound of all.

    Normally that is the one with the smallest gap of its own, whose direction attains what it promises. Where the
    updates cancel there is no direction to judge by, and any try's bound will do.
    """
    bound = max(measured.bound for measured in tries)

    def distance(measured: _Measured) -> float:
        return measured.objective - (bound if geometry.cancelled(measured) else measured.bound)

    return replace(min(tries, key=distance), bound=bound)


def _with_idle_clients(geometry: _Geometry, start: Tensor, moved: Tensor) -> _Measured:
    """All weight on a client that did not move gives an objective of 0; the others must beat that."""
    shares = start[moved] if bool(start[moved].any()) else torch.ones_like(start[moved])
    others = _exact(geometry.only(moved), shares / shares.sum())
    if others.objective < 0.0:
        gamma, products = torch.zeros_like(start), torch.zeros_like(start)
        gamma[moved], products[moved] = others.gamma, others.products
        return replace(others, gamma=gamma, products=products)
    idle = geometry.measure((~moved).to(start.dtype) / (~moved).sum())
    # Length zero also where a trace of movement is left: it is rounding beside the others, and no direction.
    return replace(idle, length=0.0, bound=max(idle.bound, min(others.bound, 0.0)))


def _published_loop(geometry: _Geometry) -> tuple[Tensor, float]:
    """Γ and the factor of Γg from FedOMG's code (after CAGrad's): SGD at rate 25 with momentum 0.5 on softmax
    weights.

    21 evaluations, of which the best is kept, and 20 steps. The 1e-4 are the code's own, in units of the raw updates.
    """
    gram = geometry.gram / geometry.unit**2
    scale = (gram.diagonal() + 1e-4).sqrt().mean() ** 2
    gram, linear = gram / scale, geometry.linear / geometry.unit**2 / scale
    square = (geometry.step_length / geometry.unit) ** 2 / float(scale)
    kappa = geometry.radius / geometry.step_length if geometry.step_length > 0.0 else 0.0
    radius = kappa * sqrt(square + 1e-4)

    logits = torch.zeros_like(linear)
    velocity = torch.zeros_like(linear)
    best, best_value = logits.softmax(dim=0), inf
    for _ in range(21):
        gamma = logits.softmax(dim=0)
        products = gram @ gamma
        length = (gamma @ products + 1e-4).sqrt()
        value = float(gamma @ linear + radius * length)
        if value < best_value:
            best, best_value = gamma, value
        slopes = linear + radius * products / length
        velocity = 0.5 * velocity + gamma * (slopes - gamma @ slopes)
        logits = logits - 25.0 * velocity
    length = (best @ gram @ best + 1e-4).sqrt()
    return best, radius / (float(length) + 1e-4)
