"""A round of FedILC intra-geo, in closed forms, against the same round written naively.

The naive form keeps the gradient of every mini-batch, takes the geometric mean by logarithms, holds the final layer's
gradient of every sample with its graph, and differentiates the Fishr penalty through the graphs of all clients at once,
as the published code does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.interleaved import interleaved
from benchmarks.speed.case import Case, Check, Figure, Options, Outcome
from farfield.algorithms import build
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import Model, ModelSpec, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

CLIENTS, ROWS, BATCH, LR, FISHR = 5, 640, 32, 0.1, 5.0
SETTINGS = {
    "lr": LR,
    "batch_size": BATCH,
    "fishr": FISHR,
    "server_optimizer": "sgd",
    "server_lr": 1.0,
    "server_momentum": 0.0,
}
SPECS = {
    "mlp 64-64-10": ModelSpec(input_shape=(1, 8, 8), outputs=10, hidden=(64, 64)),
    "convnet 128-10": ModelSpec(featurizer="convnet", input_shape=(1, 28, 28), outputs=10, hidden=(16, 32, 128)),
}
#: How far apart the models of the two forms may be after a few rounds, relative to the model's largest entry.
ROUNDING = 1e-3


def run(options: Options) -> Outcome:
    torch.set_num_threads(1)
    figures, checks, seconds = [], [], {}
    for name, spec in SPECS.items():
        population = _population(spec, 64 if options.short else ROWS)
        naive = Naive(build_model(spec, seed=0), population)
        with Ours(spec, population) as ours:
            timings = interleaved({"ours": ours.turn, "naive": naive.turn}, options.turns(10))
        figures.append(Figure.of(f"{name}: ours / naive", timings.ratio("ours", "naive")))
        seconds |= {f"{name}: {form}": value for form, value in timings.medians().items()}
        apart = float((ours.vector - naive.vector).abs().max() / naive.vector.abs().max())
        checks.append(Check(f"{name}: the same model up to {apart:.1g}", apart < ROUNDING))
    return Outcome(tuple(figures), tuple(checks), seconds)


def _population(spec: ModelSpec, rows: int) -> Population:
    generator = torch.Generator().manual_seed(0)
    domains = [
        Domain(
            f"d{number}",
            torch.rand((rows, *spec.input_shape), generator=generator),
            torch.randint(10, (rows,), generator=generator),
            validation=torch.empty(0, dtype=torch.int64),
        )
        for number in range(CLIENTS)
    ]
    clients = make_clients(
        domains, partition=Partition(kind="domain"), validation="official", seed=0, kind="classification"
    )
    return Population(domains, clients)


class Ours:
    """FedILC intra-geo on the local engine."""

    def __init__(self, spec: ModelSpec, population: Population) -> None:
        model = build_model(spec, seed=0)
        self._algorithm = build("fedilc-intra-geo", SETTINGS)
        self._federation = LocalFederation(self._algorithm, model, population, seed=0)
        self._state = self._algorithm.start(model.state())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._federation.close()

    @property
    def vector(self) -> Tensor:
        return self._state.model.parameters

    def turn(self, number: int) -> Callable[[], Any]:
        def timed() -> None:
            self._federation.begin(number + 1, range(CLIENTS))
            self._state = self._algorithm.round(self._federation, self._state)

        return timed


class Naive:
    """FedILC intra-geo with autograd alone."""

    def __init__(self, model: Model, population: Population) -> None:
        self._model, self._population = model, population
        self._parameters = list(model.parameters())

    @property
    def vector(self) -> Tensor:
        return self._model.vector

    def turn(self, number: int) -> Callable[[], Any]:
        return lambda: self._round(number + 1)

    def _round(self, number: int) -> None:
        gradients, variances = [], []
        for c in range(len(self._population)):
            client = self._population.client(c, seed=0, round=number, phase="gradient_and_variance", state={})
            of_batches = [self._gradient(F.cross_entropy(self._model(x), y)) for x, y in client.batches(BATCH)]
            gradients.append(geometric_mean(torch.stack(of_batches)))
            variances.append(self._variance(*client.training.all()))
        stacked = torch.stack(variances)
        penalty = (stacked - stacked.mean(0)).square().sum() / len(variances)
        direction = torch.stack(gradients).mean(0) + FISHR * self._gradient(penalty)
        with torch.no_grad():
            self._model.vector.sub_(LR * direction)

    def _gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, self._parameters)])

    def _variance(self, x: Tensor, y: Tensor) -> Tensor:
        features = self._model.features(x)
        errors = self._model.head(features).softmax(-1) - F.one_hot(y, 10)
        by_weight = (errors.unsqueeze(2) * features.unsqueeze(1)).flatten(1)
        return torch.cat([by_weight, errors], dim=1).var(dim=0, unbiased=False)


def geometric_mean(rows: Tensor) -> Tensor:
    """FedILC's mean over rows; zeros are in neither sign's set."""
    total = torch.zeros(rows.shape[1])
    for sign in (1.0, -1.0):
        there = sign * rows > 0
        count = there.sum(0)
        logarithms = torch.where(there, (sign * rows).clamp(min=torch.finfo(rows.dtype).tiny).log(), 0.0).sum(0)
        total += sign * count / len(rows) * torch.where(count > 0, (logarithms / count.clamp(min=1)).exp(), 0.0)
    return total


CASE = Case("fedilc-round", "FedILC intra-geo: a round of 5 clients × 640 rows", run)
