"""The engines that a bench or a training can be made on.

An engine is opened once for the runs of a plan, because starting one can take seconds. Opened, it makes a federation
for each run.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch

from farfield.algorithms import FedAvg
from farfield.federation.engine import Engine
from farfield.federation.engines.batched.engine import BatchedFederation, Serve
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import Model
from farfield.report.formats import listed
from farfield.reproducibility.devices import CPU, check_processes, processes_at_once
from farfield.runs.plan import Job, Plan
from farfield.runs.run_data import RunData
from farfield.runs.settings import PlanError
from farfield.tasks.task import Task


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start: its method, its model, its rows and its clients."""

    plan: Plan
    job: Job
    algorithm: FedAvg
    model: Model
    data: RunData
    population: Population


class RunEngine(Protocol):
    """An opened engine. `name` is for the record; of several `devices` runs take one each, in turn."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> tuple[torch.device, ...]: ...

    def federation(self, run: PreparedRun) -> Engine:
        """Make the federation of a run's clients; it is closed when the run ends."""


@dataclass(frozen=True)
class LocalEngine:
    """All clients on this machine, in this process or in so many workers. It needs no opening."""

    workers: int = 1
    name: str = "local"
    devices: tuple[torch.device, ...] = (CPU,)

    def federation(self, run: PreparedRun) -> Engine:
        return LocalFederation(
            run.algorithm,
            run.model,
            run.population,
            seed=run.job.seed,
            workers=min(self.workers, len(run.population)),
            quorum=run.plan.quorum,
            deadline=run.plan.deadline,
        )


@dataclass(frozen=True)
class BatchedEngine:
    """All clients on this machine, trained as stacks; those of many runs together where `serve` is shared.

    With `functional`, models that only `torch.func` can stack are stacked too, each run's clients by themselves.
    """

    serve: Serve | None = None
    devices: tuple[torch.device, ...] = (CPU,)
    functional: bool = False

    @property
    def name(self) -> str:
        return "batched-func" if self.functional else "batched"

    def federation(self, run: PreparedRun) -> Engine:
        return BatchedFederation(
            run.algorithm,
            run.model,
            run.population,
            seed=run.job.seed,
            quorum=run.plan.quorum,
            deadline=run.plan.deadline,
            serve=self.serve,
            functional=self.functional,
        )


@dataclass(frozen=True)
class EngineEntry:
    """An engine in the list of engines: known without importing what it needs."""

    name: str
    summary: str
    #: Packages that must be installed for it, what they are in words, and the extra of farfield that installs them.
    needs: tuple[str, ...] = ()
    needed: str = ""
    extra: str = ""
    #: Whether several runs may be made at the same time, each in its process.
    parallel: bool = True

    @property
    def available(self) -> bool:
        return all(find_spec(package) is not None for package in self.needs)


ENGINES = {
    entry.name: entry
    for entry in (
        EngineEntry(
            "auto", "the default: batched for small models of which several are trained at once, otherwise local"
        ),
        EngineEntry("local", "all clients on this machine, in one process or in N workers of one thread each"),
        EngineEntry(
            "batched", "all clients on this machine, those of all runs trained as one computation on stacked parameters"
        ),
        EngineEntry(
            "batched-func",
            "as batched, and by torch.func tiny convolutional networks, whose last bits are then not those of local",
        ),
        EngineEntry(
            "flower",
            "Flower's simulation: every exchange is messages between a server and nodes, which Ray's processes run",
            needs=("flwr", "ray"),
            needed="Flower's simulation",
            extra="sim",
            parallel=False,
        ),
    )
}


#: Engines that train clients as stacks.
STACKING = ("batched", "batched-func")


def engine_here(
    name: str, workers: int | None = None, devices: tuple[torch.device, ...] = (CPU,)
) -> LocalEngine | BatchedEngine:
    """Return an engine that needs no opening: one that trains stacks, or else the local one."""
    if name in STACKING:
        return BatchedEngine(devices=devices, functional=name == "batched-func")
    return LocalEngine(workers if workers is not None else 1, devices=devices)


def engine_named(name: str) -> EngineEntry:
    """Return the engine of that name, which is installed; raise a sentence otherwise."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {listed(list(ENGINES))}"
        raise PlanError(f"there is no engine '{name}'; {hint}")
    engine = ENGINES[name]
    if not engine.available:
        raise PlanError(
            f"the engine '{name}' needs {engine.needed}, which is not installed: pip install 'farfield[{engine.extra}]'"
        )
    return engine


def check_engine(
    name: str, parallel: int | None, workers: int | None = None, devices: tuple[torch.device, ...] = (CPU,)
) -> None:
    """Refuse an engine that is not here, or cannot be used so, before a folder is made."""
    engine = engine_named(name)
    if devices != (CPU,):
        if name == "flower":
            raise PlanError("on the engine 'flower' clients compute on the CPU; omit --device, or use --engine local")
        if workers is not None and workers > 1:
            raise PlanError(f"on a GPU the clients of a run take turns in one process; omit --workers {workers}")
        check_processes(devices, processes_at_once(devices, parallel) or 1, "--parallel")
    if name in STACKING and workers is not None and workers > 1:
        raise PlanError(
            f"on the engine '{name}' the clients of a run are trained together, not by workers; omit --workers "
            f"{workers} and give --parallel, the number of processes that share the runs"
        )
    if parallel is not None and parallel > 1 and not engine.parallel:
        raise PlanError(
            f"on the engine '{name}' one run is made after the other, its clients shared by --workers processes; "
            f"omit --parallel {parallel}"
        )


@contextmanager
def open_engine(
    name: str, plan: Plan, task: Task, workers: int | None, devices: tuple[torch.device, ...] = (CPU,)
) -> Iterator[RunEngine]:
    """Open an engine for the runs of a plan. `workers` are processes that share the clients of a run."""
    if engine_named(name).name in ("auto", "local", *STACKING):
        yield engine_here(name, workers, devices)
        return
    from farfield.runs.simulation.engine import open_simulation  # imports Flower and Ray

    with open_simulation(plan, task, workers if workers is not None else os.cpu_count() or 1) as engine:
        yield engine
