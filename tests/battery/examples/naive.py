"""What several examples need, written out plainly: means, server optimizers, the classifier's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian

from farfield.algorithms.worked_examples import Toy, ToyClient, gradient_of

#: What a server does with a mean update: the parameters now and the update, to the parameters next.
ServerStep = Callable[[Tensor, Tensor], Tensor]
#: The updates of a cohort in a round.
Updates = Callable[[Tensor, Sequence[ToyClient]], list[Tensor]]


def local_sgd(toy: Toy, p: Any) -> Updates:
    """FedAvg's client: plain SGD on the loss."""
    return lambda w, cohort: [toy.sgd(w, c.batches, p.lr) - w for c in cohort]


def proximal_sgd(toy: Toy, p: Any) -> Updates:
    """FedProx's client, eq. 2: the gradient of μ/2 ‖v − w‖² on top."""

    def updates(w: Tensor, cohort: Sequence[ToyClient]) -> list[Tensor]:
        return [toy.sgd(w, c.batches, p.lr, lambda v, x, y: toy.gradient(v, x, y) + p.mu * (v - w)) - w for c in cohort]

    return updates


def weighted(rows: Sequence[Tensor], cohort: Sequence[ToyClient]) -> Tensor:
    """The mean with the clients' shares of the rows."""
    return sum((c.share * row for c, row in zip(cohort, rows, strict=True)), torch.zeros_like(rows[0]))


def uniform(rows: Sequence[Tensor]) -> Tensor:
    """The mean with equal weights."""
    return sum(rows, torch.zeros_like(rows[0])) / len(rows)


def add(w: Tensor, update: Tensor) -> Tensor:
    """The plain server: θ + Δ."""
    return w + update


def momentum(p: Any) -> ServerStep:
    """Hsu et al.: v ← βv + Δ, θ ← θ + ηv."""
    kept = {"v": torch.zeros(())}

    def step(w: Tensor, update: Tensor) -> Tensor:
        kept["v"] = p.server_momentum * kept["v"] + update
        return w + p.server_lr * kept["v"]

    return step


def adam(p: Any) -> ServerStep:
    """Reddi et al., Algorithm 2: v starts at τ², no bias correction."""
    kept = {"m": torch.zeros(()), "v": torch.tensor(p.server_epsilon**2)}

    def step(w: Tensor, update: Tensor) -> Tensor:
        kept["m"] = p.server_momentum * kept["m"] + (1 - p.server_momentum) * update
        kept["v"] = p.server_beta2 * kept["v"] + (1 - p.server_beta2) * update**2
        return w + p.server_lr * kept["m"] / (kept["v"].sqrt() + p.server_epsilon)

    return step


def yogi(p: Any) -> ServerStep:
    """Reddi et al., Algorithm 2, with Yogi's second moment."""
    kept = {"m": torch.zeros(()), "v": torch.tensor(p.server_epsilon**2)}

    def step(w: Tensor, update: Tensor) -> Tensor:
        kept["m"] = p.server_momentum * kept["m"] + (1 - p.server_momentum) * update
        kept["v"] = kept["v"] - (1 - p.server_beta2) * update**2 * torch.sign(kept["v"] - update**2)
        return w + p.server_lr * kept["m"] / (kept["v"].sqrt() + p.server_epsilon)

    return step


def torch_adam(p: Any, start: Tensor) -> ServerStep:
    """Adam with bias correction, as torch has it, on the negative update."""
    variable = start.clone().requires_grad_()
    optimizer = torch.optim.Adam(
        [variable], lr=p.server_lr, betas=(p.server_momentum, p.server_beta2), eps=p.server_epsilon
    )

    def step(w: Tensor, update: Tensor) -> Tensor:
        variable.data.copy_(w)
        variable.grad = -update
        optimizer.step()
        return variable.detach().clone()

    return step


def geometric_mean(rows: Sequence[Tensor]) -> Tensor:
    """FedILC's mean, one coordinate after the other; zeros are in neither sign's set."""
    mean = []
    for entries in torch.stack(list(rows)).T.tolist():
        total = 0.0
        for sign in (1, -1):
            sizes = [sign * entry for entry in entries if sign * entry > 0]
            product = 1.0
            for size in sizes:
                product *= size ** (1 / len(sizes))
            total += sign * len(sizes) / len(entries) * product if sizes else 0.0
        mean.append(total)
    return torch.tensor(mean)


def matched(rows: Sequence[Tensor], reference: Tensor, kappa: float) -> Tensor:
    """FedOMG, eq. 16, for κ over 1: the best point of each face of the simplex, and the best of these."""
    updates = torch.stack(list(rows))

    def value(gamma: Tensor) -> Tensor:
        combined = gamma @ updates
        return combined @ reference + kappa * reference.norm() * combined.norm()

    candidates = []
    for face in (face for size in range(1, len(rows) + 1) for face in combinations(range(len(rows)), size)):
        corners = torch.eye(len(rows))[list(face)]

        def inside(t: Tensor, corners: Tensor = corners) -> Tensor:
            return (1 - t.sum()) * corners[0] + t @ corners[1:]

        gamma = inside(minimum(lambda t, inside=inside: value(inside(t)), torch.full((len(face) - 1,), 1 / len(face))))
        if bool((gamma >= 0).all()):
            candidates.append(gamma)
    combined = min(candidates, key=lambda gamma: float(value(gamma))) @ updates
    return reference + kappa * reference.norm() * combined / combined.norm()


def minimum(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Newton's method with halved steps, downhill where the objective is not convex."""
    x = start
    for _ in range(50):
        gradient = gradient_of(objective, x) if len(x) else x
        if not len(x) or gradient.abs().max() < 1e-13:
            return x
        curvatures, directions = torch.linalg.eigh(hessian(objective, x))
        step = directions @ (directions.T @ gradient / curvatures.abs())
        size = 1.0
        while size > 1e-9 and objective(x - size * step) > objective(x):
            size /= 2
        x = x - size * step
    assert gradient_of(objective, x).abs().max() < 1e-11, "Newton's method found no minimum"
    return x
