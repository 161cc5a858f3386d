"""FedLOE: two stages, and φ by Newton's method on the objective as it is written."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from farfield.algorithms.worked_examples import Toy, ToyClient, gradient_of, worked_example
from tests.battery.examples.naive import minimum, weighted

#: Stage 2 in the last two of three rounds, and enough tuning rows for every client.
TWO_STAGES: dict[str, Any] = {"stage2": 0.5, "tuning": 0.3}
#: λ r(φ) from the predictions and labels of each client's tuning rows.
Penalty = Callable[[Tensor, list[tuple[Tensor, Tensor]]], Tensor]

#: φ from the shares and the clients' tuning predictions and labels.
Steps = Callable[[Tensor, list[tuple[Tensor, Tensor]]], Tensor]


def batches(p: Any, c: ToyClient, phase: str) -> list[Any]:
    """As many mini-batches as the client has with all its rows, from those that are not for tuning."""
    client = c.in_phase(phase)
    client.training, _ = client.carve(p.tuning, "tuning")
    return list(client.batches(p.batch_size, steps=ceil(len(c.y) / p.batch_size)))


def risk(phi: Tensor, predictions: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(torch.einsum("nck,c->nk", predictions, phi), y)


def mixed_heads(toy: Toy, p: Any, penalty: Penalty | None = None, steps: Steps | None = None) -> Tensor:
    """Both stages; φ is the optimum, or what a few `steps` from the shares lead to."""
    w = toy.start
    first, *others = toy.rounds
    w = weighted([toy.sgd(w, batches(p, c, "train"), p.lr) for c in first], first)
    for cohort in others:

        def of_head(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
            gradient = torch.zeros_like(v)
            gradient[toy.head] = toy.gradient(v, x, y)[toy.head]
            return gradient

        experts = [toy.sgd(w, batches(p, c, "train_head"), p.lr, of_head) for c in cohort]
        answers = []
        for c in cohort:
            client = c.in_phase("predict_tuning")
            tuning = client.carve(p.tuning, "tuning")[1].all()
            answers.append((torch.stack([toy.logits(expert, tuning.x) for expert in experts], dim=1), tuning.y))
        shares = torch.tensor([c.share for c in cohort])

        def objective(phi: Tensor, answers: Any = answers, shares: Tensor = shares) -> Tensor:
            risks = torch.stack([risk(phi, *answer) for answer in answers])
            value = shares @ risks + p.ridge / 2 * (phi - shares).square().sum()
            return value if penalty is None else value + p.lam * penalty(phi, answers)

        phi = minimum(objective, shares) if steps is None else steps(shares, answers)
        w = torch.einsum("c,cd->d", phi, torch.stack(experts))
        w[: toy.head.start] = experts[0][: toy.head.start]  # the featurizer is frozen
    return w


def slope(answer: tuple[Tensor, Tensor], phi: Tensor, by_scale: bool) -> Tensor:
    """The derivative of a client's risk by φ, or by a factor on the predictions; differentiable."""
    variable = phi if phi.requires_grad else phi.clone().requires_grad_()
    if by_scale:
        one = torch.ones((), requires_grad=True)
        return torch.autograd.grad(risk(one * variable, *answer), one, create_graph=True)[0]
    return torch.autograd.grad(risk(variable, *answer), variable, create_graph=True)[0]


@worked_example("fedloe-erm", **TWO_STAGES)
def least_risk(toy: Toy, p: Any) -> Tensor:
    return mixed_heads(toy, p)


@worked_example("fedloe-irm", lam=0.5, **TWO_STAGES)
def no_client_rescales(toy: Toy, p: Any) -> Tensor:
    return mixed_heads(
        toy, p, lambda phi, answers: torch.stack([slope(a, phi, by_scale=True) ** 2 for a in answers]).mean()
    )


@worked_example("fedloe-rex", lam=0.5, **TWO_STAGES)
def alike_risks(toy: Toy, p: Any) -> Tensor:
    return mixed_heads(toy, p, lambda phi, answers: torch.stack([risk(phi, *a) for a in answers]).var(unbiased=False))


@worked_example("fedloe-fish", lam=0.05, **TWO_STAGES)
def gradients_agree(toy: Toy, p: Any) -> Tensor:
    def minus_products(phi: Tensor, answers: Any) -> Tensor:
        slopes = torch.stack([slope(a, phi, by_scale=False) for a in answers])
        products = slopes @ slopes.T
        return -(products.sum() - products.trace()) / (len(answers) * (len(answers) - 1))

    return mixed_heads(toy, p, minus_products)


@worked_example("fedloe-erm", phi_solver="sgd", phi_steps=4, phi_lr=0.2, phi_weight_decay=0.1, **TWO_STAGES)
def a_few_steps(toy: Toy, p: Any) -> Tensor:
    def steps(phi: Tensor, answers: Any) -> Tensor:
        shares = phi
        for _ in range(p.phi_steps):
            risks = torch.stack([gradient_of(lambda at, a=a: risk(at, *a), phi) for a in answers])
            phi = phi - p.phi_lr * (shares @ risks + p.phi_weight_decay * phi)
        return phi

    return mixed_heads(toy, p, steps=steps)


@worked_example("fedloe-rex", lam=0.5, phi_solver="adam", phi_steps=4, phi_lr=0.2, phi_weight_decay=0.1, **TWO_STAGES)
def a_few_steps_of_adam(toy: Toy, p: Any) -> Tensor:
    def steps(shares: Tensor, answers: Any) -> Tensor:
        phi = shares.clone().requires_grad_()
        optimizer = torch.optim.Adam([phi], lr=p.phi_lr, weight_decay=p.phi_weight_decay)
        for _ in range(p.phi_steps):
            risks = torch.stack([risk(phi, *a) for a in answers])
            optimizer.zero_grad()
            (shares @ risks + p.lam * risks.var(unbiased=False)).backward()
            optimizer.step()
        return phi.detach()

    return mixed_heads(toy, p, steps=steps)


@worked_example(
    "fedloe-fish", phi_solver="sgd", phi_steps=4, phi_lr=0.2, phi_weight_decay=0.1, meta_lr=0.3, **TWO_STAGES
)
def client_after_client(toy: Toy, p: Any) -> Tensor:
    def steps(phi: Tensor, answers: Any) -> Tensor:
        for _ in range(p.phi_steps):
            clone = phi
            for answer in answers:
                slope = gradient_of(lambda at, answer=answer: risk(at, *answer), clone)
                clone = clone - p.phi_lr * (slope + p.phi_weight_decay * clone)
            phi = phi + p.meta_lr * (clone - phi)
        return phi

    return mixed_heads(toy, p, steps=steps)
