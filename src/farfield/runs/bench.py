"""The main job from Python: the same as `farfield bench`, in a call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.runs.engines import check_engine, engine_named, open_engine
from farfield.runs.plan import Plan, check_counts, make_plan
from farfield.runs.settings import check_weights
from farfield.runs.variants import AnyVariant
from farfield.runs.sweep import Observer, missing_jobs, open_sweep, run_sweep
from farfield.records.atomic import write_json
from farfield.report.collect import Sweep, collect
from farfield.report.grid import as_markdown
from farfield.report.page import write_report
from farfield.report.tables import ResultTable, result_table
from farfield.report.values import metric_named
from farfield.tasks import Task
from farfield.tasks.open_task import open_task


class BenchResult:
    """What a bench found: `rows` (one a run), `table()`, `report(path)`, `json(path)`."""

    def __init__(self, sweep: Sweep, metric: str | None = None) -> None:
        self.sweep = sweep
        #: What tables and report lead with: None is accuracy, or the loss of a regression.
        self.metric = metric_named(sweep.plan["kind"], metric)

    @property
    def folder(self) -> Path:
        return self.sweep.folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.sweep.rows

    @property
    def failures(self) -> list[dict[str, Any]]:
        return self.sweep.failures

    def table(self, rule: str | None = None, metric: str | None = None) -> list[dict[str, Any]]:
        """One flat dict a method, ready for `pandas.DataFrame`. `rule` is the selection rule, the first by default."""
        return self.results(rule, metric).to_dicts()

    def results(self, rule: str | None = None, metric: str | None = None) -> ResultTable:
        return result_table(self.sweep, rule or self.sweep.plan["rules"][0], self._metric(metric))

    def report(self, path: str | Path | None = None, metric: str | None = None) -> Path:
        """Write the page; by default `report.html` in the bench's folder."""
        to = Path(path) if path is not None else self.folder / "report.html"
        return write_report(self.sweep, to, metric=self._metric(metric))

    def _metric(self, name: str | None) -> str | None:
        return metric_named(self.sweep.plan["kind"], name) or self.metric

    def json(self, path: str | Path) -> Path:
        write_json(Path(path), self.rows)
        return Path(path)

    def __str__(self) -> str:
        notes = "".join(f"note: {as_markdown(note)}  \n" for note in self.sweep.plan.get("notes", ()))
        return self.results().markdown() + (f"\n{notes}" if notes else "")


def bench(
    task: str | Task,
    algorithms: AnyVariant | Iterable[AnyVariant] | None = None,
    *,
    held_out: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    rounds: int | None = None,
    communications: int | Sequence[int] | None = None,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    evaluate_every: int | None = None,
    rules: Sequence[str] | None = None,
    equal_steps: bool = True,
    quorum: float = 0.5,
    deadline: float | None = None,
    features: str | None = None,
    image_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = "local",
    workers: int | None = None,
    parallel: int | None = None,
    checkpoint_every: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    metric: str | None = None,
) -> BenchResult:
    """Leave-one-domain-out: every method, on every held-out domain, for every seed.

    `algorithms` is a list of variants (or one): names, texts such as "fedprox:mu=0.1", `farfield.method(name, …)`,
    classes and instances of methods, and dicts that give labels: `{"weak": farfield.method("fedprox", mu=0.001)}`.
    `communications` splits the same local epochs into so many rounds, or synchronises after the epochs listed.
    `validation` is the share of source rows kept for validation, or "official" for the data set's own split.
    `features="cached"` puts the features of a frozen backbone in the place of images; `image_size` decodes images at
    another size than 64.
    `engine` says how clients are reached, with the same result: "local", or "flower" for Flower's simulation.
    `settings` are as on the command line: `{"lr": 0.05, "fedprox.mu": 0.1, "model.hidden": [32]}`. Runs go to `out`
    (a temporary folder if none is given) and can be resumed from there. `metric` leads the tables and the report.
    """
    check_weights(settings)
    task = open_task(task, features=features, image_size=image_size)
    plan = make_plan(
        task,
        algorithms=algorithms,
        held_out=held_out,
        seeds=seeds,
        rounds=rounds,
        communications=communications,
        partition=partition,
        clients=clients,
        cohort=cohort,
        validation=validation,
        evaluate_every=evaluate_every,
        rules=rules,
        equal_steps=equal_steps,
        quorum=quorum,
        deadline=deadline,
        settings=settings,
    )
    check_engine(engine, parallel)
    check_counts(workers, parallel, checkpoint_every)
    metric = metric_named(plan.kind, metric)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="farfield-"))
    with open_sweep(plan, folder, resume=resume):
        return execute(
            plan,
            task,
            folder,
            engine=engine,
            workers=workers,
            parallel=parallel,
            checkpoint_every=checkpoint_every,
            observer=observer,
            metric=metric,
        )


def execute(
    plan: Plan,
    task: Task,
    folder: Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    parallel: int | None = None,
    checkpoint_every: int = 10,
    observer: Observer | None = None,
    metric: str | None = None,
) -> BenchResult:
    """Run what is missing of a plan and read the whole back."""
    check_engine(engine, parallel)
    check_counts(workers, parallel, checkpoint_every)
    if engine_named(engine).parallel:
        at_once = parallel if parallel is not None else (1 if (workers or 1) > 1 else os.cpu_count() or 1)
    else:
        at_once = 1
    # A bench that is there already needs no engine, and starting one can take a while.
    name = engine if missing_jobs(plan, task, folder) else "local"
    with open_engine(name, plan, task, workers) as factory:
        run_sweep(
            plan,
            task,
            folder,
            parallel=at_once,
            engine=factory,
            checkpoint_every=checkpoint_every,
            observer=observer,
        )
    return BenchResult(collect(folder, "bench"), metric)
