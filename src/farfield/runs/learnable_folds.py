"""What can be held out: domains without which there is something to learn, and what must be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from farfield.protocol.folds import inner_units
from farfield.protocol.leave_one_out import source_domains
from farfield.runs.settings import PlanError
from farfield.runs.source_schema import source_classes
from farfield.tasks.task import Task

if TYPE_CHECKING:  # a plan is checked while it is made
    from farfield.runs.plan import Plan

#: Domains or classes that a note names before it counts the others.
NAMED = 3
#: With more folds, the widths of their examples are not compared: each takes a look at all cells.
MOST_WIDTHS = 12


def with_learnable_folds(plan: Plan, task: Task, named: bool) -> Plan:
    """Leave out folds whose sources have one class only, with a note; `named` ones are refused, and so is a last one.

    Notes say which classes a held-out domain has alone, and where the sources of a run have other columns than all.
    """
    learnable, notes = [], []
    for fold in plan.fold_names:
        try:
            codes = source_classes(task, source_domains(task, plan.domains_of(fold)))
        except ValueError as error:
            if named or len(plan.fold_names) == 1 or plan.folds:
                raise
            notes.append(f"'{fold}' is not held out: {str(error).removesuffix('; hold out others with --held-out')}")
            continue
        learnable.append(fold)
        notes += _unseen_notes(task, plan.domains_of(fold), codes)
    if plan.fold_names and not learnable:
        raise PlanError(f"no domain of task '{task.name}' can be held out: without it, one class only is left")
    _check_inner_sources(plan, task, learnable)
    folded = (*_fold_notes(notes), *_width_notes(plan, task, learnable))
    held_out = plan.held_out if plan.folds else tuple(learnable)
    return plan.model_copy(update={"held_out": held_out, "notes": (*plan.notes, *folded)})


def _check_inner_sources(plan: Plan, task: Task, folds: Sequence[str]) -> None:
    """Refuse nested runs, of a selection rule or of a tuning, whose sources have one class only."""
    nested, by = "leave-one-domain-out", plan.tuning.by if plan.tuning is not None else ""
    held_out: list[str | None] = list(folds) if nested in (*plan.rules, by) else []
    if by == nested and not plan.fold_names and len(task.domains) > 1:  # a tuning in which every domain trains
        held_out = [None]
    for fold in held_out:
        for unit in inner_units(task, plan.folds, fold or ""):
            source_classes(task, source_domains(task, (*plan.domains_of(fold), *plan.domains_of(unit))))


def _unseen_notes(task: Task, held_out: Sequence[str], codes: Sequence[int]) -> list[str]:
    """Classes that only a held-out domain has."""
    notes = []
    for name in held_out if len(codes) < len(task.classes) else ():
        counts = torch.bincount(task.domain(name).y, minlength=len(task.classes)).tolist()
        found = {task.classes[code]: count for code, count in enumerate(counts) if count and code not in codes}
        if found:
            shown = ", ".join(f"'{each}' ({count} rows)" for each, count in list(found.items())[:NAMED])
            more = f" and {len(found) - NAMED} more classes" if len(found) > NAMED else ""
            notes.append(
                f"only '{name}' has {shown}{more}: held out, these rows are of an unseen class, which no model can "
                "name; they count as wrong and are left out of loss, AUROC and calibration"
            )
    return notes


def _fold_notes(notes: Sequence[str]) -> list[str]:
    """Notes of one kind, after the first few as a number."""
    more = len(notes) - NAMED
    return list(notes) if more <= 0 else [*notes[:NAMED], f"and so for {more} more domains, each in its run"]


def _width_notes(plan: Plan, task: Task, folds: Sequence[str]) -> list[str]:
    """Runs whose sources have other columns, levels or gaps than all domains together."""
    if task.preparation is None or len(folds) > MOST_WIDTHS:
        return []
    widths = {}
    for fold in folds:
        shape = task.preparation.of_sources(source_domains(task, plan.domains_of(fold))).shape
        if shape != task.preparation.shape:
            widths[fold] = shape[0]
    if not widths:
        return []
    shown = ", ".join(f"{width} without '{fold}'" for fold, width in list(widths.items())[:NAMED])
    more = f" and others without {len(widths) - NAMED} more" if len(widths) > NAMED else ""
    return [
        f"the sources of a run decide its columns, levels and gaps: an example has {task.preparation.shape[0]} numbers "
        f"with all domains, {shown}{more}"
    ]
