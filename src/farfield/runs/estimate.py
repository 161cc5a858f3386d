"""How long a bench will take, measured by a short probe before it starts, and what a smaller one would take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from farfield.protocol.folds import inner_units
from farfield.protocol.selection import RULES
from farfield.report.formats import plural
from farfield.runs.engines import LocalEngine
from farfield.runs.plan import Job, Plan
from farfield.runs.rounds import Progress
from farfield.runs.single_run import run_job
from farfield.tasks.task import Task

#: Rounds of each method that are made to measure how long one takes; they are thrown away.
PROBED_ROUNDS = 2
#: After so many seconds no further method is probed: the others are taken to be like those that were.
PROBE_SECONDS = 20.0
#: A bench with more runs, or of more seconds, is announced with its estimate.
WORTH_RUNS = 60
WORTH_SECONDS = 60.0
#: A bench whose rounds read fewer numbers than this in all is over before anybody has read an estimate.
WORTH_NUMBERS = 1e8
#: Folds and rows that are proposed where there are many more.
FEW_FOLDS = 5
FEW_ROWS = 2000


@dataclass(frozen=True)
class Estimate:
    """Runs that are to be made, and how long they take; `seconds` is None where nothing could be measured."""

    runs: int
    at_once: int
    seconds: float | None
    #: Methods that were probed.
    probed: int
    #: Runs of the tuning that come before, as long as the others.
    trials: int = 0
    #: Options that make the bench smaller, each with the share of the time that it would take.
    smaller: tuple[tuple[str, float], ...] = ()
    #: Whether the runs will be trained as stacks, which is faster than what was timed.
    stacked: bool = False

    @property
    def worth_telling(self) -> bool:
        return self.runs > WORTH_RUNS or (self.seconds is not None and self.seconds > WORTH_SECONDS)

    @property
    def sentence(self) -> str:
        """Runs, time, how it was measured, and what a smaller bench would take."""
        trials = f" and {plural(self.trials, 'trial')} of the tuning" if self.trials else ""
        runs = f"{plural(self.runs, 'run')}{trials} to go, {self.at_once} at a time"
        if self.seconds is None:
            return f"{runs}; the time left is shown when the first are done"
        seconds = self.seconds
        how = f"{PROBED_ROUNDS} rounds of {plural(self.probed, 'method')} were timed"
        less = [f"{duration(seconds * share)} with {option}" for option, share in self.smaller]
        about = "at most about" if self.stacked else "about"
        return f"{runs}: {about} {duration(seconds)} ({how}){'; about ' + ', '.join(less) if less else ''}"


def is_long(plan: Plan, task: Task, jobs: Sequence[Job]) -> bool:
    """Whether a bench may take so long that a probe is worth its time."""
    numbers = sum(len(domain) * max(1, domain.x[0].numel()) for domain in task.domains)
    rounds = sum(plan.rounds_of[job.algorithm] for job in jobs)
    return len(jobs) > WORTH_RUNS or numbers * rounds > WORTH_NUMBERS


def estimate(
    plan: Plan, task: Task, jobs: Sequence[Job], at_once: int, *, probe: bool = True, stacked: bool = False
) -> Estimate:
    """Time a few rounds of each method and say how long all these runs take. Without `probe` nothing is timed.

    Rounds are timed on the local engine; runs that are trained as stacks take at most as long.
    """
    at_once = max(1, min(at_once, len(jobs)))
    seconds_of = _probed(plan, task, jobs) if probe else {}
    smaller = []
    if len(plan.seeds) > 1:
        smaller.append(("--seeds 1", 1 / len(plan.seeds)))
    if len(plan.fold_names) > 2 * FEW_FOLDS:
        smaller.append((f"--folds {FEW_FOLDS}", FEW_FOLDS / len(plan.fold_names)))
    rows = sum(len(domain) for domain in task.domains)
    if rows > 4 * FEW_ROWS:
        smaller.append((f"--rows {FEW_ROWS}", FEW_ROWS / rows))
    trials = _trials(plan, task) if jobs else 0
    if not seconds_of:
        return Estimate(len(jobs), at_once, None, 0, trials, tuple(smaller), stacked)
    usual = fmean(seconds_of.values())
    each = [seconds_of.get(job.algorithm, usual) for job in jobs]
    seconds = (sum(each) + trials * fmean(each)) / at_once
    if trials:  # one seed tunes for all, so fewer seeds save less than their share
        smaller = [(option, share) for option, share in smaller if not option.startswith("--seeds")]
    return Estimate(len(jobs), at_once, seconds, len(seconds_of), trials, tuple(smaller), stacked)


def _trials(plan: Plan, task: Task) -> int:
    """Return the runs of the tuning: so many trials per method and fold, and per inner fold where these compare."""
    if plan.tuning is None:
        return 0
    inner = [
        len(inner_units(task, plan.folds, fold)) if RULES[plan.tuning.by].needs_inner else 1 for fold in plan.fold_names
    ]
    tuned = sum(bool(names) for names in plan.tuning.parameters.values())
    return plan.tuning.trials * tuned * sum(inner)


def duration(seconds: float) -> str:
    """A time in the units that a reader thinks in: '40 s', '3 min', '2 h 10 min', '3 days'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours >= 48:
        return f"{round(minutes / 60 / 24)} days"
    return f"{hours} h {rest} min" if hours < 10 and rest else f"{round(minutes / 60)} h"


class _Enough(Exception):
    """A probe has seen the rounds that it wanted."""


def _probed(plan: Plan, task: Task, jobs: Sequence[Job]) -> dict[str, float]:
    """Return the seconds of a run by label, for the methods that there was time to probe."""
    first = {job.algorithm: job for job in reversed(jobs)}
    began = time.monotonic()
    seconds: dict[str, float] = {}
    for label, job in first.items():
        if time.monotonic() - began > PROBE_SECONDS:
            break
        times = _times(plan, task, job, began + PROBE_SECONDS)
        if len(times) > 1:
            each = (times[-1] - times[0]) / (len(times) - 1)
            seconds[label] = max(times[0] - each, 0.0) + each * plan.rounds_of[label]
        elif times:
            seconds[label] = times[0] * plan.rounds_of[label]
    return seconds


def _times(plan: Plan, task: Task, job: Job, limit: float) -> list[float]:
    """Return when each of the first rounds of a run was done, in seconds from its start."""
    began, done = time.monotonic(), list[float]()

    def watch(progress: Progress) -> None:
        if progress.phase is None:
            done.append(time.monotonic() - began)
            if len(done) >= PROBED_ROUNDS or time.monotonic() > limit:
                raise _Enough

    with TemporaryDirectory(prefix="farfield-probe-") as folder:
        try:
            run_job(plan, task, job, Path(folder), engine=LocalEngine(), watch=watch)
        except _Enough:
            pass
        except Exception:  # what is wrong with the run is told when it is made
            return []
    return done
