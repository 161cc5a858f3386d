"""What a method declares as supported trains on a toy task; what it does not is refused with the declared reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, No, Supports, method
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain, Task
from tests.battery.methods import make, single
from tests.toy import SPEC, domain

IMAGES = {"featurizer": "convnet", "input_shape": (1, 8, 8), "hidden": (2,)}


@dataclass(frozen=True)
class Case:
    """A toy task in which one aspect occurs."""

    kind: str = "classification"
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    label: Callable[[torch.Tensor], torch.Tensor] = lambda y: y
    #: The fewest clients that the aspect itself needs.
    clients: int = 2


#: An example of each aspect but the two numbers.
CASES = {
    "classification": Case(),
    "regression": Case("regression", {"outputs": 1}, label=lambda y: y.float()),
    "one_logit": Case(model={"outputs": 1}, label=lambda y: (y > 0).long()),
    "vectors": Case(model={"hidden": ()}),
    "images": Case(model=IMAGES),
    **{f"norm_{norm}": Case(model={**IMAGES, "norm": norm}) for norm in ("average", "local", "freeze", "group")},
    "mlp_head": Case(model={"head": "mlp", "head_hidden": 4}),
    "momentum": Case(settings={"momentum": 0.9}),
    "adam": Case(settings={"optimizer": "adam", "lr": 0.01}),
    "clip": Case(settings={"clip": 0.5}),
    "class_weights": Case(settings={"class_weights": "balanced"}),
    "record_privacy": Case(settings={"privacy": "record", "clip": 1.0, "noise": 0.5}),
    "client_privacy": Case(settings={"privacy": "client", "clip": 1.0, "noise": 0.1, "weighting": "uniform"}),
    "secure_sums": Case(settings={"secure_sums": True}, clients=3),
}


def _task(case: Case, clients: int) -> Task:
    """So many domains that train, and one to hold out, with examples of the case's shape."""
    spec = SPEC.model_copy(update=case.model)
    made = []
    for name in "abcd"[: clients + 1]:
        of = domain(name, rows=16)
        x = of.x if len(spec.input_shape) == 1 else of.x.repeat(1, 16).view(-1, *spec.input_shape)
        made.append(Domain(name, x, case.label(of.y)))
    classes = () if case.kind == "regression" else tuple("xyz"[: max(2, spec.outputs)])
    return Task(name="toy", kind=case.kind, domains=tuple(made), classes=classes, model=spec)  # type: ignore[arg-type]


def _trains(algorithm: FedAvg, case: Case, clients: int, rounds: int) -> None:
    """Two rounds leave a finite model that has moved, and nothing went wrong at a client."""
    task = _task(case, clients)
    algorithm.rounds = rounds
    spec = algorithm.model_for(task.model)
    algorithm.check(spec, case.kind, 1 if algorithm.pooled else clients)
    partition = Partition(kind="pooled" if algorithm.pooled else "domain")
    chosen = task.domains[:-1]
    made = make_clients(chosen, partition=partition, clients=None, validation=0.2, seed=0, kind=case.kind)
    model = build_model(spec, seed=0)
    with LocalFederation(algorithm, model, Population(chosen, made), seed=0) as fed:
        state = algorithm.start(model.state())
        for number in range(1, rounds + 1):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
        replies = fed.map_over(range(fed.clients), algorithm.evaluate, state.model)
        assert fed.events == []
        assert len(replies) == fed.clients
    trained = algorithm.models(state)[0].parameters
    assert bool(torch.isfinite(trained).all())
    assert not torch.equal(trained, build_model(spec, seed=0).vector)


def _refused(name: str, case: Case, clients: int, rounds: int, reason: str) -> None:
    with pytest.raises(PlanError) as refusal:
        make_plan(
            _task(case, clients),
            algorithms=[name],
            held_out=["abcd"[clients]],
            seeds=1,
            rounds=rounds,
            settings=case.settings,
        )
    sentence, _, way_out = str(refusal.value).partition(reason)
    assert sentence == f"{name} "
    assert way_out.startswith((";", " and needs at least"))
    assert len(way_out) > 10


def test_every_aspect_has_a_toy_task() -> None:
    assert {aspect.name for aspect in fields(Supports)} == {*CASES, "clients", "rounds"}


@pytest.mark.parametrize("name", single())
def test_what_is_declared_as_supported_trains_and_the_rest_is_refused_with_the_declared_reason(name: str) -> None:
    supports = method(name).supports
    clients, rounds = supports.clients.number, supports.rounds.number
    for aspect, case in CASES.items():
        answer = getattr(supports, aspect)
        if isinstance(answer, No):
            _refused(name, case, max(clients, case.clients), max(rounds, 2), answer.reason)
        else:
            _trains(make(name, **case.settings), case, max(clients, case.clients), max(rounds, 2))
    _trains(make(name), Case(), clients, rounds)
    if clients > 1:
        _refused(name, Case(), clients - 1, max(rounds, 2), supports.clients.reason)
    if rounds > 1:
        _refused(name, Case(), max(clients, 2), rounds - 1, supports.rounds.reason)


def test_a_declaration_without_limits_is_told_from_one_with_limits() -> None:
    everything = Supports(record_privacy=True, client_privacy=True)
    assert everything.short == "none"
    assert everything.to_json()["limits"] == {}
    limited = replace(everything, images=No("reads columns"))
    assert limited.short == "no images"
    assert limited.to_json()["images"] is False
    assert limited.to_json()["limits"]["images"] == {
        "reason": "reads columns",
        "way_out": "give vectors with --features cached",
    }
    assert not Supports().to_json()["record_privacy"], "privacy is promised by nobody who does not say so"
    assert limited.of_task("classification", ModelSpec(input_shape=(1, 8, 8), outputs=3), 2, None) == (
        "reads columns; give vectors with --features cached"
    )
