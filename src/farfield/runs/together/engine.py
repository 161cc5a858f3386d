"""Runs on an engine: one after the other in each process, or on the batched engine all of a process together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from farfield.federation.engines.batched.engine import Serve
from farfield.reproducibility.devices import CPU, computing_on
from farfield.reproducibility.threads import one_thread
from farfield.runs.engines import BatchedEngine, LocalEngine, RunEngine
from farfield.runs.plan import Job
from farfield.runs.processes import Observer, RunAll, Watch, one_after_the_other, run_jobs
from farfield.runs.together.open_runs import Abandoned, run_together

Ended = Callable[[Job, str | None], None]
#: Makes one run on an engine.
RunOne = Callable[[Job, Watch, RunEngine], None]


def run_on(engine: RunEngine, jobs: Sequence[Job], run: RunOne, observer: Observer, parallel: int) -> dict[Job, str]:
    """Make runs on an engine in so many processes, and return the failures by job.

    Of N devices, the i-th of these runs is made on number i mod N.
    """
    devices = {job: engine.devices[number % len(engine.devices)] for number, job in enumerate(jobs)}
    # A process that has used CUDA cannot be forked; so if runs are forked at all, none is made in this process.
    apart = engine.devices != (CPU,)
    together = isinstance(engine, BatchedEngine)
    return run_jobs(jobs, all_runs(engine, run, devices), observer, parallel, together=together, apart=apart)


def all_runs(engine: RunEngine, run: RunOne, devices: Mapping[Job, torch.device] | None = None) -> RunAll:
    """Return what makes the runs of one process: one after the other, or on the batched engine all together.

    `devices` says where each is made; the engine's first device otherwise.
    """
    where = defaultdict(lambda: engine.devices[0], devices or {})
    if isinstance(engine, BatchedEngine):
        return partial(_all_at_once, engine, where, run)
    return one_after_the_other(partial(_with, engine, where, run))


def _with(engine: RunEngine, devices: Mapping[Job, torch.device], run: RunOne, job: Job, watch: Watch) -> None:
    with computing_on(devices[job]):
        run(job, watch, replace(engine, devices=(devices[job],)) if isinstance(engine, LocalEngine) else engine)


def _all_at_once(
    engine: BatchedEngine,
    devices: Mapping[Job, torch.device],
    run: RunOne,
    jobs: Sequence[Job],
    watch: Watch,
    ended: Ended,
) -> None:
    def work(job: Job, serve: Serve) -> None:
        try:
            run(job, watch, replace(engine, serve=serve, devices=(devices[job],)))
        except Abandoned:
            raise
        except Exception as error:  # one failing run must not cost the others
            ended(job, f"{type(error).__name__}: {error}")
        else:
            ended(job, None)

    with one_thread(), computing_on(engine.devices[0]):
        errors = run_together([partial(work, job) for job in jobs])
    first = next((error for error in errors if error is not None), None)
    if first is not None:
        raise first
