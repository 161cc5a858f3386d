"""Which engine the runs of a plan are made on where none is asked for (`--engine auto`).

The rule was measured (docs/engines.md): stacked training pays where a step is mostly overhead, that is, for small
models of which there are several to train at once. It never changes a result: both engines give the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from farfield.federation.engines.batched.requests import why_alone
from farfield.models import build_model, why_not_stacked
from farfield.reproducibility.devices import CPU
from farfield.runs.plan import Job, Plan
from farfield.tasks.task import Task

#: The engine's name where the choice is left to the rule.
AUTO = "auto"
#: With more parameters a step is arithmetic, and a stack gains nothing.
MOST_PARAMETERS = 250_000
#: With fewer clients trained at once, a stack costs more than it saves.
LEAST_CLIENTS = 5


@dataclass(frozen=True)
class EngineChoice:
    """An engine, the workers that share the clients of one run (None for the engine's own default), and the reason."""

    engine: str
    workers: int | None = None
    why: str = ""


def choose_engine(
    asked: str,
    plan: Plan,
    task: Task,
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    parallel: int | None = None,
    devices: tuple[torch.device, ...] = (CPU,),
    on: str | None = None,
) -> EngineChoice:
    """Return the engine that was asked for, or the one that these runs are faster on."""
    if asked != AUTO:
        return EngineChoice(asked, workers, "it was asked for")
    reason = _why_local(plan, task, jobs, workers, parallel, devices, on)
    if reason is None:
        return EngineChoice("batched", None, "the model is small, and several clients are trained at once")
    alone = len(jobs) == 1 and on is None and devices == (CPU,) and parallel is None
    if workers is None and alone and _worth_workers(plan, task):
        return EngineChoice("local", min(os.cpu_count() or 1, clients_of(plan, task)), f"{reason}; cores share clients")
    return EngineChoice("local", workers, reason)


def _why_local(
    plan: Plan,
    task: Task,
    jobs: Sequence[Job],
    workers: int | None,
    parallel: int | None,
    devices: tuple[torch.device, ...],
    on: str | None,
) -> str | None:
    """Return why the runs are made on `local`, in one phrase; None if a stack is faster."""
    if workers is not None and workers > 1:
        return "workers share the clients of each run"
    if on is not None:
        return "on a cluster every run is made by itself"
    if devices != (CPU,):
        return "stacks were not measured on a GPU"
    if plan.deadline is not None:
        return "a deadline is for single clients"
    methods = {label: plan.algorithm(label) for label in plan.algorithms}
    for spec in {plan.spec_for(method) for method in methods.values()}:
        reason = why_not_stacked(spec)
        if reason is not None:
            return reason
        parameters = build_model(spec, 0).layout.parameters
        if parameters > MOST_PARAMETERS:
            return f"the model has {parameters:,} parameters, and a stack gains with up to {MOST_PARAMETERS:,}"
    stacked = {label for label, method in methods.items() if _is_stacked(plan, label)}
    processes = parallel or os.cpu_count() or 1
    open_together = -(-sum(job.algorithm in stacked for job in jobs) // processes)
    if clients_of(plan, task) * open_together < LEAST_CLIENTS:
        return f"fewer than {LEAST_CLIENTS} clients are trained at once"
    return None


def _is_stacked(plan: Plan, label: str) -> bool:
    method = plan.algorithm(label)
    model = build_model(plan.spec_for(method), 0)
    return all(why_alone(method, phase, model) is None for phase in method.phases)


def _worth_workers(plan: Plan, task: Task) -> bool:
    """Return whether a client's part of a round is long against handing it to a worker."""
    if clients_of(plan, task) < 2:
        return False
    spec = plan.spec_for(plan.algorithm(plan.algorithms[0]))
    return why_not_stacked(spec) is not None or build_model(spec, 0).layout.parameters > MOST_PARAMETERS


def clients_of(plan: Plan, task: Task) -> int:
    """Return how many clients a round of a run asks, about: with one domain left out, it is one fewer."""
    return plan.cohort or plan.clients or max(1, len(task.domains) - (1 if plan.held_out else 0))
