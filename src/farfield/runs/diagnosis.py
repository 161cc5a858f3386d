"""The diagnosis that a bench writes beside its runs: quick, while they are made, and read by the report alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from farfield.diagnose.diagnosis import diagnose
from farfield.federation.engines.worker_pool import die_with
from farfield.records.diagnosis_file import read_diagnosis, write_diagnosis
from farfield.runs.plan import Plan
from farfield.tasks.task import Task

#: A bench with so many rounds over all its runs takes much longer than a quick diagnosis.
WORTH_ROUNDS = 500


@contextmanager
def diagnosis_beside(plan: Plan, task: Task, folder: Path, wanted: bool | None, *, apart: bool) -> Iterator[None]:
    """Write `diagnosis.json` into the bench's folder, unless it is there for the same data.

    `wanted` None leaves it out of a bench that is so short that a diagnosis would take a large part of its time. One
    that was asked for is made first, so that its error is told at once. Any other is made while the block runs, in a
    process of its own if there is room for one (`apart`).
    """
    if not _is_due(plan, task, folder, wanted):
        yield
        return
    if wanted:
        write_diagnosis(folder, diagnose(task, quick=True))
        yield
        return
    if not apart or "fork" not in multiprocessing.get_all_start_methods():
        _warn(_written(task, folder))
        yield
        return
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(task, folder, theirs, os.getpid()))
    process.start()
    theirs.close()
    try:
        yield
        try:
            _warn(ours.recv_bytes().decode() or None)
        except EOFError:
            _warn("its process ended")
    finally:
        process.terminate()
        process.join()
        ours.close()


def _is_due(plan: Plan, task: Task, folder: Path, wanted: bool | None) -> bool:
    if wanted is None:
        wanted = sum(plan.rounds_of.get(job.algorithm, plan.rounds) for job in plan.jobs(task)) >= WORTH_ROUNDS
    before = read_diagnosis(folder)
    return wanted and (before is None or before.data != task.data_hash)


def _written(task: Task, folder: Path) -> str | None:
    """Write the diagnosis; return why it cannot be, because a bench that nobody asked for one goes on without it."""
    try:
        write_diagnosis(folder, diagnose(task, quick=True))
    except (ValueError, ArithmeticError, RuntimeError) as error:
        return str(error)
    return None


def _child(task: Task, folder: Path, connection: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    connection.send_bytes((_written(task, folder) or "").encode())
    connection.close()


def _warn(problem: str | None) -> None:
    if problem is not None:
        warnings.warn(f"the diagnosis was left out: {problem}; --no-diagnose leaves it out silently", stacklevel=4)
