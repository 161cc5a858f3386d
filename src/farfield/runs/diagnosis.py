"""The diagnosis that a bench writes beside its runs: quick, before they start, and read by the report alone."""

from __future__ import annotations

import warnings
from pathlib import Path

from farfield.diagnose.diagnosis import diagnose
from farfield.records.diagnosis_file import read_diagnosis, write_diagnosis
from farfield.runs.plan import Plan
from farfield.tasks.task import Task

#: A bench with so many rounds over all its runs takes much longer than a quick diagnosis.
WORTH_ROUNDS = 500


def attach_diagnosis(plan: Plan, task: Task, folder: Path, wanted: bool | None) -> None:
    """Write `diagnosis.json` into the bench's folder, unless it is there for the same data.

    `wanted` None leaves it out of a bench that is so short that a diagnosis would take a large part of its time.
    """
    if wanted is None:
        rounds = sum(plan.rounds_of.get(job.algorithm, plan.rounds) for job in plan.jobs(task))
        wanted = rounds >= WORTH_ROUNDS
        asked = False
    else:
        asked = wanted
    before = read_diagnosis(folder)
    if not wanted or (before is not None and before.data == task.data_hash):
        return
    try:
        write_diagnosis(folder, diagnose(task, quick=True))
    except (ValueError, ArithmeticError, RuntimeError) as error:
        # Nobody asked for it, so a bench goes on without it.
        if asked:
            raise
        warnings.warn(f"the diagnosis was left out: {error}; --no-diagnose leaves it out silently", stacklevel=2)
