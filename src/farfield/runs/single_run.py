"""One run of a bench: a method on the source domains, measured on the held-out one, on an engine of choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.algorithms import FedAvg
from farfield.runs.plan import Job, Plan
from farfield.runs.run_data import RunData, run_data
from farfield.runs.rounds import Schedule, OnBetter, Rounds, Watch, open_run
from farfield.federation.engine import Engine
from farfield.federation.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import Model, build_model
from farfield.protocol.measurement import HeldOut
from farfield.records import RunFolder
from farfield.records.atomic import write_json
from farfield.tasks.task import Task

#: In a run's folder: the numbers by which its rows were prepared.
PREPARATION = "preparation.json"


@dataclass(frozen=True)
class Assembly:
    """What an engine is made for: a run with its method, its model, its rows and its clients."""

    plan: Plan
    job: Job
    algorithm: FedAvg
    model: Model
    data: RunData
    population: Population


@dataclass(frozen=True)
class EngineFactory:
    """An engine by name, and how one is made for a run."""

    name: str
    make: Callable[[Assembly], Engine]


def local(workers: int = 1) -> EngineFactory:
    """The engine that has all clients on this machine, in this process or in so many workers."""

    def make(run: Assembly) -> Engine:
        return LocalFederation(
            run.algorithm,
            run.model,
            run.population,
            seed=run.job.seed,
            workers=min(workers, len(run.population)),
            quorum=run.plan.quorum,
            deadline=run.plan.deadline,
        )

    return EngineFactory("local", make)


LOCAL = local()


def run_job(
    plan: Plan,
    task: Task,
    job: Job,
    folder: Path,
    *,
    engine: EngineFactory = LOCAL,
    checkpoint_every: int = 10,
    watch: Watch = lambda _: None,
    on_better: OnBetter = lambda state, validation: None,
) -> dict[str, Any]:
    """Run a job, or what is left of it, and return its result. A finished one is not run again.

    `on_better` is called with the state whenever source validation is better than ever before in this run.
    """
    records = RunFolder(folder)
    with records.writing():
        done = open_run(records, plan.job_config(job))
        return done or _run_locked(plan, task, job, records, engine, checkpoint_every, watch, on_better)


def _run_locked(
    plan: Plan,
    task: Task,
    job: Job,
    records: RunFolder,
    engine: EngineFactory,
    checkpoint_every: int,
    watch: Watch,
    on_better: OnBetter,
) -> dict[str, Any]:
    data = run_data(plan, task, job)
    if data.fitted is not None:
        write_json(records.path / PREPARATION, data.fitted.to_json())
    algorithm = plan.algorithm(job.algorithm)
    population = Population(data.sources, data.clients, augment=plan.augment)
    spec = plan.spec_for(algorithm)
    target = HeldOut(data.target, task.kind, spec, data.outputs) if data.target is not None else None
    model = build_model(spec, job.seed)
    with engine.make(Assembly(plan, job, algorithm, model, data, population)) as fed:
        rounds = Rounds(
            job,
            course(plan, job, algorithm, checkpoint_every),
            records,
            algorithm,
            fed,
            {client: population.domain_of(client) for client in population.with_validation_rows()},
            engine=engine.name,
            measure=None if target is None else lambda state: target.measure(algorithm.models(state)),
            facts=plan.facts(job),
            watch=watch,
            on_better=on_better,
        )
        return rounds.to_the_end(algorithm.start(model.state()))


def course(plan: Plan, job: Job, algorithm: FedAvg, checkpoint_every: int) -> Schedule:
    """How often things are done in a run: of a method with more rounds than the others, so much more seldom."""
    rounds = plan.rounds_of[job.algorithm]
    return Schedule(
        rounds=rounds,
        evaluate_every=plan.every(job.algorithm),
        checkpoint_every=max(1, checkpoint_every * rounds // plan.rounds),
        cohort=None if algorithm.pooled else plan.cohort,
        kind=plan.kind,
    )
