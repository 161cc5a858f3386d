"""All trials of a plan: every method and held-out domain has a study of its own, with as many trials.

A held-out domain's study trains on its sources alone. One study for all held-out domains would have every domain among
its sources at some point, and would so choose by the very domain that is held out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farfield.protocol.folds import inner_units
from farfield.records import RunFolder
from farfield.records.atomic import append_row, read_rows
from farfield.records.shapes import is_trial
from farfield.records.tuning_trials import TRIALS
from farfield.runs.engines import LocalEngine, RunEngine
from farfield.runs.job import Job, study_folder
from farfield.runs.places import Place, ThisMachine
from farfield.runs.plan import Plan
from farfield.runs.processes import Observer, Silent
from farfield.runs.tuning.candidates import propose, spread
from farfield.runs.tuning.outcome import ALL_TRAIN, Tuned
from farfield.runs.tuning.request import search_space
from farfield.runs.tuning.trial import FAILED, best_trial, failed_sentence, trial_row
from farfield.runs.work_order import WorkOrder
from farfield.tasks.task import Task


@dataclass(frozen=True)
class Study:
    """The trials of one variant for one held-out domain."""

    plan: Plan
    label: str
    held_out: str | None
    out: Path
    #: What nested leave-one-domain-out holds out besides, one at a time.
    inner: tuple[str, ...]

    @property
    def file(self) -> Path:
        return study_folder(self.out, self.label, self.held_out) / TRIALS

    def rows(self) -> list[dict[str, Any]]:
        """Return the recorded trials in order."""
        found = {row["number"]: row for row in read_rows(self.file) if is_trial(row)}
        return [found[number] for number in sorted(found)]

    def waiting(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the trials that can be made now, each with its settings: all that need no earlier result, or one."""
        tuning, rows = self._tuning, self.rows()
        if len(rows) >= tuning.trials:
            return []
        settings = self.plan.settings[self.label]
        method = self.plan.variant(self.label).method
        space = search_space(method, settings, tuning.only)
        space = {name: where for name, where in space.items() if name in tuning.parameters[self.label]}
        start = {name: settings[name] for name in space}
        first = [start, *spread(space, tuning.trials, tuning.seed)]
        if len(rows) < len(first):
            recorded = {row["number"] for row in rows}
            return [(number, of) for number, of in enumerate(first) if number not in recorded]
        tried = [(row["settings"], row["criterion"]) for row in rows]
        return [(len(rows), propose(space, tried, tuning.seed))]

    def jobs(self, trial: int) -> list[Job]:
        """Return the runs of a trial: all sources together, and one more per source where the rule holds each out."""
        whole = Job(self.label, self.held_out, self._tuning.seed, trial=trial)
        if self._tuning.by != "leave-one-domain-out":
            return [whole]
        return [whole, *(replace(whole, inner=unit) for unit in self.inner)]

    def with_settings(self, settings: dict[str, Any]) -> Plan:
        """Return the plan of a trial's runs."""
        tuned = Tuned(trials=self._tuning.trials, rule=self._tuning.by, best={self.held_out or ALL_TRAIN: settings})
        return self.plan.model_copy(update={"tuned": {self.label: tuned}})

    def record(self, trial: int, settings: dict[str, Any], errors: dict[Job, str]) -> dict[str, Any]:
        """Write a trial down whose runs have ended. What only a resume would need is removed."""
        row = trial_row(self.plan, self.jobs(trial), self.out, settings, errors)
        append_row(self.file, row)
        if row["state"] != FAILED:
            for job in self.jobs(trial):
                for checkpoint in job.folder(self.out).glob("checkpoint-*.safetensors"):
                    checkpoint.unlink()
        return row

    @property
    def _tuning(self) -> Any:
        assert self.plan.tuning is not None
        return self.plan.tuning


def studies(plan: Plan, task: Task, out: Path) -> Iterator[Study]:
    """Return the studies of a plan: none for a variant that has nothing to tune."""
    assert plan.tuning is not None
    for held_out in plan.fold_names or (None,):
        inner = tuple(inner_units(task, plan.folds, held_out or ALL_TRAIN))
        for label in plan.algorithms:
            if plan.tuning.parameters[label]:
                yield Study(plan, label, held_out, out, inner)


def count_runs(plan: Plan, task: Task, out: Path) -> int:
    """Return how many runs the tuning makes in all."""
    assert plan.tuning is not None
    return sum(len(study.jobs(0)) * plan.tuning.trials for study in studies(plan, task, out))


def runs_made(plan: Plan, task: Task, out: Path) -> int:
    """Return how many runs of the tuning are recorded already."""
    return sum(len(study.jobs(0)) * len(study.rows()) for study in studies(plan, task, out))


def trials_missing(plan: Plan, task: Task, out: Path) -> bool:
    """Whether the tuning of a plan, if it has one, still has trials to make."""
    return plan.tuning is not None and runs_made(plan, task, out) < count_runs(plan, task, out)


def tuning_lines(plan: Plan, task: Task) -> list[str]:
    """Say in one line what is tuned and what it costs; nothing without tuning."""
    if plan.tuning is None:
        return []
    runs = count_runs(plan, task, Path())
    tuned = ", ".join(f"{label} ({', '.join(of)})" for label, of in plan.tuning.parameters.items() if of)
    line = f"tuning: {plan.tuning.trials} trials each of {tuned}, by {plan.tuning.by}: {runs} runs"
    line += " before the others" if plan.held_out else ""
    rest = [label for label, of in plan.tuning.parameters.items() if not of]
    return [line + (f"; nothing to tune in {', '.join(rest)}" if rest else "")]


def run_studies(
    plan: Plan,
    task: Task,
    out: Path,
    *,
    parallel: int | None = 1,
    engine: RunEngine = LocalEngine(),
    place: Place = ThisMachine(),
    checkpoint_every: int = 10,
    observer: Observer | None = None,
) -> Plan:
    """Make every trial that is missing, and return the plan with what was chosen.

    A study without a usable trial has a note, because its runs have the settings that were never tuned.
    """
    observer = observer or Silent()
    open_studies = list(studies(plan, task, out))
    total = count_runs(plan, task, out)
    observer.begin(total, runs_made(plan, task, out))
    while True:
        wave = [(study, number, of) for study in open_studies for number, of in study.waiting()]
        if not wave:
            break
        plans = {job: study.with_settings(of) for study, number, of in wave for job in study.jobs(number)}

        order = WorkOrder(plan, task, out, checkpoint_every, plans)
        missing = [job for job in plans if RunFolder(job.folder(out)).result is None]
        for job in plans.keys() - set(missing):
            observer.finished(job, None)
        errors = place.run(order, missing, engine, observer, parallel)
        for study, number, of in wave:
            study.record(number, of, errors)
    told = (failed_sentence(study.label, study.held_out, study.rows()) for study in open_studies)
    notes = dict.fromkeys((*plan.notes, *(sentence for sentence in told if sentence is not None)))
    return plan.model_copy(update={"tuned": _chosen(plan, open_studies), "notes": tuple(notes)})


def _chosen(plan: Plan, made: list[Study]) -> dict[str, Tuned]:
    assert plan.tuning is not None
    best: dict[str, dict[str, dict[str, Any]]] = {}
    for study in made:
        row = best_trial(study.rows())
        if row is not None:  # else the settings stay untuned, and a note says so
            best.setdefault(study.label, {})[study.held_out or ALL_TRAIN] = row["settings"]
    return {label: Tuned(trials=plan.tuning.trials, rule=plan.tuning.by, best=of) for label, of in best.items()}
