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
    """The source domains, their clients, and the held-out domain, all prepared in the same way."""

    sources: tuple[Domain, ...]
    clients: Clients
    #: None when every domain trains. Its labels are as they were read; class numbers are the run's, and those of unseen
    #: classes are beyond the model's.
    target: Domain | None
    fitted: Fitted | None
    #: What the sources decide: the shape of an example and the classes.
    schema: SourceSchema
    #: How many rows of the target are of each class that the sources lack.
    unseen: Mapping[str, int]

    def outputs(self, given: Tensor) -> Tensor:
        """A model's outputs in the units of the target's labels."""
        return given if self.fitted is None else self.fitted.outputs(given)

    @property
    def label_scale(self) -> float:
        """The units of a regression's labels per unit of what its model learns; 1 where these are the same."""
        return 1.0 if self.fitted is None else self.fitted.label_scale


def run_sources(task: Task, job: Job) -> tuple[Domain, ...]:
    """The domains that train in a run."""
    return source_domains(task, [domain for domain in (job.held_out, job.inner) if domain is not None])


def run_data(plan: Plan, task: Task, job: Job) -> RunData:
    """Deal the rows out, then decide and fit the task's preparation on the sources alone and apply it to all."""
    raw_target = next((task.domain(name) for name in (job.inner, job.held_out) if name is not None), None)
    raw_sources = run_sources(task, job)
    schema = source_schema(task, raw_sources)
    sources = tuple(schema.of_run(domain) for domain in raw_sources)
    pooled = plan.algorithm(job.algorithm).pooled
    clients = make_clients(
        sources,
        partition=Partition(kind="pooled") if pooled else Partition.parse(plan.partition),
        clients=None if pooled else plan.clients,
        validation=plan.validation,
        seed=job.seed,
        kind=task.kind,
    )
    target = None if raw_target is None else schema.of_run(raw_target)
    unseen = {} if raw_target is None else schema.unseen(raw_target, task.classes)
    if schema.preparation is None:
        return RunData(sources, clients, target, None, schema, unseen)
    fitted = schema.preparation.fit(training_rows(sources, clients))
    return RunData(
        tuple(replace(d, x=fitted.apply(d.x), y=fitted.targets(d.y)) for d in sources),
        clients,
        None if target is None else replace(target, x=fitted.apply(target.x)),
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
