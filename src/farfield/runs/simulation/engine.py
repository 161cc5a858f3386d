"""A sweep on Flower's simulation: one simulation serves all its runs, because starting one takes seconds."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from farfield.federation.engine import NO_REPLY, Engine
from farfield.federation.engines.flower.engine import FlowerFederation, Node
from farfield.federation.engines.flower.ray_grid import PROCESS_ENDED, Simulation
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.engines.worker_pool import ATTEMPTS
from farfield.federation.execution import Outcome
from farfield.models import ModelState
from farfield.reproducibility.devices import CPU
from farfield.runs.engines import PreparedRun
from farfield.runs.own_methods import own_methods
from farfield.runs.plan import Plan
from farfield.runs.simulation.node import app
from farfield.runs.simulation.shared_rows import SharedRows
from farfield.tasks.task import Task

#: Clients beyond so many share nodes: Flower looks through all nodes for every message.
MOST_NODES = 100
#: Seconds that messages may spend on their way: a client's deadline is for its work.
GRACE_SECONDS = 5.0


@contextlib.contextmanager
def open_simulation(plan: Plan, task: Task, workers: int) -> Iterator[SimulationEngine]:
    """Start a simulation for the runs of a plan, with so many processes for the nodes."""
    methods = own_methods(plan)  # refused before anything is started
    nodes = min(plan.clients or len(task.domains), MOST_NODES)
    with Simulation(app, nodes, workers) as simulation, engine_on(simulation, methods) as engine:
        yield engine


@contextlib.contextmanager
def engine_on(simulation: Simulation, methods: Mapping[str, Any]) -> Iterator[SimulationEngine]:
    """Make an engine of a simulation that runs already. The runs' rows lie in a folder of its own until the end."""
    folder = Path(tempfile.mkdtemp(prefix="farfield-rows-"))
    try:
        yield SimulationEngine(simulation, SharedRows(folder), methods)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class SimulationEngine:
    """Flower's simulation as an engine. `methods` says where the nodes find methods that are not farfield's."""

    simulation: Simulation
    rows: SharedRows
    methods: Mapping[str, Any]
    name: str = "flower"
    devices: tuple[torch.device, ...] = (CPU,)

    def federation(self, run: PreparedRun) -> Engine:
        return _SimulatedFederation(run, self)


class _SimulatedFederation(FlowerFederation):
    """The clients of a run in a simulation: client n is any node, with the rows of client n."""

    def __init__(self, run: PreparedRun, engine: SimulationEngine) -> None:
        self._population = run.population
        self._simulation, self._rows, self._name = engine.simulation, engine.rows, uuid.uuid4().hex
        data = self._rows.put_run(self._name, run.data, run.plan.augment)
        label = run.job.algorithm
        assignment = Assignment(
            run=self._name,
            algorithm=run.plan.variant(label).method,
            settings=run.plan.settings_of(run.job),
            rounds=run.plan.rounds_of[label],
            model=run.model.spec,
            seed=run.job.seed,
            data={**data, "methods": engine.methods, "deadline": run.plan.deadline},
        )
        ids = self._simulation.nodes
        population = run.population
        nodes = [Node(ids[n % len(ids)], str(n), population.domain_of(n)) for n in range(len(population))]
        super().__init__(
            self._simulation,
            nodes,
            run.model.layout,
            assignment,
            quorum=run.plan.quorum,
            deadline=run.plan.deadline,
            travelling=True,
            at_once=self._simulation.workers,
            grace=GRACE_SECONDS,
        )

    def name_of(self, client: int) -> str:
        return self._population.name_of(client)

    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        """Run clients whose process has ended once more, from the same model and state: the bits stay the same."""
        waiting = clients
        for attempt in range(1, ATTEMPTS + 1):
            self._simulation.mend()
            started, again = time.monotonic(), []
            for outcome in super()._outcomes(phase, model, shared, waiting):
                if PROCESS_ENDED.search(outcome.detail):
                    self._simulation.damaged = True
                    # A node that is at work past its deadline ends its process: Flower would wait for it for ever.
                    if self._deadline is not None and time.monotonic() > started + self._deadline:
                        outcome.problem = NO_REPLY.format(self._deadline)
                    elif attempt < ATTEMPTS:
                        again.append(outcome.client)
                        self._note_restart(phase, outcome.client, "the process that ran it ended; it is run again")
                        continue
                    else:
                        outcome.problem = f"the process that ran it ended {ATTEMPTS} times in a row"
                yield outcome
            waiting = sorted(again)
            if not waiting:
                return

    def close(self) -> None:
        self._rows.drop_run(self._name)
