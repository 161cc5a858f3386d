"""All runs of a plan: only the ones that are missing, in a folder that one process writes to, or several shares."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from farfield.diagnose.data_summary import summarise
from farfield.records import RecordsError, RunFolder, read_config, sole_writer, write_config
from farfield.records.atomic import write_json
from farfield.records.bench_folder import BENCH, COMMANDS, DATA, DIAGNOSIS, EXAMPLES, FAILURE, FORMAT, JOBS, TRACKERS
from farfield.records.checked_files import write_checked_json
from farfield.records.checksums import DamagedFile
from farfield.records.sealed import LOOKS
from farfield.records.setting_text import readable
from farfield.records.several_writers import is_lock, one_of_several, turn
from farfield.records.tuning_trials import TUNING
from farfield.report.formats import listed
from farfield.runs.engines import LocalEngine, RunEngine
from farfield.runs.examples import write_examples
from farfield.runs.growing import additions, check_format, check_longer, conflict
from farfield.runs.places import Place, ThisMachine
from farfield.runs.plan import Job, Plan
from farfield.runs.processes import Observer, Silent
from farfield.runs.share import Share
from farfield.runs.work_order import WorkOrder
from farfield.tasks.task import Task


@contextmanager
def open_sweep(
    plan: Plan, out: Path, *, resume: bool, fresh: bool = False, share: Share | None = None
) -> Iterator[list[str]]:
    """Make the output folder ready and be the only one to write to it, or say in one sentence why that cannot be.

    Gives what the plan adds to a bench that is resumed, as phrases. A share is one of several that write to the folder:
    the first makes the folder ready, whichever that is.
    """
    with ExitStack() as held:
        if share is not None:
            if not out.is_dir():
                if resume or out.exists():
                    check_folder(plan, out, resume=resume)
                out.mkdir(parents=True, exist_ok=True)  # perhaps another share has made it by now
            join = partial(_join, plan, out, resume=resume)
            added = held.enter_context(one_of_several(out, share.number, share.of, join))
        else:
            if not (out / BENCH).exists():
                check_folder(plan, out, resume=resume, fresh=fresh)
                out.mkdir(parents=True, exist_ok=True)
            held.enter_context(sole_writer(out, patience=0.0))
            added = _prepare(plan, out, resume=resume, fresh=fresh)
        yield added


def _join(plan: Plan, out: Path, busy: str | None, *, resume: bool) -> list[str]:
    """Make the folder ready for a share. A bench does not grow while another share is at work on what it was.

    With more runs, other runs are dealt to each share, and two processes would make the same.
    """
    _, added = check_folder(plan, out, resume=resume, join=True)
    if added and busy is not None:
        raise RecordsError(
            f"another process makes share {busy} of the bench in '{out}'; let it end before you add {listed(added)}"
        )
    return _prepare(plan, out, resume=resume, fresh=False, join=True)


def _prepare(plan: Plan, out: Path, *, resume: bool, fresh: bool, join: bool = False) -> list[str]:
    there, added = check_folder(plan, out, resume=resume, fresh=fresh, join=join)
    if there and not fresh:
        if added:
            write_config(out / BENCH, _config(plan))
        return added
    if there:
        remove_bench(out)
    out.mkdir(parents=True, exist_ok=True)
    write_config(out / BENCH, _config(plan))
    return []


def check_folder(
    plan: Plan, out: Path, *, resume: bool, fresh: bool = False, join: bool = False
) -> tuple[bool, list[str]]:
    """Return whether a folder holds a bench, and what the plan adds to it; refuse what does not go together.

    `join` goes on with a bench that is there without `resume`, if the plan adds nothing to it.
    """
    if not (out / BENCH).exists():
        if out.exists() and not out.is_dir():
            raise RecordsError(f"'{out}' is a file; give a folder for --out")
        # The count of looks and the locks are what `remove_bench` leaves.
        if out.exists() and any(entry.name != LOOKS and not is_lock(entry.name) for entry in out.iterdir()):
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
    if not resume and (added or not join):
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


def missing_jobs(plan: Plan, task: Task, out: Path, share: Share | None = None) -> list[Job]:
    """The runs, of one share or of all, that have no result yet, or fewer rounds than the plan has by now."""
    return [job for job in jobs_of(plan, task, share) if not _is_done(plan, job, out)]


def jobs_of(plan: Plan, task: Task, share: Share | None) -> list[Job]:
    """Return the runs of one share, or all."""
    jobs = list(plan.jobs(task))
    return jobs if share is None else share.deal(jobs)


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
    parallel: int | None = 1,
    engine: RunEngine = LocalEngine(),
    place: Place = ThisMachine(),
    share: Share | None = None,
    checkpoint_every: int = 10,
    observer: Observer | None = None,
) -> dict[Job, str]:
    """Run every job that has no result yet. Returns the failures by job; the other jobs go on without them.

    A share has its part of all jobs, and leaves the others alone.
    """
    observer = observer or Silent()
    with nullcontext() if share is None else turn(out):
        write_checked_json(out / DATA, summarise(task, plan.held_out).model_dump(mode="json"))
        write_examples(task, out)
        write_json(out / JOBS, [_listed(plan, job, out) for job in plan.jobs(task)])
    missing = missing_jobs(plan, task, out, share)
    total = len(jobs_of(plan, task, share))
    observer.begin(total, total - len(missing))
    failures = place.run(WorkOrder(plan, task, out, checkpoint_every), missing, engine, observer, parallel)
    for job in missing:
        path = job.folder(out) / FAILURE
        if job in failures:
            path.parent.mkdir(parents=True, exist_ok=True)  # a run that was lost on a cluster has none
            write_checked_json(path, {"error": failures[job]})
        else:
            path.unlink(missing_ok=True)
    return failures


def _listed(plan: Plan, job: Job, out: Path) -> dict[str, Any]:
    """Return what the list of runs says of one."""
    folder = job.folder(out).relative_to(out).as_posix()
    return {**asdict(job), "folder": folder, "rounds": plan.rounds_of[job.algorithm]}
