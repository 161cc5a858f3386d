"""FedIIR and FedILC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from farfield.algorithms.worked_examples import Toy, ToyClient, gradient_of, worked_example
from tests.battery.examples.naive import ServerStep, add, geometric_mean, torch_adam, uniform


def by_head(toy: Toy, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the loss by the classifier, itself differentiable."""
    (gradient,) = torch.autograd.grad(toy.loss(v, x, y), v, create_graph=True)
    return gradient[toy.head]


def aligned(toy: Toy, p: Any, means: Callable[[Tensor, Sequence[ToyClient]], Tensor], factor: float) -> Tensor:
    """FedIIR's rounds: g̃ ← υ g̃ + (1 − υ) g_ω, then local training on R + factor · ‖∇_ω R − g̃‖²."""
    w, target = toy.start, torch.zeros_like(toy.start[toy.head])
    for cohort in toy.rounds:
        target = p.upsilon * target + (1 - p.upsilon) * means(w, cohort)

        def penalised(v: Tensor, x: Tensor, y: Tensor, target: Tensor = target) -> Tensor:
            return gradient_of(
                lambda at: toy.loss(at, x, y) + factor * (by_head(toy, at, x, y) - target).square().sum(), v
            )

        w = uniform([toy.sgd(w, c.batches, p.lr, penalised) for c in cohort])
    return w


@worked_example("fediir", gamma=0.8, upsilon=0.4)
def aligned_classifier_gradients(toy: Toy, p: Any) -> Tensor:
    return aligned(
        toy, p, lambda w, cohort: uniform([toy.gradient(w, c.x, c.y)[toy.head] for c in cohort]), p.gamma / 2
    )


@worked_example("fediir", gamma=0.8, upsilon=0.4, half=False, gradient_average="batches")
def aligned_as_published(toy: Toy, p: Any) -> Tensor:
    def over_batches(w: Tensor, cohort: Sequence[ToyClient]) -> Tensor:
        batches = [batch for c in cohort for batch in c.in_phase("head_gradient").batches(p.batch_size)]
        return uniform([toy.gradient(w, x, y)[toy.head] for x, y in batches])

    return aligned(toy, p, over_batches, p.gamma)


def variance(toy: Toy, v: Tensor, c: ToyClient) -> Tensor:
    """The variance over samples of the classifier's gradient, (p − y) zᵀ and p − y."""
    features = toy.features(v, c.x)
    errors = toy.logits(v, c.x).softmax(-1) - one_hot(c.y, 3)
    by_weight = (errors.unsqueeze(2) * features.unsqueeze(1)).flatten(1)
    return torch.cat([by_weight, errors], dim=1).var(dim=0, unbiased=False)


def fishr(toy: Toy, v: Tensor, cohort: Sequence[ToyClient]) -> Tensor:
    """1/E Σ_e ‖v_e − v̄‖²."""
    variances = torch.stack([variance(toy, v, c) for c in cohort])
    return (variances - variances.mean(0)).square().sum() / len(cohort)


def full(toy: Toy, w: Tensor, cohort: Sequence[ToyClient]) -> list[Tensor]:
    """Each client's gradient over all its rows."""
    return [toy.gradient(w, c.x, c.y) for c in cohort]


def by_batches(toy: Toy, p: Any, w: Tensor, c: ToyClient) -> list[Tensor]:
    """The gradients of a client's mini-batches in the first exchange."""
    return [toy.gradient(w, x, y) for x, y in c.in_phase("gradient_and_variance").batches(p.batch_size)]


def descended(
    toy: Toy, p: Any, mean: Callable[[Tensor, Sequence[ToyClient]], Tensor], step: ServerStep = add, lam: float = 0.0
) -> Tensor:
    """FedILC's rounds: one step along −η (∇F + λ ∇L), with the mean gradient ∇F and Fishr's penalty L."""
    w = toy.start
    for cohort in toy.rounds:
        gradient = mean(w, cohort)
        if lam:
            gradient = gradient + lam * gradient_of(lambda v, cohort=cohort: fishr(toy, v, cohort), w)
        w = step(w, -p.lr * gradient)
    return w


SGD: dict[str, Any] = {"lr": 0.3, "server_optimizer": "sgd", "server_lr": 1.0, "server_momentum": 0.0}


@worked_example("fedilc-geometric", **SGD)
def geometric_gradients(toy: Toy, p: Any) -> Tensor:
    return descended(toy, p, lambda w, cohort: geometric_mean(full(toy, w, cohort)))


@worked_example("fedilc-fishr", fishr=5.0, **SGD)
def alike_variances(toy: Toy, p: Any) -> Tensor:
    return descended(toy, p, lambda w, cohort: uniform(full(toy, w, cohort)), lam=p.fishr)


@worked_example("fedilc-inter-geo", fishr=5.0, **SGD)
def geometric_over_clients(toy: Toy, p: Any) -> Tensor:
    return descended(toy, p, lambda w, cohort: geometric_mean(full(toy, w, cohort)), lam=p.fishr)


@worked_example("fedilc-inter-geo", fishr=5.0)
def geometric_over_clients_with_adam(toy: Toy, p: Any) -> Tensor:
    step = torch_adam(p, toy.start)
    return descended(toy, p, lambda w, cohort: geometric_mean(full(toy, w, cohort)), step, p.fishr)


@worked_example("fedilc-intra-arith", fishr=5.0, **SGD)
def mean_over_batches(toy: Toy, p: Any) -> Tensor:
    return descended(
        toy, p, lambda w, cohort: uniform([uniform(by_batches(toy, p, w, c)) for c in cohort]), lam=p.fishr
    )


@worked_example("fedilc-intra-geo", fishr=5.0, **SGD)
def geometric_over_batches(toy: Toy, p: Any) -> Tensor:
    return descended(
        toy, p, lambda w, cohort: uniform([geometric_mean(by_batches(toy, p, w, c)) for c in cohort]), lam=p.fishr
    )


@worked_example("fedilc-intra-geo", fishr=5.0, fishr_reduction="sum", inner="samples", **SGD)
def geometric_over_samples(toy: Toy, p: Any) -> Tensor:
    def of_samples(w: Tensor, c: ToyClient) -> Tensor:
        return geometric_mean([toy.gradient(w, x[None], y[None]) for x, y in zip(c.x, c.y, strict=True)])

    w = toy.start
    for cohort in toy.rounds:
        penalty = gradient_of(lambda v, cohort=cohort: len(cohort) * fishr(toy, v, cohort), w)
        w = w - p.lr * (uniform([of_samples(w, c) for c in cohort]) + p.fishr * penalty)
    return w
