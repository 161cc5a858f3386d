"""Send the runs of a sweep to a cluster, hear how far they are, and bring them back into the sweep's folder.

A run, or a group of runs that are trained together, is a task of Ray. Runs of a task that is lost with its node or its
process are sent once more; those that were delivered before are not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from farfield.errors import UserError
from farfield.federation.engines.ray_instance import first_line, quiet
from farfield.models.weights import file_of
from farfield.records import RunFolder
from farfield.records.bench_folder import FAILURE
from farfield.runs.cluster.connect import ClusterError
from farfield.runs.cluster.mailbox import Letter, Mailbox
from farfield.runs.cluster.node import make_runs
from farfield.runs.cluster.parcels import method_sources, pack, read_files, write_files
from farfield.runs.cluster.versions import versions
from farfield.runs.engines import BatchedEngine, RunEngine
from farfield.runs.job import Job
from farfield.runs.own_methods import own_methods
from farfield.runs.processes import Observer
from farfield.runs.rounds import TELL_EVERY, Progress
from farfield.runs.work_order import WorkOrder

#: A run that is lost with its node or its process is made again, so often in all before it counts as failed. Nodes that
#: a provider takes back at any time are lost more often than processes.
ATTEMPTS = 5
#: Seconds that a mailbox may take to answer; one that is lost with its node is made anew.
MAILBOX_SECONDS = 60.0


class Cluster:
    """The cluster that this program is connected to, as a place to make runs.

    `look_for_folder` lets nodes write into the sweep's folder where they see it; else runs are always shipped back.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _: None, *, look_for_folder: bool = True) -> None:
        self._tell, self._look_for_folder = tell, look_for_folder
        self._task: Any = ray.remote(make_runs)
        #: The rows that were put into the cluster last, with the task that they are of.
        self._rows: tuple[Any, Any] = (None, None)

    def run(
        self, order: WorkOrder, jobs: Sequence[Job], engine: RunEngine, observer: Observer, parallel: int | None
    ) -> dict[Job, str]:
        if not jobs:
            return {}
        out = order.out.resolve()
        content = {"plan": order.plan, "out": out, "checkpoint_every": order.checkpoint_every, "plans": order.plans}
        methods, weights = method_sources(own_methods(order.plan)), file_of(order.plan.model)
        with _marked(out, self._look_for_folder) as marker:
            common = {
                "versions": versions(),
                "engine": engine.name,
                "rows": [self._put_rows(order)],
                "order": [_put(pack((content, methods, weights)), "the plan")],
                "marker": marker,
            }
            groups = [[number] for number in range(len(jobs))]
            if isinstance(engine, BatchedEngine):
                shares = min(parallel or _cores(), len(jobs))
                groups = [list(range(len(jobs)))[share::shares] for share in range(shares)]
            with _mailbox() as mailbox:
                sending = _Sending(out, jobs, self._task, common, mailbox, observer, self._tell)
                return sending.to_the_end(groups, parallel)

    def _put_rows(self, order: WorkOrder) -> Any:
        if self._rows[0] is not order.task:
            self._rows = (order.task, _put(pack(order.task), "the rows of the task"))
        return self._rows[1]


