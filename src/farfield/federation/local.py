"""The local engine: all clients on this machine, in one process or in N workers of one thread each.

The result is the same to the bit for any number of workers: randomness is derived from (seed, round, client, phase,
purpose), replies are put in client order, and every phase runs on one thread.
"""

from __future__ import annotations

import math
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.federation.checks import STATE_DTYPES, nbytes
from farfield.federation.execution import Outcome, run_phase
from farfield.federation.federation import Event, FederationError, QuorumMissed, Replies, Reply, Traffic
from farfield.federation.phase import Named, declared_sends
from farfield.federation.population import Population
from farfield.federation.workers import WorkerPool
from farfield.models import Layout, Model, ModelState
from farfield.models.randomness import generator


class LocalFederation:
    """The clients of a population, reached in this process or through worker processes.

    with LocalFederation(algorithm, model, population, seed=0, workers=2) as fed:
        fed.begin(round=1, cohort=[0, 1, 2])
        state = algorithm.round(fed, state)
    """

    def __init__(
        self,
        algorithm: Any,
        model: Model,
        population: Population,
        *,
        seed: int,
        workers: int = 1,
        quorum: float = 0.5,
        deadline: float | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if not 0 < quorum <= 1:
            raise ValueError(f"quorum is a share of the cohort, over 0 and at most 1, not {quorum}")
        if deadline is not None and deadline <= 0:
            raise ValueError(f"deadline is a number of seconds over 0, not {deadline}")
        self._algorithm, self._model, self._population, self._seed = algorithm, model, population, seed
        self._quorum, self._deadline = quorum, deadline
        self._round = 0
        self._cohort: tuple[int, ...] = ()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = WorkerPool(workers, algorithm, model, population, seed) if workers > 1 else None
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._staged: dict[int, dict[str, Tensor]] = {}
        self.traffic = Traffic()
        self.events: list[Event] = []

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        torch.set_num_threads(self._threads)

    @property
    def clients(self) -> int:
        return len(self._population)

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def states(self) -> dict[int, dict[str, Tensor]]:
        """What stays at each client between rounds. Only clients that have taken part have an entry."""
        return {number: state for number, state in (self._kept | self._staged).items() if state}

    @states.setter
    def states(self, states: dict[int, dict[str, Tensor]]) -> None:
        self._kept, self._staged = dict(states), {}

    def discard(self) -> None:
        """This round does not count: what clients wanted to keep of it is forgotten, as the server forgets it."""
        self._staged = {}

    def begin(self, round: int, cohort: Sequence[int]) -> None:
        """Say which round it is and who takes part in it. The round before counts, unless it was discarded."""
        self._kept |= self._staged
        self._staged = {}
        self._round = round
        self._cohort = tuple(sorted(cohort))

    def generator(self, purpose: str) -> torch.Generator:
        return generator(self._seed, self._round, "server", purpose)

    def map(self, phase: Callable[..., Named], model: ModelState, **shared: Tensor | float | int) -> Replies:
        replies, problems = self._run(phase, model, shared, self._cohort)
        # The product of two decimals can lie a hair above the whole number that it stands for.
        needed = max(1, math.ceil(self._quorum * len(self._cohort) - 1e-9))
        if len(replies) < needed:
            message = f"{len(replies)} of {len(self._cohort)} clients replied, and the quorum is {needed}"
            raise QuorumMissed(f"{message} (phase '{phase.__name__}', first problem: {problems[0]})")
        return replies

    def map_over(self, clients: Sequence[int], phase: Callable[..., Named], model: ModelState) -> Replies:
        """Run a phase outside the round's cohort, on the clients named: how validation is measured."""
        replies, problems = self._run(phase, model, {}, sorted(clients))
        if not replies:
            raise FederationError(f"no client replied in phase '{phase.__name__}': {problems[0]}")
        return replies

    def _run(
        self, phase: Callable[..., Named], model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> tuple[Replies, list[str]]:
        name = phase.__name__
        declared_sends(phase)
        if not clients:
            raise FederationError(f"there is no client to run phase '{name}' on; begin the round with a cohort")
        for key, value in shared.items():
            if not isinstance(value, Tensor | int | float):
                raise FederationError(f"'{key}' is a {type(value).__name__}; only tensors and numbers can be shared")
            if isinstance(value, Tensor) and value.dtype not in STATE_DTYPES:
                raise FederationError(f"the shared tensor '{key}' has dtype {value.dtype}, which cannot be sent")
        started = time.perf_counter()
        accepted: list[tuple[int, Reply]] = []
        problems: list[str] = []
        cost = Traffic(bytes_down={name: (model.nbytes + nbytes(shared)) * len(clients)}, bytes_up={name: 0})
        for outcome in self._outcomes(name, model, shared, clients):
            cost.local_steps += outcome.steps
            cost.examples += outcome.examples
            cost.client_seconds += outcome.seconds
            cost.bytes_up[name] += nbytes(outcome.values)
            late = self._deadline is not None and outcome.seconds > self._deadline
            if outcome.problem is None and late:
                outcome.problem = f"no reply within the deadline of {self._deadline:g} s"
            if outcome.problem is None:
                accepted.append(
                    (outcome.client, Reply(outcome.client, outcome.domain, outcome.samples, outcome.values))
                )
                self._staged[outcome.client] = outcome.state
            else:
                problems.append(f"client {outcome.client} ({outcome.domain}): {outcome.problem}")
                self.events.append(
                    Event(
                        "reply-dropped",
                        self._round,
                        outcome.problem,
                        client=outcome.client,
                        phase=name,
                        detail=outcome.detail or None,
                    )
                )
        cost.waiting_seconds = time.perf_counter() - started
        self.traffic.add(cost)
        ordered = tuple(reply for _, reply in sorted(accepted, key=lambda pair: pair[0]))
        return Replies(ordered, registered=self.clients), problems

    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        if self._pool is not None:
            states = ChainMap(self._staged, self._kept)
            yield from self._pool.run(phase, self._round, model, shared, clients, states, self._deadline)
            return
        with torch.random.fork_rng(devices=[]):
            for number in clients:
                # A copy, as over a wire: a phase that fails half-way must not leave half a state behind.
                kept = self._staged.get(number, self._kept.get(number, {}))
                state = {name: value.clone() for name, value in kept.items()}
                client = self._population.client(number, seed=self._seed, round=self._round, phase=phase, state=state)
                yield run_phase(self._algorithm, phase, self._model, model, client, shared)
