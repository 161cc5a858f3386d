"""Runs on an engine: one after the other in each process, or on the batched engine all of a process together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from farfield.federation.engines.batched.engine import Serve
from farfield.reproducibility.threads import one_thread
from farfield.runs.engines import BatchedEngine, RunEngine
from farfield.runs.plan import Job
from farfield.runs.processes import Observer, Watch, one_after_the_other, run_jobs
from farfield.runs.together.open_runs import Abandoned, run_together

Ended = Callable[[Job, str | None], None]
#: Makes one run on an engine.
RunOne = Callable[[Job, Watch, RunEngine], None]


def run_on(engine: RunEngine, jobs: Sequence[Job], run: RunOne, observer: Observer, parallel: int) -> dict[Job, str]:
    """Make runs on an engine in so many processes, and return the failures by job."""
    if not isinstance(engine, BatchedEngine):
        return run_jobs(jobs, one_after_the_other(partial(_with, engine, run)), observer, parallel, together=False)
    return run_jobs(jobs, partial(_all_at_once, engine, run), observer, parallel, together=True)


def _with(engine: RunEngine, run: RunOne, job: Job, watch: Watch) -> None:
    run(job, watch, engine)


def _all_at_once(engine: BatchedEngine, run: RunOne, jobs: Sequence[Job], watch: Watch, ended: Ended) -> None:
    def work(job: Job, serve: Serve) -> None:
        try:
            run(job, watch, replace(engine, serve=serve))
        except Abandoned:
            raise
        except Exception as error:  # one failing run must not cost the others
            ended(job, f"{type(error).__name__}: {error}")
        else:
            ended(job, None)

    with one_thread():
        errors = run_together([partial(work, job) for job in jobs])
    first = next((error for error in errors if error is not None), None)
    if first is not None:
        raise first
