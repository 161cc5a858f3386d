"""What was read, in a few numbers: the rows and labels of each domain, so that a wrong column shows at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict

from farfield.tasks.task import Domain, Task, TaskKind


class DomainSummary(BaseModel):
    """One domain: its rows, and what its labels are like."""

    model_config = ConfigDict(frozen=True)

    name: str
    rows: int
    #: Rows of each class, in the order of the task's classes; empty for a regression.
    counts: tuple[int, ...] = ()
    #: Of a regression's label; the standard deviation is over the rows (1/n).
    mean: float = 0.0
    std: float = 0.0


class DataSummary(BaseModel):
    """A task's data as a table shows it; JSON both ways."""

    model_config = ConfigDict(frozen=True)

    task: str
    kind: TaskKind
    classes: tuple[str, ...]
    domains: tuple[DomainSummary, ...]
    #: The shape of an example as the model takes it: one number for the rows of a table.
    shape: tuple[int, ...]
    #: Columns of a table before preparation; None where there is nothing to prepare.
    columns: int | None = None
    #: Held out one by one; empty where every domain trains.
    held_out: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(domain.rows for domain in self.domains)


def summarise(task: Task, held_out: Sequence[str] = ()) -> DataSummary:
    """Count the rows and labels of a task's domains."""
    prepared = task.preparation is not None and task.domains[0].x.dtype != torch.uint8
    return DataSummary(
        task=task.name,
        kind=task.kind,
        classes=task.classes,
        domains=tuple(_domain(domain, task) for domain in task.domains),
        shape=tuple(task.domains[0].x.shape[1:]) if task.preparation is None else task.preparation.shape,
        columns=int(task.domains[0].x.shape[1]) if prepared else None,
        held_out=tuple(held_out),
    )


def together(domains: Sequence[DomainSummary], name: str) -> DomainSummary:
    """Several domains as if they were one."""
    rows = sum(domain.rows for domain in domains)
    mean = sum(domain.rows * domain.mean for domain in domains) / rows
    variance = sum(domain.rows * (domain.std**2 + (domain.mean - mean) ** 2) for domain in domains) / rows
    counts = tuple(sum(column) for column in zip(*(domain.counts for domain in domains), strict=True))
    return DomainSummary(name=name, rows=rows, counts=counts, mean=mean, std=variance**0.5)


def _domain(domain: Domain, task: Task) -> DomainSummary:
    if task.kind == "classification":
        counts = torch.bincount(domain.y.long(), minlength=len(task.classes))
        return DomainSummary(name=domain.name, rows=len(domain), counts=tuple(counts.tolist()))
    y = domain.y.double()
    return DomainSummary(
        name=domain.name, rows=len(domain), mean=float(y.mean()), std=float(y.std(correction=0)) if len(y) else 0.0
    )
