"""All runs of a plan: several at a time, each in its own process, and only the ones that are missing."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from farfield.diagnose.data_summary import summarise
from farfield.federation.engines.worker_pool import ATTEMPTS, die_with
from farfield.records import RecordsError, RunFolder, read_config, sole_writer, write_config
from farfield.records.atomic import write_json
from farfield.records.bench_folder import BENCH, COMMANDS, DATA, DIAGNOSIS, EXAMPLES, FAILURE, FORMAT, JOBS, TRACKERS
from farfield.records.checked_files import write_checked_json
from farfield.records.checksums import DamagedFile
from farfield.records.run_files import LOCK
from farfield.records.sealed import LOOKS
from farfield.records.setting_text import readable
from farfield.records.tuning_trials import TUNING
from farfield.report.formats import listed
from farfield.runs.engines import LocalEngine, RunEngine
from farfield.runs.examples import write_examples
from farfield.runs.growing import additions, check_format, check_longer, conflict
from farfield.runs.plan import Job, Plan
from farfield.runs.rounds import Progress
from farfield.runs.single_run import run_job
from farfield.tasks.task import Task


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


@contextmanager
def open_sweep(plan: Plan, out: Path, *, resume: bool, fresh: bool = False) -> Iterator[list[str]]:
    """Make the output folder ready and be the only one to write to it, or say in one sentence why that cannot be.

    Gives what the plan adds to a bench that is resumed, as phrases.
    """
    with ExitStack() as held:
        if (out / BENCH).exists():
            held.enter_context(sole_writer(out, patience=0.0))
            added = _prepare(plan, out, resume=resume, fresh=fresh)
        else:
            added = _prepare(plan, out, resume=resume, fresh=fresh)
            held.enter_context(sole_writer(out, patience=0.0))
        yield added


def _prepare(plan: Plan, out: Path, *, resume: bool, fresh: bool) -> list[str]:
    there, added = check_folder(plan, out, resume=resume, fresh=fresh)
    if there and not fresh:
        if added:
            write_config(out / BENCH, _config(plan))
        return added
    if there:
        remove_bench(out)
    out.mkdir(parents=True, exist_ok=True)
    write_config(out / BENCH, _config(plan))
    return []


def check_folder(plan: Plan, out: Path, *, resume: bool, fresh: bool = False) -> tuple[bool, list[str]]:
    """Return whether a folder holds a bench, and what the plan adds to it; refuse what does not go together."""
    if not (out / BENCH).exists():
        if out.exists() and not out.is_dir():
            raise RecordsError(f"'{out}' is a file; give a folder for --out")
        # The count of looks and the lock are what `remove_bench` leaves.
        if out.exists() and any(entry.name not in (LOOKS, LOCK) for entry in out.iterdir()):
            raise RecordsError(f"'{out}' is not empty and holds no bench; choose another folder for --out")
        if resume:
            raise RecordsError(f"there is no bench in '{out}' to resume; omit --resume to start a new one")
        return False, []
    if fresh:
        return True, []
    before, config = read_config(out / BENCH), _config(plan)
    check_format(before, out)
    changed = conflict(before, config)
    if changed:
        way = "set it back and add --resume, replace the bench with --fresh, or choose another --out"
        raise RecordsError(f"'{out}' holds another bench: {changed}; {way}")
    added = additions(before, config)
    if not resume:
        go_on = f"to add {listed(added)}" if added else "to go on"
        raise RecordsError(
            f"'{out}' holds this bench already; add --resume {go_on} or --fresh to replace it, or choose another --out"
        )
    check_longer(before, plan)
    return True, added


def record_tuned(plan: Plan, out: Path) -> None:
    """Write down what the tuning chose, beside the plan."""
    write_config(out / BENCH, _config(plan))


def _config(plan: Plan) -> dict[str, Any]:
    """Return what the plan's file says: the plan, with the variants' settings all readable."""
    content = plan.model_dump(mode="json")
    variants = [{**variant, "settings": readable(variant["settings"])} for variant in content["variants"]]
    return {"format": FORMAT, **content, "variants": variants}


def remove_bench(out: Path) -> None:
    """Remove what a bench wrote, and nothing else that may lie in the folder.

    The count of looks stays: the same held-out domains were looked at, however fresh the runs are.
    """
    for name in ("runs", TUNING, TRACKERS):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (BENCH, COMMANDS, DATA, DIAGNOSIS, EXAMPLES, JOBS, "report.html"):
        (out / name).unlink(missing_ok=True)


def missing_jobs(plan: Plan, task: Task, out: Path) -> list[Job]:
    """The runs that have no result yet, or fewer rounds than the plan has by now."""
    return [job for job in plan.jobs(task) if not _is_done(plan, job, out)]


def _is_done(plan: Plan, job: Job, out: Path) -> bool:
    try:
        result = RunFolder(job.folder(out)).result
    except DamagedFile:
        return False
    return result is not None and result["rounds"] >= plan.rounds_of[job.algorithm]


def run_sweep(
    plan: Plan,
    task: Task,
    out: Path,
    *,
    parallel: int = 1,
    engine: RunEngine = LocalEngine(),
    checkpoint_every: int = 10,
    observer: Observer | None = None,
) -> dict[Job, str]:
    """Run every job that has no result yet. Returns the failures by job; the other jobs go on without them."""
    observer = observer or Silent()
    write_checked_json(out / DATA, summarise(task, plan.held_out).model_dump(mode="json"))
    write_examples(task, out)
    missing = missing_jobs(plan, task, out)
    jobs = list(plan.jobs(task))
    total = len(jobs)
    write_json(out / JOBS, [_listed(plan, job, out) for job in jobs])
    observer.begin(total, total - len(missing))

    def run(job: Job, watch: Callable[[Progress], None]) -> None:
        folder = job.folder(out)
        (folder / FAILURE).unlink(missing_ok=True)  # of an earlier start
        try:
            run_job(plan, task, job, folder, engine=engine, checkpoint_every=checkpoint_every, watch=watch)
        except Exception as error:
            with suppress(OSError):  # written at once, for whoever watches; it is written again at the end
                write_checked_json(folder / FAILURE, {"error": f"{type(error).__name__}: {error}"})
            raise

    failures = run_jobs(missing, run, observer, parallel)
    for job in missing:
        path = job.folder(out) / FAILURE
        if job in failures:
            write_checked_json(path, {"error": failures[job]})
        else:
            path.unlink(missing_ok=True)
    return failures


def _listed(plan: Plan, job: Job, out: Path) -> dict[str, Any]:
    """Return what the list of runs says of one."""
    folder = job.folder(out).relative_to(out).as_posix()
    return {**asdict(job), "folder": folder, "rounds": plan.rounds_of[job.algorithm]}


Run = Callable[[Job, Callable[[Progress], None]], None]


def run_jobs(jobs: list[Job], run: Run, observer: Observer, parallel: int) -> dict[Job, str]:
    """Run jobs, so many at a time, each in its own process. Returns the failures by job."""
    if parallel == 1 or len(jobs) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return _one_by_one(jobs, run, observer)
    return _side_by_side(jobs, run, observer, parallel)


def _one_by_one(jobs: list[Job], run: Run, observer: Observer) -> dict[Job, str]:
    failures: dict[Job, str] = {}
    for job in jobs:
        try:
            run(job, observer.progress)
        except Exception as error:  # one failing run must not cost the others
            failures[job] = f"{type(error).__name__}: {error}"
        observer.finished(job, failures.get(job))
    return failures


@dataclass
class _Child:
    job: Job
    process: BaseProcess
    connection: Connection
    error: str | None = None
    done: bool = False


def _side_by_side(jobs: list[Job], run: Run, observer: Observer, parallel: int) -> dict[Job, str]:
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(jobs))
    running: list[_Child] = []
    failures: dict[Job, str] = {}
    ended: dict[Job, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                job = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(job, run, theirs, os.getpid()))
                process.start()
                theirs.close()
                running.append(_Child(job, process, ours))
            ready = wait([c.connection for c in running])
            for child in [c for c in running if c.connection in ready]:
                if _hear(child, observer):
                    continue
                child.process.join()
                child.connection.close()
                running.remove(child)
                ended[child.job] = ended.get(child.job, 0) + 1
                if _was_killed(child) and ended[child.job] < ATTEMPTS:
                    waiting.append(child.job)  # it goes on from its last checkpoint, to the same bits
                    continue
                if not child.done:
                    failures[child.job] = child.error or f"its process ended with exit code {child.process.exitcode}"
                observer.finished(child.job, failures.get(child.job))
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            child.process.join()
    return failures


def _was_killed(child: _Child) -> bool:
    """Whether a signal ended a run: the kernel's, when memory is short, or somebody's."""
    return not child.done and child.error is None and (child.process.exitcode or 0) < 0


def _hear(child: _Child, observer: Observer) -> bool:
    """Take one message; False when the child has nothing more to say."""
    try:
        message = json.loads(child.connection.recv_bytes())
    except EOFError:
        return False
    if "error" in message:
        child.error = message["error"]
    elif "done" in message:
        child.done = True
    else:
        observer.progress(Progress(job=child.job, **message))
    return True


def _child(job: Job, run: Run, connection: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)

    def tell(message: dict[str, Any]) -> None:
        try:
            connection.send_bytes(json.dumps(message).encode())
        except OSError:  # the parent is gone, and with it the reason to go on
            os._exit(1)

    def watch(progress: Progress) -> None:
        tell({k: v for k, v in asdict(progress).items() if k != "job"})

    try:
        run(job, watch)
        tell({"done": True})
    except Exception as error:
        detail = traceback.format_exc()
        tell({"error": f"{type(error).__name__}: {error}"})
        if os.environ.get("FARFIELD_DEBUG"):
            print(detail, flush=True)
    connection.close()
