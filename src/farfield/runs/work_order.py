"""What it takes to make the runs of a sweep, in whatever process and on whatever machine they are made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from farfield.records.bench_folder import FAILURE
from farfield.records.checked_files import write_checked_json
from farfield.runs.engines import RunEngine
from farfield.runs.plan import Job, Plan
from farfield.runs.processes import Watch
from farfield.runs.single_run import run_job
from farfield.tasks.task import Task


@dataclass(frozen=True)
class WorkOrder:
    """A plan, its rows, and the folder of the sweep that the runs are in."""

    plan: Plan
    task: Task
    out: Path
    checkpoint_every: int = 10
    #: Plans of single runs: the trials of a tuning have settings of their own.
    plans: Mapping[Job, Plan] = field(default_factory=dict)

    def make(self, job: Job, watch: Watch, engine: RunEngine) -> None:
        """Make a run, or what is left of it, on an engine. A run of a bench that fails leaves the reason behind."""
        folder = job.folder(self.out)
        (folder / FAILURE).unlink(missing_ok=True)  # of an earlier start
        plan = self.plans.get(job, self.plan)
        try:
            run_job(plan, self.task, job, folder, engine=engine, checkpoint_every=self.checkpoint_every, watch=watch)
        except Exception as error:
            if job.trial is None:
                with suppress(OSError):  # written at once, for whoever watches; it is written again at the end
                    write_checked_json(folder / FAILURE, {"error": f"{type(error).__name__}: {error}"})
            raise
