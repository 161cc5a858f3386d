"""Runs in which one client of the toy problem is hostile: it changes its replies on their way to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.algorithms import FedAvg, build
from farfield.federation.engine import Engine
from farfield.federation.execution import Outcome
from farfield.federation.reply_checks import fault
from farfield.records import RunFolder
from farfield.runs.plan import Job, make_plan
from farfield.runs.rounds import Rounds, open_run
from farfield.runs.single_run import schedule_of
from farfield.tasks.task import Domain, Task
from tests.toy import SPEC, domain, federation, initial
from tests.toy import task as toy_task

SETTINGS = {"lr": 0.1, "batch_size": 8}
#: Which client is hostile.
HOSTILE = 3
#: Called with the phase, the round and the values of an honest reply; returns the values to send instead.
Change = Callable[[str, int, dict[str, Any]], dict[str, Any]]


def honest(phase: str, round: int, values: dict[str, Any]) -> dict[str, Any]:
    return values


def four_domains() -> tuple[Domain, ...]:
    return tuple(domain(name, shift=0.2 * i) for i, name in enumerate("abcd"))


def task() -> Task:
    base = toy_task(3)
    return Task("toy", base.kind, four_domains(), base.classes, base.model, base.defaults)


def put_between(fed: Engine, change: Change, hostile: int = HOSTILE) -> None:
    """Change a client's replies behind its own checks, and check them as a server does that trusts nobody."""
    reach = fed._outcomes

    def outcomes(phase: str, *rest: Any) -> Iterator[Outcome]:
        for outcome in reach(phase, *rest):
            if outcome.client == hostile and outcome.problem is None:
                outcome.values = change(phase, fed._round, dict(outcome.values))
                outcome.problem = fault(outcome.values, fed._sends, fed.layout)
            yield outcome

    fed._outcomes = outcomes  # type: ignore[method-assign]


@dataclass
class Attacked:
    """What is left of a run: its result, its records and its last state."""

    result: dict[str, Any]
    records: RunFolder
    rounds: Rounds

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.records.events() if event["kind"] == kind]


def attacked(
    folder: Path,
    change: Change,
    name: str = "fedavg",
    *,
    rounds: int = 4,
    make_federation: Callable[[FedAvg], Engine] | None = None,
    **settings: Any,
) -> Attacked:
    """A run of four clients, the last one hostile, with a checkpoint in every round."""
    plan = make_plan(
        task(), algorithms=[name], all_train=True, seeds=1, rounds=rounds, settings={**SETTINGS, **settings}
    )
    algorithm, job = build(name, {**SETTINGS, **settings}, rounds), Job(name, None, 0)
    records = RunFolder(folder)
    open_run(records, plan.job_config(job))
    made = (
        make_federation(algorithm)
        if make_federation
        else federation(algorithm, four_domains(), algorithm.model_for(SPEC))
    )
    with made as fed:
        if make_federation is None:
            put_between(fed, change)
        schedule = schedule_of(plan, job, algorithm, 1)
        names = {number: each.name for number, each in enumerate(four_domains())}
        run = Rounds(job, schedule, records, algorithm, fed, names, engine="local")
        result = run.to_the_end(algorithm.start(initial(algorithm.model_for(SPEC)).state()))
    return Attacked(result, records, run)
