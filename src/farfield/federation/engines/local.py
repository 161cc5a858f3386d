"""The local engine: all clients on this machine, in one process or in N workers of one thread each.

The result is the same to the bit for any number of workers: randomness is derived from (seed, round, client, phase,
purpose), replies are put in client order, and every phase runs on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from farfield.federation.engine import Engine
from farfield.federation.engines.worker_pool import WorkerPool
from farfield.federation.execution import Outcome, run_phase
from farfield.federation.population import Population
from farfield.models import Layout, Model, ModelState
from farfield.reproducibility.randomness import generators_kept


class LocalFederation(Engine):
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
        super().__init__(seed=seed, quorum=quorum, deadline=deadline)
        self._algorithm, self._model, self._population = algorithm, model, population
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = WorkerPool(workers, algorithm, model, population, seed) if workers > 1 else None

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

    def name_of(self, client: int) -> str:
        return self._population.name_of(client)

    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        if self._pool is not None:
            states = {number: self._states.of(number).current for number in clients}
            run_again = partial(self._note_restart, phase)
            yield from self._pool.run(phase, self._round, model, shared, clients, states, self._deadline, run_again)
            return
        with generators_kept(self._population.device):
            for number in clients:
                state = self._states.of(number).copy()
                client = self._population.client(number, seed=self._seed, round=self._round, phase=phase, state=state)
                yield run_phase(self._algorithm, phase, self._model, model, client, shared)
