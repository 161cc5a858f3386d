"""Run a method on the toy of the worked examples, as it is or with something changed in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import FedAvg, State, build
from farfield.algorithms.worked_examples import Toy, ToyClient, WorkedExample
from farfield.federation.engines.local import LocalFederation
from farfield.models import Model, ModelSpec
from farfield.reproducibility.randomness import generator
from farfield.tasks.task import Domain
from tests.toy import SPEC, domain, initial, population

SEED = 0
#: Who takes part in each round. Client 1 sits the second one out.
COHORTS = ((0, 1, 2), (0, 2), (0, 1, 2))
#: Small enough that clients make 2 to 5 steps per round, with a short last batch.
SETTINGS = {"batch_size": 8}


@dataclass
class Wiring:
    """What a mutant changes outside the method: values on their way, and what is kept between rounds."""

    #: Called with the phase, the name and the value, in place of which goes what is returned.
    sent: Callable[[str, str, Any], Any] = lambda phase, name, value: value
    shared: Callable[[str, str, Any], Any] = lambda phase, name, value: value
    client_state: Callable[[str, Tensor], Tensor] = lambda name, value: value
    extras: Callable[[str, Tensor], Tensor] = lambda name, value: value
    slots: Callable[[str, Tensor], Tensor] = lambda name, value: value
    #: What went wrong at clients.
    problems: list[str] = field(default_factory=list)


@contextmanager
def float64() -> Iterator[None]:
    """Make new tensors float64, so that two ways to compute the same agree to the last digits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def toy_domains() -> list[Domain]:
    """Three clients whose training rows differ in number: 16, 22 and 36."""
    made = [domain(name, shift=shift, rows=rows) for name, shift, rows in (("a", 0, 20), ("b", 0.5, 27), ("c", 1, 44))]
    return [Domain(each.name, each.x.double(), each.y) for each in made]


def spec_for(algorithm: FedAvg) -> ModelSpec:
    """The toy's model with the representation that a method needs."""
    return algorithm.model_for(SPEC)


def cohorts(clients: int) -> list[list[int]]:
    """Who takes part in each round, among so many clients."""
    return [[client for client in cohort if client < clients] for cohort in COHORTS]


def built(example: WorkedExample) -> FedAvg:
    """The method that an example is of, with the example's settings."""
    return build(example.method, {**SETTINGS, **example.settings}, rounds=len(COHORTS))


def toy_of(algorithm: FedAvg) -> Toy:
    """The toy as an example sees it: the rows, batches and start that the method gets as well."""
    people = population(toy_domains(), algorithm.pooled)
    with float64():
        model = initial(spec_for(algorithm))
    rounds = []
    for number, cohort in enumerate(cohorts(len(people)), 1):

        def in_round(client: int, number: int = number) -> Callable[[str], Any]:
            return lambda phase: people.client(client, seed=SEED, round=number, phase=phase, state={})

        seen = {client: in_round(client)("train") for client in cohort}
        total = sum(client.samples for client in seen.values())
        p = algorithm.params
        rounds.append(
            tuple(
                ToyClient(
                    id=number_of,
                    x=client.training.all().x,
                    y=client.training.all().y,
                    share=client.samples / total,
                    batches=tuple(client.batches(p.batch_size, p.local_epochs, p.local_steps)),
                    in_phase=in_round(number_of),
                )
                for number_of, client in seen.items()
            )
        )
    return Toy(
        start=model.vector.clone(),
        rounds=tuple(rounds),
        clients=len(people),
        shapes={name: tuple(shape) for name, shape in model.layout.shapes.items()},
        server_generator=lambda number, purpose: generator(SEED, number, "server", purpose),
    )


def states_of(algorithm: FedAvg, wiring: Wiring | None = None) -> list[State]:
    """The server's states after each round of the method on the toy. A client that fails is an error."""
    wiring = wiring or Wiring()
    people = population(toy_domains(), algorithm.pooled)
    with float64():
        model: Model = initial(spec_for(algorithm))
        with LocalFederation(algorithm, model, people, seed=SEED) as fed:
            _put_between(fed, wiring)
            state, states = algorithm.start(model.state()), []
            for number, cohort in enumerate(cohorts(len(people)), 1):
                fed.begin(number, cohort)
                state = algorithm.round(fed, state)
                state = replace(
                    state, extras=_each(wiring.extras, state.extras), slots=_each(wiring.slots, state.slots)
                )
                states.append(state)
            wiring.problems += [event.message for event in fed.events]
    if wiring.problems:
        raise AssertionError(f"a client failed: {wiring.problems[0]}")
    return states


def result_of(algorithm: FedAvg, wiring: Wiring | None = None) -> Tensor:
    """The final parameters of the method on the toy: one vector, of all models one after the other."""
    return torch.cat([model.parameters for model in algorithm.models(states_of(algorithm, wiring)[-1])])


def difference(example: WorkedExample, algorithm: FedAvg, wiring: Wiring | None = None) -> float:
    """How far the algorithm is from what the example says, in the entry where it is farthest."""
    if example.by_hand:
        with float64():
            given, right = example.function(algorithm)
    else:
        given, right = result_of(algorithm, wiring), expected(example)
    assert given.shape == right.shape, f"{example} has {tuple(right.shape)} numbers, the method {tuple(given.shape)}"
    worst = float((given.double() - right.double()).abs().max())
    return worst if worst == worst else float("inf")


def expected(example: WorkedExample) -> Tensor:
    """The final parameters according to the example itself."""
    if id(example) not in _EXPECTED:
        algorithm = built(example)
        toy = toy_of(algorithm)
        with float64(), torch.random.fork_rng(devices=[]):
            result: Tensor = example.function(toy, algorithm.params)
        _EXPECTED[id(example)] = (example, result.detach())
    return _EXPECTED[id(example)][1]


#: What examples gave; with the example, so that its identity is not used again.
_EXPECTED: dict[int, tuple[WorkedExample, Tensor]] = {}


def _each(change: Callable[[str, Tensor], Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: change(name, value) for name, value in values.items()}


def _put_between(fed: Any, wiring: Wiring) -> None:
    reach = fed._outcomes

    def outcomes(phase: str, model: Any, shared: dict[str, Any], clients: Sequence[int]) -> Iterator[Any]:
        changed = {name: wiring.shared(phase, name, value) for name, value in shared.items()}
        for outcome in reach(phase, model, changed, clients):
            outcome.values = {name: wiring.sent(phase, name, value) for name, value in outcome.values.items()}
            outcome.state = _each(wiring.client_state, outcome.state)
            yield outcome

    fed._outcomes = outcomes
