"""A FedAvg round on Farfield's engines and in the peers, against a bare PyTorch loop over the same mini-batches.

The engines and the bare loop take turns in this process; each peer takes turns with a bare loop of its own process.
All of them train on the same rows in the same order, so that the learned models can be compared: those of the engines
must have the same bits, those of the peers must agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.interleaved import Contender, interleaved
from benchmarks.speed import peer_processes
from benchmarks.speed.case import Check, Figure, Options, Outcome, Skipped
from benchmarks.speed.peers.workload import Workload, bare_loop
from farfield.algorithms import build
from farfield.federation.engine import Engine
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

WARM_UP = 2
BARE, BARE_TWO = "bare loop", "bare loop, two threads"
LOCAL, WORKERS, BATCHED = "local", "local, two workers", "batched"
#: How far apart models may be that were averaged in another order.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Rounds:
    """What a round trains, and which engines make it; the goals are by engine, against the bare loop on one thread."""

    network: str
    spec: ModelSpec
    x: Tensor
    y: Tensor
    batch: int
    lr: float
    engines: tuple[str, ...]
    goals: Mapping[str, float]


def measure(rounds: Rounds, options: Options, turns: int, peer_turns: int) -> Outcome:
    """Measure the engines and the peers on the rounds of a case."""
    turns, peer_turns = options.turns(turns), options.turns(peer_turns)
    population = population_of(rounds)
    workload = workload_of(rounds, population, WARM_UP + max(turns, peer_turns))
    figures, checks, notes, seconds = [], [], [], {}
    with ExitStack() as stack:
        threads = torch.get_num_threads()
        stack.callback(torch.set_num_threads, threads)
        # Workers are forked before a second thread has ever run in this process.
        engines = {name: stack.enter_context(engine(name, rounds, population)) for name in rounds.engines}
        torch.set_num_threads(1)
        bare = bare_turns(workload, 1)
        timings = interleaved({BARE: bare, **{name: e.turn for name, e in engines.items()}}, turns, WARM_UP)
        models = {name: e.model for name, e in engines.items()}
        # Apart from the engines, and after them: idle threads of a loop on two cores are not idle at once.
        on_two = interleaved({BARE: bare, BARE_TWO: bare_turns(workload, 2)}, peer_turns, WARM_UP)
    for name in rounds.engines:
        figures.append(Figure.of(f"{name} / {BARE}", timings.ratio(name, BARE), rounds.goals.get(name)))
    figures.append(Figure.of(f"{BARE_TWO} / {BARE}", on_two.ratio(BARE_TWO, BARE)))
    seconds |= {**timings.medians(), BARE_TWO: on_two.median(BARE_TWO)}
    first = models[rounds.engines[0]]
    same = all(torch.equal(first, model) for model in models.values())
    checks.append(Check(f"{', '.join(rounds.engines)}: the same bits after {WARM_UP + turns} rounds", same))
    ours = _model_after(rounds, WARM_UP + peer_turns)
    for name, peer in (("pfl", peer_processes.pfl), ("Flower's simulation", peer_processes.flower)):
        try:
            reported = peer(workload, WARM_UP + peer_turns)
        except Skipped as why:
            notes.append(f"{name} was not measured: {why}")
            continue
        except Exception as error:  # a peer that fails must not cost our own figures
            checks.append(Check(f"{name} failed: {error}", False))
            continue
        figures.append(Figure.of(f"{reported.version} / {BARE}", reported.timings.ratio("rounds", BARE)))
        seconds[reported.version] = reported.timings.median("rounds")
        apart = float((reported.model - ours).abs().max())
        checks.append(
            Check(f"{name}: the same model up to {apart:.1g} after {WARM_UP + peer_turns} rounds", apart < ROUNDING)
        )
    return Outcome(tuple(figures), tuple(checks), seconds, tuple(notes))


def population_of(rounds: Rounds) -> Population:
    """One domain per client, all of whose rows train."""
    none = torch.empty(0, dtype=torch.int64)
    domains = [
        Domain(f"client-{number:03d}", x, y, validation=none)
        for number, (x, y) in enumerate(zip(rounds.x, rounds.y, strict=True))
    ]
    clients = make_clients(
        domains, partition=Partition(kind="domain"), validation="official", seed=0, kind="classification"
    )
    return Population(domains, clients)


def workload_of(rounds: Rounds, population: Population, count: int) -> Workload:
    """The same for the others: rows in the order in which Farfield's clients draw them."""
    orders = torch.stack(
        [
            torch.stack([_order(population, number, round) for number in range(len(population))])
            for round in range(1, count + 1)
        ]
    )
    initial = build_model(rounds.spec, seed=0).state().parameters.clone()
    workload = Workload(rounds.network, rounds.x, rounds.y, orders, initial, rounds.batch, rounds.lr)
    with torch.no_grad():
        same = torch.equal(workload.model()(rounds.x[0]), build_model(rounds.spec, seed=0)(rounds.x[0]))
    if not same:
        raise RuntimeError(f"the network '{rounds.network}' of the peers is not the model that Farfield trains")
    return workload


def _order(population: Population, number: int, round: int) -> Tensor:
    client = population.client(number, seed=0, round=round, phase="train", state={})
    return torch.randperm(client.samples, generator=client.generator("batches"))


def bare_turns(workload: Workload, threads: int) -> Contender:
    model = workload.model()

    def turn(number: int) -> Callable[[], Any]:
        def timed() -> None:
            torch.set_num_threads(threads)
            bare_loop(model, workload, number + 1)
            torch.set_num_threads(1)

        return timed

    return turn


class OnEngine:
    """FedAvg on one engine, a round per turn."""

    def __init__(self, federation: Engine, rounds: Rounds) -> None:
        self._federation = federation
        self._algorithm = _fedavg(rounds)
        self._state = self._algorithm.start(build_model(rounds.spec, seed=0).state())

    def turn(self, number: int) -> Callable[[], Any]:
        def timed() -> None:
            self._federation.begin(number + 1, range(self._federation.clients))
            self._state = self._algorithm.round(self._federation, self._state)

        return timed

    @property
    def model(self) -> Tensor:
        return self._state.model.parameters.clone()


def _fedavg(rounds: Rounds) -> Any:
    return build("fedavg", {"lr": rounds.lr, "batch_size": rounds.batch, "local_epochs": 1})


@contextmanager
def engine(name: str, rounds: Rounds, population: Population) -> Iterator[OnEngine]:
    model, algorithm = build_model(rounds.spec, seed=0), _fedavg(rounds)
    if name == BATCHED:
        federation: Engine = BatchedFederation(algorithm, model, population, seed=0)
    else:
        workers = 2 if name == WORKERS else 1
        federation = LocalFederation(algorithm, model, population, seed=0, workers=workers)
    with federation:
        yield OnEngine(federation, rounds)


def _model_after(rounds: Rounds, count: int) -> Tensor:
    """The model after so many rounds on the first engine."""
    with engine(rounds.engines[0], rounds, population_of(rounds)) as ours:
        for number in range(count):
            ours.turn(number)()
        return ours.model
