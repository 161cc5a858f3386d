"""Checks of a plan against its data and its model, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farfield.models import build_model
from farfield.protocol.folds import inner_units
from farfield.protocol.leave_one_out import source_domains
from farfield.protocol.selection import LOOKS_AT_VALIDATION
from farfield.runs.data_checks import check_rows
from farfield.runs.settings import PlanError
from farfield.tasks.clients.partition import Clients, Partition, make_clients
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Domain, Task

if TYPE_CHECKING:  # a plan is checked while it is made
    from farfield.runs.plan import Plan

#: With fewer validation rows than this, over all sources, a bench says what that does to the choice of rounds.
FEW_VALIDATION_ROWS = 50


def validation_notes(plan: Plan, rows: int | None) -> tuple[str, ...]:
    """Rounds that few rows choose are chosen by chance."""
    if rows is None or not plan.held_out:  # a training has no other rule to compare with
        return ()
    if plan.rules[0] not in LOOKS_AT_VALIDATION or plan.kind != "classification" or not 0 < rows < FEW_VALIDATION_ROWS:
        return ()
    more = isinstance(plan.validation, float) and plan.validation < 0.3
    return (
        f"{plan.rules[0]} chooses rounds by {rows} rows in all, so partly by chance: compare with the rule "
        f"'last'{', or give more rows with --validation 0.3' if more else ''}",
    )


def check_models(plan: Plan) -> None:
    for label in plan.algorithms:
        build_model(plan.spec_for(plan.algorithm(label)), seed=0)


@dataclass(frozen=True)
class Counted:
    """What the checks against data have counted."""

    #: The numbers of clients that the runs have.
    clients: frozenset[int]
    #: Validation rows over all sources, in the run that has fewest; None where the rows are elsewhere.
    validation_rows: int | None = None


def check_against_rows(plan: Plan, task: Task) -> Counted:
    """Refuse what only rows show: rows that cannot be used, partitions and cohorts that cannot be made of them."""
    counts: set[int] = set()
    fewest = sum(len(domain) for domain in task.domains)
    for domain in task.domains:
        check_rows(domain, task, plan.model)
    by = plan.tuning.by if plan.tuning is not None else ""
    nested = "leave-one-domain-out" in (*plan.rules, by)
    if nested and plan.held_out and len(task.domains) < 3:
        raise PlanError("the rule 'leave-one-domain-out' holds out two domains at once and needs at least three")
    if nested and any(len(inner_units(task, plan.folds, fold)) < 2 for fold in plan.folds):
        raise PlanError("the rule 'leave-one-domain-out' holds out two folds at once and needs at least three")
    for held_out, (made, validating) in _clients_by_fold(plan, task).items():
        fewest = min(fewest, validating)
        counts.add(made)
        if nested and held_out is not None and plan.clients is None:
            inner = made - max(len(plan.domains_of(unit)) for unit in inner_units(task, plan.folds, held_out))
            counts.add(inner)
            if plan.cohort is not None and plan.cohort > inner:
                raise PlanError(
                    f"the rule 'leave-one-domain-out' trains inner runs with {inner} clients, too few for a cohort of "
                    f"{plan.cohort}"
                )
        _check_cohort(plan, made)
    return Counted(frozenset(counts), fewest)


def _clients_by_fold(plan: Plan, task: Task) -> dict[str | None, tuple[int, int]]:
    """Return the number of clients and of validation rows of a run, by what it holds out."""

    def made(domains: Sequence[Domain]) -> Clients:
        return make_clients(
            domains,
            partition=Partition.parse(plan.partition),
            clients=plan.clients,
            validation=plan.validation,
            seed=0,
            kind=task.kind,
        )

    sources = {fold: source_domains(task, plan.domains_of(fold)) for fold in plan.fold_names or [None]}
    if plan.partition == "domain" and plan.clients is None and len(sources) > 1:
        # A client is a domain and splits its rows by itself: with 170 folds, once is enough for all of them.
        rows = dict(zip(task.domain_names, made(task.domains).validation_sizes.tolist(), strict=True))
        return {fold: (len(of), sum(int(rows[domain.name]) for domain in of)) for fold, of in sources.items()}
    return {
        fold: (len(clients), int(clients.validation_sizes.sum()))
        for fold, clients in ((fold, made(of)) for fold, of in sources.items())
    }


def check_outline(plan: Plan, task: TaskOutline) -> Counted:
    """Refuse what names and sizes show already."""
    if task.shape != plan.model.input_shape:
        raise PlanError(
            f"task '{task.name}' has examples of shape {task.shape}, the model takes {plan.model.input_shape}"
        )
    if len(task.classes) > max(2, plan.model.outputs):
        raise PlanError(f"task '{task.name}' has {len(task.classes)} classes, and the model has {plan.model.outputs}")
    for domain, rows in task.rows.items():
        if rows < 2:
            raise PlanError(
                f"domain '{domain}': {rows} row cannot be split into training and validation rows; two are needed"
            )
    clients = plan.clients if plan.clients is not None else len(task.rows) - bool(plan.held_out)
    _check_cohort(plan, clients)
    return Counted(frozenset({clients}))


def _check_cohort(plan: Plan, clients: int) -> None:
    """Refuse a cohort that cannot be drawn from so many clients."""
    if plan.cohort is not None and not 1 <= plan.cohort <= clients:
        raise PlanError(f"a cohort of {plan.cohort} cannot be drawn from {clients} clients; use 1 to {clients}")
