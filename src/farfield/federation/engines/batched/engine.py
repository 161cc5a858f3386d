"""The batched engine: all clients on this machine, a cohort trained as one computation.

The result is the same to the bit as that of the local engine, whatever else is served with it: see `math.stacks`. With
`functional`, models that this is not possible for are stacked all the same, and differ from it in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from farfield.federation.client import Client
from farfield.federation.engine import Engine
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import Request, serve
from farfield.federation.execution import Outcome
from farfield.federation.population import Population
from farfield.models import Layout, Model, ModelState

#: How a federation has a request served: at once, or together with those of other runs.
Serve = Callable[[Request], Sequence[Outcome]]


def alone() -> Serve:
    """Return what serves the requests of one run."""
    pool = RowPool()
    return lambda request: serve([request], pool)[0]


class BatchedFederation(Engine):
    """The clients of a population, trained as stacks.

    with BatchedFederation(algorithm, model, population, seed=0) as fed:
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
        quorum: float = 0.5,
        deadline: float | None = None,
        serve: Serve | None = None,
        functional: bool = False,
    ) -> None:
        super().__init__(seed=seed, quorum=quorum, deadline=deadline)
        self._algorithm, self._model, self._population = algorithm, model, population
        self._serve, self._functional = serve or alone(), functional

    def close(self) -> None:
        pass

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
        make = partial(self._client, phase)
        yield from self._serve(
            Request(
                self._algorithm,
                phase,
                self._model,
                model,
                shared,
                clients,
                make,
                device=self._population.device,
                functional=self._functional,
            )
        )

    def _client(self, phase: str, number: int) -> Client:
        state = self._states.of(number).copy()
        return self._population.client(number, seed=self._seed, round=self._round, phase=phase, state=state)
