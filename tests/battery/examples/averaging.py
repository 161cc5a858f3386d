"""FedAvg, FedSGD, FedProx, the server optimizers, the references, and one composition per server half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farfield.algorithms.worked_examples import Toy, by_hand, worked_example
from tests.battery.examples.naive import (
    ServerStep,
    Updates,
    adam,
    add,
    geometric_mean,
    local_sgd,
    matched,
    momentum,
    proximal_sgd,
    torch_adam,
    uniform,
    weighted,
    yogi,
)


def averaged(toy: Toy, updates: Updates, step: ServerStep = add) -> Tensor:
    """Rounds in which the server takes one step along the weighted mean of the updates."""
    w = toy.start
    for cohort in toy.rounds:
        w = step(w, weighted(updates(w, cohort), cohort))
    return w


@worked_example("fedavg")
def mean_by_rows(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, local_sgd(toy, p))


@worked_example("fedavg", weighting="uniform", server_lr=0.5, local_epochs=2, weight_decay=0.01)
def mean_of_equals(toy: Toy, p: Any) -> Tensor:
    w = toy.start
    for cohort in toy.rounds:
        ends = [toy.sgd(w, c.batches, p.lr, lambda v, x, y: toy.gradient(v, x, y) + p.weight_decay * v) for c in cohort]
        w = w + p.server_lr * (uniform(ends) - w)
    return w


@worked_example("fedsgd")
def one_gradient_of_all_rows(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, lambda w, cohort: [-p.lr * toy.gradient(w, c.x, c.y) for c in cohort])


@worked_example("fedprox", mu=0.5)
def proximal(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, proximal_sgd(toy, p))


@worked_example("fedavgm")
def server_momentum(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, local_sgd(toy, p), momentum(p))


@worked_example("fedadam")
def server_adam(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, local_sgd(toy, p), adam(p))


@worked_example("fedadam", server_bias_correction=True)
def server_adam_of_torch(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, local_sgd(toy, p), torch_adam(p, toy.start))


@worked_example("fedyogi")
def server_yogi(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, local_sgd(toy, p), yogi(p))


@worked_example("erm")
def pooled_sgd(toy: Toy, p: Any) -> Tensor:
    w = toy.start
    for (everyone,) in toy.rounds:
        w = toy.sgd(w, everyone.batches, p.lr)
    return w


@worked_example("local-only")
def each_alone(toy: Toy, p: Any) -> Tensor:
    own = [toy.start] * toy.clients
    for cohort in toy.rounds:
        for c in cohort:
            own[c.id] = toy.sgd(own[c.id], c.batches, p.lr)
    return torch.cat(own)


#: With these settings the optimum lies on an edge of the simplex in two rounds and inside it in one.
SPREAD: dict[str, Any] = {"kappa": 4.0, "local_steps": 2}


@worked_example("fedomg", **SPREAD)
def matched_updates(toy: Toy, p: Any) -> Tensor:
    w, updates = toy.start, local_sgd(toy, p)
    for cohort in toy.rounds:
        rows = updates(w, cohort)
        w = w + matched(rows, weighted(rows, cohort), p.kappa)
    return w


@worked_example("fedomg", hull="weighted", **SPREAD)
def matched_shares_of_updates(toy: Toy, p: Any) -> Tensor:
    """The published DG code: p_u Δ_u are matched, around their uniform mean."""
    w, updates = toy.start, local_sgd(toy, p)
    for cohort in toy.rounds:
        rows = [c.share * row for c, row in zip(cohort, updates(w, cohort), strict=True)]
        w = w + matched(rows, uniform(rows), p.kappa)
    return w


@by_hand("fedomg", kappa=0.5)
def two_updates_at_a_right_angle(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Updates (1, 0) and (0, 1): g_FL = (½, ½), Γ* = (½, ½), so the direction is g_FL made longer by κ."""
    updates, shares = torch.eye(2), torch.tensor([0.5, 0.5])
    ruled = algorithm.rule(updates, shares, algorithm.combine(updates, shares))
    return ruled.direction, torch.tensor([0.75, 0.75])


@worked_example("fedprox+fedavgm", mu=0.5)
def proximal_under_momentum(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, proximal_sgd(toy, p), momentum(p))


@worked_example("fedprox+fedadam", mu=0.5)
def proximal_under_adam(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, proximal_sgd(toy, p), adam(p))


@worked_example("fedsgd+fedyogi")
def gradients_under_yogi(toy: Toy, p: Any) -> Tensor:
    return averaged(toy, lambda w, cohort: [-p.lr * toy.gradient(w, c.x, c.y) for c in cohort], yogi(p))


@worked_example("fedprox+fedomg", mu=0.5, **SPREAD)
def proximal_and_matched(toy: Toy, p: Any) -> Tensor:
    w, updates = toy.start, proximal_sgd(toy, p)
    for cohort in toy.rounds:
        rows = updates(w, cohort)
        w = w + matched(rows, weighted(rows, cohort), p.kappa)
    return w


@worked_example("fedprox+fedilc-geometric", mu=0.5)
def proximal_and_geometric(toy: Toy, p: Any) -> Tensor:
    w, updates = toy.start, proximal_sgd(toy, p)
    for cohort in toy.rounds:
        w = w + geometric_mean(updates(w, cohort))
    return w


@worked_example("prior")
def shares_of_the_classes(toy: Toy, p: Any) -> Tensor:
    rows = torch.cat([client.y for client in toy.rounds[-1]]).tolist()
    shares = [rows.count(label) / len(rows) for label in range(3)]
    return torch.cat([torch.zeros(len(toy.start) - 3), torch.tensor(shares).log()])
