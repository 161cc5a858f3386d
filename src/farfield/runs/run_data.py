"""A run's data: who trains on which rows, prepared by what those rows alone tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.protocol.leave_one_out import source_domains
from farfield.runs.plan import Job, Plan
from farfield.runs.source_schema import SourceSchema, source_schema
from farfield.tasks.clients.partition import Clients, Partition, make_clients
from farfield.tasks.task import Domain, Fitted, Task


@dataclass(frozen=True)
class RunData:
    """The source domains, their clients, and the held-out domains, all prepared in the same way."""

    sources: tuple[Domain, ...]
    clients: Clients
    #: What the run is measured on, each domain by itself; none when every domain trains. Labels are as they were read;
    #: class numbers are the run's, and those of unseen classes are beyond the model's.
    targets: tuple[Domain, ...]
    fitted: Fitted | None
    #: What the sources decide: the shape of an example and the classes.
    schema: SourceSchema
    #: By target: how many of its rows are of each class that the sources lack. A target without such rows is not here.
    unseen: Mapping[str, Mapping[str, int]]

    def outputs(self, given: Tensor) -> Tensor:
        """A model's outputs in the units of the target's labels."""
        return given if self.fitted is None else self.fitted.outputs(given)

    @property
    def label_scale(self) -> float:
        """The units of a regression's labels per unit of what its model learns; 1 where these are the same."""
        return 1.0 if self.fitted is None else self.fitted.label_scale


def run_sources(plan: Plan, task: Task, job: Job) -> tuple[Domain, ...]:
    """The domains that train in a run, as the task has them."""
    return source_domains(task, (*plan.domains_of(job.held_out), *plan.domains_of(job.inner)))


def run_data(plan: Plan, task: Task, job: Job, schema: SourceSchema | None = None) -> RunData:
    """Deal the rows out, then decide and fit the task's preparation on the sources alone and apply it to all.

    `schema` is what the sources decide, for whoever has asked already.
    """
    schema = schema or source_schema(task, run_sources(plan, task, job))
    sources = tuple(schema.of_run(domain) for domain in run_sources(plan, task, job))
    pooled = plan.algorithm(job.algorithm).pooled
    clients = make_clients(
        sources,
        partition=Partition(kind="pooled") if pooled else Partition.parse(plan.partition),
        clients=None if pooled else plan.clients,
        validation=plan.validation,
        seed=job.seed,
        kind=task.kind,
    )
    # A trial of the tuning measures source domains alone: it never gets the rows of a held-out domain.
    outer = () if job.trial is not None else plan.domains_of(job.held_out)
    held_out = [task.domain(name) for name in plan.domains_of(job.inner) or outer]
    targets = tuple(schema.of_run(domain) for domain in held_out)
    unseen = {domain.name: found for domain in held_out if (found := schema.unseen(domain, task.classes))}
    if schema.preparation is None:
        return RunData(sources, clients, targets, None, schema, unseen)
    fitted = schema.preparation.fit(training_rows(sources, clients))
    return RunData(
        tuple(replace(d, x=fitted.apply(d.x), y=fitted.targets(d.y)) for d in sources),
        clients,
        tuple(replace(target, x=fitted.apply(target.x)) for target in targets),
        fitted,
        schema,
        unseen,
    )


def training_rows(sources: tuple[Domain, ...], clients: Clients) -> list[tuple[Domain, Tensor]]:
    """The training rows of all clients, by domain and ascending, however they were dealt out."""
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for shard in clients:
        for name, part in shard.train:
            rows[name].append(part)
    return [(domain, torch.cat(rows[domain.name]).sort().values) for domain in sources if domain.name in rows]
