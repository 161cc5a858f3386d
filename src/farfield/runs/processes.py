"""Runs in processes of their own: several at a time, one after the other in each or all of them together.

A process that is killed is started again, and its runs go on from their last checkpoints.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from farfield.federation.engines.worker_pool import ATTEMPTS, die_with
from farfield.runs.plan import Job
from farfield.runs.rounds import Progress

Watch = Callable[[Progress], None]
#: Makes runs and says of each when it has ended, with its error if it has one. `watch` is told of their rounds.
RunAll = Callable[[Sequence[Job], Watch, Callable[[Job, "str | None"], None]], None]


class Observer(Protocol):
    """Whoever watches a sweep: the command line's progress display, or nobody."""

    def begin(self, total: int, done: int) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def finished(self, job: Job, error: str | None) -> None: ...


class Silent:
    def begin(self, total: int, done: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def finished(self, job: Job, error: str | None) -> None:
        pass


def one_after_the_other(run: Callable[[Job, Watch], None]) -> RunAll:
    """Make runs one by one: a failing one does not cost the others."""

    def run_all(jobs: Sequence[Job], watch: Watch, ended: Callable[[Job, str | None], None]) -> None:
        for job in jobs:
            try:
                run(job, watch)
            except Exception as error:
                _debug()
                ended(job, f"{type(error).__name__}: {error}")
            else:
                ended(job, None)

    return run_all


def run_jobs(
    jobs: Sequence[Job], run: RunAll, observer: Observer, parallel: int, together: bool, apart: bool = False
) -> dict[Job, str]:
    """Make runs in so many processes and return the failures by job.

    `together` deals all of them out at once; else a process is made for each run when another has ended. A single run
    is made in this process, unless all must be `apart` from it.
    """
    failures: dict[Job, str] = {}
    alone = len(jobs) < 2 and not apart
    if parallel == 1 or alone or not jobs or "fork" not in multiprocessing.get_all_start_methods():

        def ended(job: Job, error: str | None) -> None:
            if error is not None:
                failures[job] = error
            observer.finished(job, error)

        run(jobs, observer.progress, ended)
        return failures
    shares = [jobs[n::parallel] for n in range(min(parallel, len(jobs)))] if together else [[job] for job in jobs]
    return _side_by_side(shares, run, observer, parallel)


@dataclass
class _Child:
    jobs: Sequence[Job]
    process: BaseProcess
    connection: Connection
    #: The runs that have ended, with their errors.
    ended: dict[Job, str | None] = field(default_factory=dict)


def _side_by_side(shares: Sequence[Sequence[Job]], run: RunAll, observer: Observer, parallel: int) -> dict[Job, str]:
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(shares))
    running: list[_Child] = []
    failures: dict[Job, str] = {}
    tried: dict[Job, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                jobs = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(jobs, run, theirs, os.getpid()))
                process.start()
                theirs.close()
                running.append(_Child(jobs, process, ours))
            ready = wait([c.connection for c in running])
            for child in [c for c in running if c.connection in ready]:
                if _hear(child, observer):
                    continue
                child.process.join()
                child.connection.close()
                running.remove(child)
                failures |= {job: error for job, error in child.ended.items() if error is not None}
                left = [job for job in child.jobs if job not in child.ended]
                if not left:
                    continue
                tried[left[0]] = tried.get(left[0], 0) + 1
                if (child.process.exitcode or 0) < 0 and tried[left[0]] < ATTEMPTS:
                    waiting.append(left)  # a signal ended it; its runs go on from their checkpoints, to the same bits
                    continue
                for job in left:
                    failures[job] = f"its process ended with exit code {child.process.exitcode}"
                    observer.finished(job, failures[job])
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            child.process.join()
    return failures


def _hear(child: _Child, observer: Observer) -> bool:
    """Take one message; False when the child has nothing more to say."""
    try:
        message = json.loads(child.connection.recv_bytes())
    except EOFError:
        return False
    job = child.jobs[message.pop("run")]
    if "ended" in message:
        child.ended[job] = message["ended"]
        observer.finished(job, message["ended"])
    else:
        observer.progress(Progress(job=job, **message))
    return True


def _child(jobs: Sequence[Job], run: RunAll, connection: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    numbers = {job: number for number, job in enumerate(jobs)}

    def tell(job: Job, message: dict[str, Any]) -> None:
        try:
            connection.send_bytes(json.dumps({"run": numbers[job], **message}).encode())
        except OSError:  # the parent is gone, and with it the reason to go on
            os._exit(1)

    def watch(progress: Progress) -> None:
        tell(progress.job, {k: v for k, v in asdict(progress).items() if k != "job"})

    run(jobs, watch, lambda job, error: tell(job, {"ended": error}))
    connection.close()


def _debug() -> None:
    if os.environ.get("FARFIELD_DEBUG"):
        print(traceback.format_exc(), flush=True)
