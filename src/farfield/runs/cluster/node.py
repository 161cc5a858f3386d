"""Make runs on a node of a cluster: the task that Ray runs there."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch

from farfield.records import RunFolder
from farfield.runs.cluster.mailbox import Letter
from farfield.runs.cluster.parcels import Files, import_methods, look_for_weights, read_files, unpack, write_files
from farfield.runs.cluster.versions import version_conflict, versions
from farfield.runs.engines import engine_here
from farfield.runs.job import Job
from farfield.runs.rounds import TELL_EVERY, Progress
from farfield.runs.together.engine import all_runs
from farfield.runs.work_order import WorkOrder
from farfield.tasks.task import Task

#: Seconds that a node waits for the lock of a run in a shared folder: a file server forgets the locks of a machine that
#: is gone only after a while.
LOCK_SECONDS = 240.0


@dataclass(frozen=True)
class Assignment:
    """The runs of one task of Ray, in words that any version can read; what needs the same versions is packed."""

    versions: Mapping[str, str]
    #: Numbers of the runs in the order of the sweep, and the runs as plain data.
    jobs: Mapping[int, Mapping[str, Any]]
    engine: str
    #: References to the packed rows and to the packed order; in a list, so that Ray does not open them.
    rows: Sequence[Any]
    order: Sequence[Any]
    #: By number: a reference to the files of a run that was begun before.
    begun: Mapping[int, Sequence[Any]]
    #: A file that a node sees if it shares the sweep's folder.
    marker: str


#: The rows and the order that this process has opened last: its next task is of the same sweep.
_opened: dict[str, tuple[str, Any]] = {}


def make_runs(assigned: dict[str, Any], mailbox: Any) -> str | None:
    """Make runs, and deliver each when it has ended. Returns a sentence where this node cannot make any."""
    node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    conflict = version_conflict(assigned["versions"], versions(), node)
    if conflict is not None:
        return conflict
    torch.set_num_threads(1)
    assignment = Assignment(**assigned)
    order = _order(assignment)
    jobs = {number: Job(**of) for number, of in assignment.jobs.items()}
    if assignment.marker and Path(assignment.marker).exists():
        for job in jobs.values():
            with RunFolder(job.folder(order.out)).writing(patience=LOCK_SECONDS):
                pass
        _make(order, assignment.engine, jobs, mailbox, shipped=False)
        return None
    folder = Path(tempfile.mkdtemp(prefix="farfield-runs-"))
    try:
        order = replace(order, out=folder)
        for number, begun in assignment.begun.items():
            write_files(jobs[number].folder(folder), ray.get(begun[0]))
        _make(order, assignment.engine, jobs, mailbox, shipped=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def _make(order: WorkOrder, engine: str, jobs: Mapping[int, Job], mailbox: Any, *, shipped: bool) -> None:
    numbers = {job: number for number, job in jobs.items()}
    told = _Told(mailbox)

    def watch(progress: Progress) -> None:
        told.hear({"run": numbers[progress.job], "progress": {**asdict(progress), "job": None}})

    def ended(job: Job, error: str | None) -> None:
        folder = job.folder(order.out)
        files: Files | None = read_files(folder) if shipped else None
        ray.get(mailbox.deliver.remote({"run": numbers[job], "error": error, "files": files}))
        if shipped:
            shutil.rmtree(folder, ignore_errors=True)

    all_runs(engine_here(engine), order.make)(list(jobs.values()), watch, ended)


class _Told:
    """Tells of progress a few times a second: a small run has hundreds of rounds in that time."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._letters: dict[int, Letter] = {}
        self._last = 0.0

    def hear(self, letter: Letter) -> None:
        self._letters[letter["run"]] = letter
        if time.monotonic() - self._last >= TELL_EVERY:
            self._mailbox.tell.remote(list(self._letters.values()))  # nobody waits for it: it may be lost
            self._letters, self._last = {}, time.monotonic()


def _order(assignment: Assignment) -> WorkOrder:
    task: Task = _open("rows", assignment.rows[0])
    order, methods, weights = _open("order", assignment.order[0])
    import_methods(methods)
    look_for_weights(order["plan"].model, weights)
    return WorkOrder(task=task, **order)


def _open(what: str, reference: Any) -> Any:
    name = reference.hex()
    if what not in _opened or _opened[what][0] != name:
        _opened[what] = (name, unpack(ray.get(reference)))
    return _opened[what][1]
