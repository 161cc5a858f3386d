"""The engines that a bench or a training can be made on, by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

from farfield.runs.plan import Plan
from farfield.runs.settings import PlanError
from farfield.runs.single_run import EngineFactory, local
from farfield.tasks.task import Task


@dataclass(frozen=True)
class BenchEngine:
    """An engine as a sweep sees it: opened once, then one federation after the other is made on it."""

    name: str
    summary: str
    #: What must be installed for it.
    needs: tuple[str, ...]
    extra: str
    #: Whether several runs may be made at the same time, each in its process.
    parallel: bool
    #: Processes that share the clients of a run, when nobody says how many.
    workers: Callable[[], int]
    open: Callable[[Plan, Task, int], AbstractContextManager[EngineFactory]]

    @property
    def available(self) -> bool:
        return all(find_spec(package) is not None for package in self.needs)


def _open_local(plan: Plan, task: Task, workers: int) -> AbstractContextManager[EngineFactory]:
    return nullcontext(local(workers))


def _open_flower(plan: Plan, task: Task, workers: int) -> AbstractContextManager[EngineFactory]:
    from farfield.runs.simulation.engine import simulated  # Flower and Ray are imported when they are asked for

    return simulated(plan, task, workers)


ENGINES = {
    engine.name: engine
    for engine in (
        BenchEngine(
            "local",
            "all clients on this machine, in one process or in N workers of one thread each",
            needs=(),
            extra="",
            parallel=True,
            workers=lambda: 1,
            open=_open_local,
        ),
        BenchEngine(
            "flower",
            "Flower's simulation: every exchange is messages between a server and nodes, which Ray's processes run",
            needs=("flwr", "ray"),
            extra="sim",
            parallel=False,
            workers=lambda: os.cpu_count() or 1,
            open=_open_flower,
        ),
    )
}


def engine_named(name: str) -> BenchEngine:
    """The engine of that name, which is installed; a sentence otherwise."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {' and '.join(ENGINES)}"
        raise PlanError(f"there is no engine '{name}'; {hint}")
    engine = ENGINES[name]
    if not engine.available:
        raise PlanError(
            f"the engine '{name}' needs Flower's simulation, which is not installed: "
            f"pip install 'farfield[{engine.extra}]'"
        )
    return engine


def check_engine(name: str, parallel: int | None) -> None:
    """Refuse an engine that is not here, or cannot be used so, before a folder is made."""
    engine = engine_named(name)
    if parallel is not None and parallel > 1 and not engine.parallel:
        raise PlanError(
            f"on the engine '{name}' one run is made after the other, its clients shared by --workers processes; "
            f"leave --parallel {parallel} away"
        )


@contextmanager
def open_engine(name: str, plan: Plan, task: Task, workers: int | None) -> Iterator[EngineFactory]:
    """An engine for the runs of a plan, until they are made."""
    engine = engine_named(name)
    with engine.open(plan, task, workers if workers is not None else engine.workers()) as factory:
        yield factory