@dataclass
class _Sending:
    out: Path
    jobs: Sequence[Job]
    #: What is run on a node, and what all tasks are told.
    task: Any
    common: Mapping[str, Any]
    mailbox: Any
    observer: Observer
    tell: Callable[[str], None]
    #: The runs of each task that is under way, by number.
    running: dict[Any, list[int]] = field(default_factory=dict)
    #: The runs that have ended, with their errors.
    ended: dict[int, str | None] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

    def to_the_end(self, groups: Sequence[list[int]], parallel: int | None) -> dict[Job, str]:
        waiting = list(reversed(groups))
        try:
            while waiting or self.running:
                while waiting and (parallel is None or len(self.running) < parallel):
                    numbers = waiting.pop()
                    self.running[self._send(numbers)] = numbers
                tasks = list(self.running)
                ray.wait(tasks, timeout=TELL_EVERY, fetch_local=False)
                ready, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)
                self._fetch()  # after the tasks were seen to have ended: all that they delivered is in the mailbox
                for task in ready:
                    left = self._left(task, self.running.pop(task))
                    waiting += [left] if left else []
        finally:
            for task in self.running:
                with suppress(Exception):  # a cluster that is gone has nothing to cancel
                    ray.cancel(task, force=True)
        return {self.jobs[number]: error for number, error in self.ended.items() if error is not None}

    def _send(self, numbers: Sequence[int]) -> Any:
        assigned = {
            **self.common,
            "jobs": {number: asdict(self.jobs[number]) for number in numbers},
            "begun": {number: [_put(files, "a run")] for number in numbers if (files := self._begun(number))},
        }
        name = str(self.jobs[numbers[0]]) + (f" and {len(numbers) - 1} more" if len(numbers) > 1 else "")
        # Ray itself does not try again: of several runs only those that were not delivered are made once more.
        options = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": "SPREAD", "name": name}
        return self.task.options(**options).remote(assigned, self.mailbox)

    def _begun(self, number: int) -> dict[str, bytes]:
        """Return the files of a run that was begun before, if it can go on from a checkpoint."""
        folder = self.jobs[number].folder(self.out)
        if RunFolder(folder).newest_round() is None:
            return {}
        return {name: content for name, content in read_files(folder).items() if name != FAILURE}

    def _left(self, task: Any, numbers: Sequence[int]) -> list[int]:
        """Return the runs of a task that has ended which are to be made again; none where all were delivered."""
        lost = "they were not delivered"
        try:
            refused = ray.get(task)
        except RayTaskError as error:
            if not isinstance(error.cause, RayError):
                raise ClusterError(self._why_no_runs(error.cause)) from error
            lost = first_line(error.cause)
        except RayError as error:
            lost = f"{type(error).__name__}: {first_line(error)}"
        else:
            if refused is not None:
                raise ClusterError(refused)
        left = [number for number in numbers if number not in self.ended]
        for number in left:
            self.attempts[number] = self.attempts.get(number, 0) + 1
        if left and self.attempts[left[0]] < ATTEMPTS:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            self.tell(f"made again: {self.jobs[left[0]]}{more} (the node or the process was lost: {lost})")
            return left
        for number in left:
            self._end(number, f"it was lost with its node or its process {ATTEMPTS} times in a row: {lost}")
        return []

    def _why_no_runs(self, cause: BaseException) -> str:
        """Say what keeps a node from making runs; only what it cannot import is mended by installing it."""
        if isinstance(cause, UserError):
            return f"a node of the cluster cannot make runs: {first_line(cause)}"
        what = f"a node of the cluster cannot make runs: {type(cause).__name__}: {first_line(cause)}"
        if isinstance(cause, OSError | MemoryError):
            return f"{what}; give the same command with --resume when the node has what it needs"
        return f"{what}; install farfield[sim] {self.common['versions']['farfield']} on every node"

    def _fetch(self) -> None:
        """Take the letters from the mailbox. One that was lost with its node is empty, and what it held is missing."""
        try:
            letters = ray.get(self.mailbox.fetch.remote(), timeout=MAILBOX_SECONDS)
        except (GetTimeoutError, RayActorError):
            return
        for letter in letters:
            self._read(letter)

    def _read(self, letter: Letter) -> None:
        number = letter["run"]
        if number in self.ended:  # by a node that was taken for lost
            return
        job = self.jobs[number]
        if "progress" in letter:
            self.observer.progress(Progress(**{**letter["progress"], "job": job}))
            return
        if letter["files"] is not None:
            write_files(job.folder(self.out), letter["files"])
        self._end(number, letter["error"])

    def _end(self, number: int, error: str | None) -> None:
        self.ended[number] = error
        self.observer.finished(self.jobs[number], error)


@contextmanager
def _mailbox() -> Iterator[Any]:
    """Start a mailbox on the node that this process is connected to, whose loss would end everything anyway.

    With a soft affinity Ray puts it on any node, and runs that have ended would be lost with that node.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, "name": f"farfield-{uuid.uuid4().hex}"}
    mailbox: Any = ray.remote(Mailbox).options(**options).remote()
    try:
        yield mailbox
    finally:
        with suppress(Exception), quiet():
            ray.kill(mailbox)


@contextmanager
def _marked(out: Path, look: bool) -> Iterator[str]:
    """Put a file into the sweep's folder by which a node knows whether it shares the folder."""
    if not look:
        yield ""
        return
    marker = out / f".on-{uuid.uuid4().hex}.partial"
    marker.touch()
    try:
        yield str(marker)
    finally:
        marker.unlink(missing_ok=True)


def _put(value: Any, what: str) -> Any:
    try:
        return ray.put(value)
    except (RayError, MemoryError) as error:
        raise ClusterError(
            f"{what} cannot be put into the cluster's memory ({first_line(error)}); start its nodes with a larger "
            "--object-store-memory"
        ) from error


def _cores() -> int:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(resources.get("CPU", 1)))
