"""FedCiR: the clients' objective (eq. 18) and the server's generator (eq. 15), with the same random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, linear, one_hot, softplus

from farfield.algorithms.worked_examples import Toy, ToyClient, gradient_of, worked_example
from farfield.reproducibility.randomness import derive_seed
from tests.battery.examples.naive import uniform

CLASSES, FEATURES = 3, 6
SMALL: dict[str, Any] = {
    "generator_steps": 3,
    "generator_hidden": 5,
    "generator_noise": 3,
    "generator_batch": 8,
    "generator_draws": 6,
    # A floor under some of the standard deviations and over others.
    "sigma_floor": 0.1,
}


def represent(toy: Toy, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    parts = toy.parts(v)
    both = linear(toy.features(v, x), parts["gaussian.weight"], parts["gaussian.bias"])
    return both[:, :FEATURES], softplus(both[:, FEATURES:]) + 1e-6


def head(toy: Toy, v: Tensor, z: Tensor) -> Tensor:
    parts = toy.parts(v)
    return linear(z, parts["head.0.weight"], parts["head.0.bias"])


@dataclass
class Imagined:
    """The generator with torch's own Adam, and what the server measures on its draws."""

    p: Any
    variable: Tensor
    optimizer: torch.optim.Adam

    @classmethod
    def untrained(cls, p: Any, rng: torch.Generator) -> Imagined:
        inputs, hidden = CLASSES + p.generator_noise, p.generator_hidden
        sizes = [hidden * inputs, hidden, hidden, FEATURES * hidden, FEATURES]
        drawn = [2 * torch.rand(size, generator=rng) - 1 for size in sizes]
        start = torch.cat(
            [
                drawn[0] / inputs**0.5,
                torch.ones(hidden),
                torch.zeros(hidden),
                drawn[3] / hidden**0.5,
                drawn[4] / hidden**0.5,
            ]
        )
        variable = start.requires_grad_()
        return cls(p, variable, torch.optim.Adam([variable], lr=p.generator_lr, weight_decay=p.generator_decay))

    def inputs(self, labels: Tensor, rng: torch.Generator | None) -> Tensor:
        noise = torch.randn((len(labels), self.p.generator_noise), generator=rng)
        return torch.cat([one_hot(labels, CLASSES).double(), noise], dim=1)

    def features(self, inputs: Tensor, statistics: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """FC, batch normalisation, ReLU, FC."""
        hidden, width = self.p.generator_hidden, inputs.shape[1]
        first, scale, shift, second, bias = self.variable.split(
            [hidden * width, hidden, hidden, FEATURES * hidden, FEATURES]
        )
        before = inputs @ first.view(hidden, width).T
        mean, var = statistics or (before.mean(0), before.var(0, unbiased=False))
        normal = (before - mean) / (var + 1e-5).sqrt()
        return (normal * scale + shift).relu() @ second.view(FEATURES, hidden).T + bias

    def train(self, toy: Toy, ends: Sequence[Tensor], rng: torch.Generator) -> None:
        """E_g steps on −log Σ_k p(k) p_k(y | z), with the clients' heads and equal p(k)."""
        for _ in range(self.p.generator_steps):
            labels = torch.randint(CLASSES, (self.p.generator_batch,), generator=rng)
            z = self.features(self.inputs(labels, rng))
            agreed = uniform([head(toy, end, z).softmax(-1) for end in ends])
            self.optimizer.zero_grad()
            (-agreed[torch.arange(len(labels)), labels].log().mean()).backward()
            self.optimizer.step()

    def measure(self, rng: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """Statistics of the normalisation, and mean and standard deviation of each class."""
        draws = self.p.generator_draws
        inputs = self.inputs(torch.arange(CLASSES).repeat_interleave(draws), rng)
        with torch.no_grad():
            hidden = self.p.generator_hidden
            before = inputs @ self.variable[: hidden * inputs.shape[1]].view(hidden, -1).T
            by_class = self.features(inputs).view(CLASSES, draws, FEATURES)
        sigma = by_class.var(1, unbiased=False).sqrt()
        return (before.mean(0), before.var(0, unbiased=False)), by_class.mean(1), sigma.clamp_min(self.p.sigma_floor)


def imagined(toy: Toy, p: Any, reg: float, align: float) -> Tensor:
    """Algorithm 1: clients train with what the generator imagined after the round before, from `warmup` rounds on."""
    w = toy.start
    made = Imagined.untrained(p, toy.server_generator(1, "generator"))
    shared = None
    for number, cohort in enumerate(toy.rounds, 1):
        ends = [_trained(toy, p, w, c, made, shared if number > p.warmup else None, reg, align) for c in cohort]
        made.train(toy, ends, toy.server_generator(number, "generator training"))
        shared = made.measure(toy.server_generator(number, "draws"))
        w = uniform(ends)
    return w


def _trained(
    toy: Toy, p: Any, w: Tensor, c: ToyClient, made: Imagined, shared: Any, reg: float, align: float
) -> Tensor:
    seen = c.in_phase("train")
    torch.manual_seed(derive_seed(seen.seed, seen.round, seen.name, "train", "layers"))
    v = w
    for x, y in c.batches:
        epsilon = torch.randn(len(y), FEATURES)
        generated = None
        if shared is not None and reg:
            labels = torch.randint(CLASSES, y.shape)
            generated = made.features(made.inputs(labels, None), shared[0]).detach(), labels

        def objective(at: Tensor, x: Tensor = x, y: Tensor = y, drawn: Any = (epsilon, generated)) -> Tensor:
            epsilon, generated = drawn
            mu, sigma = represent(toy, at, x)
            loss = cross_entropy(head(toy, at, mu + sigma * epsilon), y)
            if generated is not None:
                loss = loss + reg * cross_entropy(head(toy, at, generated[0]), generated[1])
            if shared is not None and align:
                own, of_class = Normal(mu, sigma), Normal(shared[1][y], shared[2][y])
                loss = loss + align * kl_divergence(own, of_class).sum(1).mean()
            return loss

        v = v - p.lr * gradient_of(objective, v)
    return v


@worked_example("fedcir", lambda_reg=0.8, lambda_align=0.05, **SMALL)
def informative_and_invariant(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, p.lambda_reg, p.lambda_align)


@worked_example("fedcir", lambda_reg=0.8, lambda_align=0.05, warmup=2, **SMALL)
def after_two_rounds(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, p.lambda_reg, p.lambda_align)


@worked_example("fedcir-reg", lambda_reg=0.8, warmup=2, **SMALL)
def informative(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, p.lambda_reg, 0.0)


@worked_example("fedcir-reg", lambda_reg=0.8, **SMALL)
def informative_from_the_second_round(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, p.lambda_reg, 0.0)


@worked_example("fedcir-align", lambda_align=0.05, warmup=2, **SMALL)
def invariant(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, 0.0, p.lambda_align)


@worked_example("fedcir-align", lambda_align=0.05, **SMALL)
def invariant_from_the_second_round(toy: Toy, p: Any) -> Tensor:
    return imagined(toy, p, 0.0, p.lambda_align)
