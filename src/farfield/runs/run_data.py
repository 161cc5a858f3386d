"""A run's data: who trains on which rows, prepared by what those rows alone tell."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.protocol.leave_one_out import source_domains
from farfield.runs.plan import Job, Plan
from farfield.tasks.clients.partition import Clients, Partition, make_clients
from farfield.tasks.task import Domain, Fitted, Task


@dataclass(frozen=True)
class RunData:
    """The source domains, their clients, and the held-out domains, all prepared in the same way."""

    sources: tuple[Domain, ...]
    clients: Clients
    #: What the run is measured on, each domain by itself; none when every domain trains. Labels are as they were read.
    targets: tuple[Domain, ...]
    fitted: Fitted | None

    def outputs(self, given: Tensor) -> Tensor:
        """A model's outputs in the units of the target's labels."""
        return given if self.fitted is None else self.fitted.outputs(given)


def run_data(plan: Plan, task: Task, job: Job) -> RunData:
    """Deal the rows out, then fit the task's preparation on the sources' training rows and apply it to all."""
    held_out, inner = plan.domains_of(job.held_out), plan.domains_of(job.inner)
    sources = source_domains(task, (*held_out, *inner))
    pooled = plan.algorithm(job.algorithm).pooled
    clients = make_clients(
        sources,
        partition=Partition(kind="pooled") if pooled else Partition.parse(plan.partition),
        clients=None if pooled else plan.clients,
        validation=plan.validation,
        seed=job.seed,
        kind=task.kind,
    )
    # A trial measures source domains alone: it never gets the rows of a held-out domain.
    measured = inner if job.trial is not None else inner or held_out
    targets = tuple(task.domain(name) for name in measured)
    if task.preparation is None:
        return RunData(sources, clients, targets, None)
    fitted = task.preparation.fit(training_rows(sources, clients))
    return RunData(
        tuple(replace(d, x=fitted.apply(d.x), y=fitted.targets(d.y)) for d in sources),
        clients,
        tuple(replace(target, x=fitted.apply(target.x)) for target in targets),
        fitted,
    )


def training_rows(sources: tuple[Domain, ...], clients: Clients) -> list[tuple[Domain, Tensor]]:
    """The training rows of all clients, by domain and ascending, however they were dealt out."""
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for shard in clients:
        for name, part in shard.train:
            rows[name].append(part)
    return [(domain, torch.cat(rows[domain.name]).sort().values) for domain in sources if domain.name in rows]
