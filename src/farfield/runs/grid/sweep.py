"""`farfield.sweep`, which `farfield bench --sweep` calls as well: a bench at every point of a grid."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.records import RecordsError, sole_writer
from farfield.records.atomic import write_json
from farfield.records.bench_folder import BENCH
from farfield.records.sweep_folder import POINTS, SWEEP, is_sweep, read_sweep, write_sweep
from farfield.report.grid import Grid
from farfield.report.sweep_page import write_sweep_page
from farfield.report.sweep_points import SweepPoints, collect_points
from farfield.runs.bench import bench
from farfield.runs.grid.axes import Axis, Expanded, expand, point_name, points, read_axes
from farfield.runs.job import Job, folder_name
from farfield.runs.places import check_place, one_place
from farfield.runs.plan import DEFAULT_SEEDS, Plan, check_variants, make_plan
from farfield.runs.processes import Observer, Silent
from farfield.runs.references import with_references
from farfield.runs.rounds import Progress
from farfield.runs.settings import PlanError
from farfield.runs.share import check_share, read_share
from farfield.runs.sweep import missing_jobs, remove_bench
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import count_runs, runs_made
from farfield.runs.variants import AnyVariant
from farfield.tasks import Task
from farfield.tasks.open_task import open_task


class SweepResult:
    """What a sweep found: `rows` (one per run, with the swept values), `table()`, `report(path)`, `json(path)`."""

    def __init__(self, points: SweepPoints) -> None:
        self.points = points

    @property
    def folder(self) -> Path:
        return self.points.folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.points.rows

    @property
    def failures(self) -> list[dict[str, Any]]:
        return self.points.failures

    def table(self) -> list[dict[str, Any]]:
        """One flat dict per method and point, ready for `pandas.DataFrame`."""
        return self.points.to_dicts()

    def grid(self) -> Grid:
        return self.points.grid()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page with all figures; by default `report.html` in the sweep's folder."""
        return write_sweep_page(self.points, Path(path) if path is not None else self.folder / "report.html")

    def json(self, path: str | Path) -> Path:
        write_json(Path(path), self.rows)
        return Path(path)

    def __str__(self) -> str:
        return self.grid().markdown()


def sweep(
    task: str | Task,
    algorithms: AnyVariant | Iterable[AnyVariant] | None = None,
    *,
    over: Mapping[str, Iterable[Any]] | Sequence[str],
    reach: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    ready: Callable[[Plan], None] = lambda _: None,
    observer: Observer | None = None,
    features: str | None = None,
    image_size: int | None = None,
    rows: int | None = None,
    **options: Any,
) -> SweepResult:
    """Run a bench at every point of a grid: `over={"clients": [3, 10], "gamma": [0, 1e-4, 1e-3]}` has six.

    A parameter of methods makes variants; a method that does not have it stays once, as a flat line. Options of the
    bench (clients, cohort, communications, rounds, partition, validation) make one bench per value. `reach` is the
    validation figure for which the bytes are counted. The other options are those of `farfield.bench`.
    """
    if resume and fresh:
        raise UserError("resume goes on with a sweep and fresh replaces it; give one of the two")
    variants = check_variants(algorithms, options.get("settings"))
    # References stand in a sweep only where they are asked for, as variants: their runs cost as much as others.
    variants = with_references(variants, options.pop("references", None) or False)
    options["references"] = False
    axes = read_axes(over, variants, options)
    made = expand(variants, axes)
    check_place(options.get("on"), options.get("engine", "auto"), options.get("workers"))
    check_share(read_share(options.get("share")), sweep=True)
    read_request(options.get("tune"), options.get("tune_by"), options.get("tune_only"))
    task = open_task(task, features=features, image_size=image_size, rows=rows)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="farfield-"))
    plans = {name: _plan(task, made, {**options, **values}, name) for name, values in _named(axes)}
    observer = observer or Silent()
    with _opened(folder, axes, made, reach, resume=resume, fresh=fresh):
        ready(next(iter(plans.values())))
        together = _Together(observer)
        total = done = 0
        for name, plan in plans.items():
            at = folder / POINTS / folder_name(name, keep="=,+")
            runs = len(list(plan.jobs(task)))
            total, done = total + runs, done + runs - len(missing_jobs(plan, task, at))
            if plan.tuning is not None:
                total, done = total + count_runs(plan, task, at), done + runs_made(plan, task, at)
        observer.begin(total, done)
        with one_place(options.get("on") if done < total else None, options.get("tell")):
            for name, values in _named(axes):
                at = folder / POINTS / folder_name(name, keep="=,+")
                there = (at / BENCH).exists()
                bench(
                    task, [of.variant for of in made], out=at, resume=there, observer=together, **{**options, **values}
                ).report()
    return SweepResult(collect_points(folder, "sweep"))


