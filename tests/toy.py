"""Small real learning problems that tests train on in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from farfield.federation.engine import Engine
from farfield.federation.engines.local import LocalFederation
from farfield.federation.execution import Outcome
from farfield.federation.population import Population
from farfield.models import Model, ModelSpec, ModelState, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain, Task

SPEC = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(6,))


def domain(name: str, shift: float = 0.0, rows: int = 40) -> Domain:
    """Three Gaussian blobs, moved by `shift`; the same name gives the same rows."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    y = torch.arange(rows) % 3
    centres = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])
    x = centres[y] + shift * torch.tensor([1.0, -1.0, 0.5, 1.0]) + 0.4 * torch.randn((rows, 4), generator=generator)
    return Domain(name, x, y)


def domains(count: int = 2) -> list[Domain]:
    return [domain(chr(ord("a") + i), shift=0.5 * i, rows=40 + 8 * i) for i in range(count)]


def task(count: int = 3, model: ModelSpec = SPEC) -> Task:
    return Task(
        name="toy",
        kind="classification",
        domains=tuple(domains(count)),
        classes=("x", "y", "z"),
        model=model,
        defaults={"rounds": 4, "lr": 0.1, "batch_size": 8},
    )


def population(chosen: Sequence[Domain], pooled: bool = False, seed: int = 0) -> Population:
    partition = Partition(kind="pooled" if pooled else "domain")
    made = make_clients(chosen, partition=partition, clients=None, validation=0.2, seed=seed, kind="classification")
    return Population(chosen, made)


def federation(
    algorithm: object, chosen: Sequence[Domain], spec: ModelSpec = SPEC, **options: object
) -> LocalFederation:
    pooled = bool(getattr(algorithm, "pooled", False))
    model = build_model(spec, seed=0)
    return LocalFederation(algorithm, model, population(chosen, pooled), seed=0, **options)  # type: ignore[arg-type]


def sent(
    fed: Engine, phase: Callable[..., Any], model: ModelState, clients: Sequence[int] | None = None, **shared: Any
) -> list[dict[str, Any]]:
    """What each client puts on the wire in a phase, in client order: more than a server may see."""
    asked = range(fed.clients) if clients is None else clients
    outcomes = sorted(fed._outcomes(phase.__name__, model, shared, asked), key=lambda outcome: outcome.client)
    assert [outcome.problem for outcome in outcomes] == [None] * len(outcomes)
    return [dict(outcome.values) for outcome in outcomes]


def lose(fed: Engine, lost: Mapping[str, set[int]]) -> None:
    """Let the replies of some clients be lost in some phases."""
    reach = fed._outcomes

    def outcomes(phase: str, *rest: Any) -> Iterator[Outcome]:
        for outcome in reach(phase, *rest):
            if outcome.client in lost.get(phase, set()):
                outcome.problem = "lost"
            yield outcome

    fed._outcomes = outcomes  # type: ignore[method-assign]


def initial(spec: ModelSpec = SPEC) -> Model:
    return build_model(spec, seed=0)
