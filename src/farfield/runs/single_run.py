"""One run of a bench: a method on the source domains, measured on the held-out one, on an engine of choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from farfield.algorithms import FedAvg
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.protocol.measurement import HeldOut
from farfield.records import RunFolder
from farfield.records.bench_folder import PREPARATION
from farfield.records.checked_files import write_checked_json
from farfield.reproducibility.devices import device_text
from farfield.reproducibility.precision import check_precision
from farfield.runs.engines import LocalEngine, PreparedRun, RunEngine
from farfield.runs.growing import lengthen
from farfield.runs.plan import Job, Plan
from farfield.runs.rounds import Measure, OnBetter, Rounds, Schedule, Watch, open_run
from farfield.runs.run_data import RunData, run_data, run_sources
from farfield.runs.source_schema import SourceSchema, source_schema
from farfield.tasks.task import Task


def run_job(
    plan: Plan,
    task: Task,
    job: Job,
    folder: Path,
    *,
    engine: RunEngine = LocalEngine(),
    checkpoint_every: int = 10,
    watch: Watch = lambda _: None,
    on_better: OnBetter = lambda state, validation: None,
) -> dict[str, Any]:
    """Run a job, or what is left of it, and return its result. A finished one is not run again.

    `on_better` is called with the state of each round that the plan's `keeping_rule` prefers to all before it.
    """
    records = RunFolder(folder)
    with records.writing():
        schema = source_schema(task, run_sources(plan, task, job))
        config = plan.job_config(job, schema)
        lengthen(records, config)
        done = open_run(records, config)
        return done or _run_locked(plan, task, job, schema, records, engine, checkpoint_every, watch, on_better)


def _run_locked(
    plan: Plan,
    task: Task,
    job: Job,
    schema: SourceSchema,
    records: RunFolder,
    engine: RunEngine,
    checkpoint_every: int,
    watch: Watch,
    on_better: OnBetter,
) -> dict[str, Any]:
    data = run_data(plan, task, job, schema)
    if data.fitted is not None:
        write_checked_json(records.path / PREPARATION, data.fitted.to_json())
    algorithm = plan.algorithm_of(job)
    device = engine.devices[0]
    check_precision(plan.model.precision, device)
    population = Population(data.sources, data.clients, augment=plan.augment, device=device)
    spec = plan.spec_for(algorithm, data.schema)
    measures = _measures(data, task, spec, algorithm, device)
    model = build_model(spec, job.seed)
    with engine.federation(PreparedRun(plan, job, algorithm, model, data, population)) as fed:
        rounds = Rounds(
            job,
            schedule_of(plan, job, algorithm, checkpoint_every),
            records,
            algorithm,
            fed,
            {client: population.domain_of(client) for client in population.with_validation_rows()},
            engine=engine.name,
            device=device_text(device),
            measure=measures,
            facts={**plan.facts(job), **({"unseen": data.unseen} if data.unseen else {})},
            watch=watch,
            on_better=on_better,
        )
        return rounds.to_the_end(algorithm.start(model.state()))


def _measures(
    data: RunData, task: Task, spec: ModelSpec, algorithm: FedAvg, device: torch.device
) -> Measure | dict[str, Measure] | None:
    """Return how to measure on the held-out domain, or on each of several; None where every domain trains."""
    of: dict[str, Measure] = {}
    model = build_model(spec, seed=0) if data.targets else None
    for domain in data.targets:
        classes, unseen = data.schema.classes, data.unseen.get(domain.name)
        held_out = HeldOut(domain, task.kind, spec, data.outputs, model, classes=classes, unseen=unseen, device=device)
        of[domain.name] = lambda state, of=held_out: of.measure_with_site(algorithm.models(state))  # type: ignore[misc]
    return of if len(of) > 1 else next(iter(of.values()), None)


def schedule_of(plan: Plan, job: Job, algorithm: FedAvg, checkpoint_every: int) -> Schedule:
    """Return how often a run is evaluated and saved: as often in all, whether it has more rounds than others or not."""
    rounds = plan.rounds_of[job.algorithm]
    return Schedule(
        rounds=rounds,
        evaluate_every=plan.every(job.algorithm),
        checkpoint_every=max(1, checkpoint_every * rounds // plan.rounds),
        cohort=plan.cohort if algorithm.trains and not algorithm.pooled else None,
        kind=plan.kind,
        metric=plan.metric,
        rule=plan.keeping_rule,
    )
