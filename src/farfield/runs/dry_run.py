"""A bench that is planned and estimated, and not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.report.formats import plural
from farfield.runs.engine_choice import EngineChoice
from farfield.runs.engines import STACKING
from farfield.runs.estimate import Estimate, estimate
from farfield.runs.growing import bench_there, planned
from farfield.runs.plan import Job, Plan
from farfield.runs.share import Share
from farfield.runs.sweep import check_folder, jobs_of, missing_jobs
from farfield.tasks.task import Task


@dataclass(frozen=True)
class DryRun:
    """What a bench would do: its plan, what it would add to the folder, its runs, and how long they take."""

    plan: Plan
    #: What is added to a bench that is there, as phrases.
    added: tuple[str, ...]
    runs: int
    estimate: Estimate
    engine: EngineChoice | None = None

    def lines(self) -> list[str]:
        """Return the plan in words, one line per part."""
        plan = self.plan
        held_out = plural(len(plan.held_out), "domain")
        folds = f"{held_out}, one at a time" if not plan.folds else f"{held_out} in {plural(len(plan.folds), 'fold')}"
        there = self.runs - self.estimate.runs
        lines = [
            f"methods: {', '.join(plan.algorithms)}; differences to {plan.baseline}",
            f"held out: {folds}",
            f"seeds: {', '.join(map(str, plan.seeds))}; rounds: {plan.rounds}, evaluated every {plan.evaluate_every}",
            f"chosen by {', '.join(plan.rules)}; {plan.metric} leads",
            f"runs: {self.runs}" + (f", of which {there} are there" if there else ""),
        ]
        lines += [f"engine: {self.engine.engine} ({self.engine.why})"] if self.engine is not None else []
        lines += [f"would add: {'; '.join(self.added)}"] if self.added else []
        return [*lines, self.estimate.sentence]


def dry_run(
    task: Task,
    options: Mapping[str, Any],
    out: Path | None,
    *,
    resume: bool = False,
    fresh: bool = False,
    share: Share | None = None,
    at_once: int = 1,
    probe: bool = True,
    choose: Callable[[Plan, Sequence[Job]], EngineChoice] | None = None,
) -> DryRun:
    """Plan a bench with these options, time a few rounds, and leave nothing behind. Refuses what a bench refuses.

    Of a share, its own runs are counted and timed. `choose` says on which engine the runs would be made.
    """
    there = bench_there(out) if resume and out is not None else None
    plan = planned(task, there, options)
    added: list[str] = []
    jobs = all_jobs = jobs_of(plan, task, share)
    if out is not None:
        _, added = check_folder(plan, out, resume=resume, fresh=fresh, join=share is not None)
        jobs = all_jobs if fresh else missing_jobs(plan, task, out, share)
    engine = None if choose is None else choose(plan, jobs)
    stacked = engine is not None and engine.engine in STACKING
    found = estimate(plan, task, jobs, at_once, probe=probe, stacked=stacked)
    return DryRun(plan, tuple(added), len(all_jobs), found, engine)