def _named(axes: Sequence[Axis]) -> list[tuple[str, dict[str, Any]]]:
    return [(point_name(values), values) for values in points(axes)]


def _plan(task: Task, made: Sequence[Expanded], options: Mapping[str, Any], name: str) -> Plan:
    """Make the plan of a point, so that one that cannot work is refused before any work."""
    known = inspect.signature(make_plan).parameters
    given = {key: value for key, value in options.items() if key in known}
    tuning = read_request(options.get("tune"), options.get("tune_by"), options.get("tune_only"))
    seeds = DEFAULT_SEEDS if given.get("seeds") is None else given["seeds"]
    try:
        return make_plan(task, algorithms=[of.variant for of in made], **{**given, "seeds": seeds, "tuning": tuning})
    except PlanError as error:
        raise error if name == "all" else PlanError(f"at {name}: {error}") from error


@contextmanager
def _opened(
    out: Path, axes: Sequence[Axis], made: Sequence[Expanded], reach: float | None, *, resume: bool, fresh: bool
) -> Iterator[None]:
    """Make the folder of a sweep ready and be the only one to write to it.

    Where a sweep is there, the lock comes first: another process may still be at work on it.
    """
    with ExitStack() as held:
        there = is_sweep(out)
        if there:
            held.enter_context(sole_writer(out, patience=0.0))
        _prepare(out, axes, made, reach, resume=resume, fresh=fresh)
        if not there:
            held.enter_context(sole_writer(out, patience=0.0))
        yield


def _prepare(
    out: Path, axes: Sequence[Axis], made: Sequence[Expanded], reach: float | None, *, resume: bool, fresh: bool
) -> None:
    """Make the folder of a sweep ready, or say in one sentence why that cannot be."""
    content: dict[str, Any] = {
        "axes": [{"name": axis.name, "values": list(axis.values), "option": axis.option} for axis in axes],
        "points": [{"folder": folder_name(name, keep="=,+"), "values": values} for name, values in _named(axes)],
        "variants": {of.variant.label: {"base": of.base, "values": of.values} for of in made},
        **({} if reach is None else {"reach": reach}),
    }
    if is_sweep(out) and fresh:
        for point in sorted((out / POINTS).glob("*/")):
            remove_bench(point)
    elif is_sweep(out):
        if not resume:
            raise RecordsError(f"'{out}' holds a sweep already; add --resume to go on or --fresh to replace it")
        there = read_sweep(out)
        before = {of["name"]: of["values"] for of in there["axes"]}
        now = {axis.name: list(axis.values) for axis in axes}
        if set(before) != set(now):
            raise RecordsError(f"'{out}' sweeps {' and '.join(before)}, and here it is {' and '.join(now)}")
        gone = [(name, value) for name, values in before.items() for value in values if value not in now[name]]
        if gone:
            raise RecordsError(
                f"'{out}' has {gone[0][0]}={gone[0][1]}, which is not swept here; values can only be added"
            )
        # Methods that are there and not asked for again stay in the table, as in a bench that grows.
        content["variants"] = {**there["variants"], **content["variants"]}
        if reach is None and "reach" in there:
            content["reach"] = there["reach"]
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordsError(f"'{out}' is not empty and holds no sweep ({SWEEP}); choose another folder for --out")
    elif resume:
        raise RecordsError(f"there is no sweep in '{out}' to resume; omit --resume to start a new one")
    out.mkdir(parents=True, exist_ok=True)
    write_sweep(out, content)


class _Together:
    """Tells an observer of the runs of all benches of a sweep as if they were one."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def begin(self, total: int, done: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        self.observer.progress(progress)

    def finished(self, job: Job, error: str | None) -> None:
        self.observer.finished(job, error)
