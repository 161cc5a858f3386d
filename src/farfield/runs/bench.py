"""The main job: `farfield.bench`, which `farfield bench` calls as well."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.protocol.leading_metric import check_metric
from farfield.records.atomic import append_row
from farfield.records.bench_folder import COMMANDS
from farfield.report.collect import collect
from farfield.runs.callbacks import Callback, check_callbacks, telling
from farfield.runs.diagnosis import attach_diagnosis
from farfield.runs.engines import BatchedEngine, LocalEngine, check_engine, engine_named, open_engine
from farfield.runs.estimate import estimate, is_long
from farfield.runs.growing import bench_there, planned, variants_asked
from farfield.runs.plan import DEFAULT_SEEDS, Plan, check_counts
from farfield.runs.processes import Observer, Silent
from farfield.runs.references import Wanted
from farfield.runs.result import BenchResult
from farfield.runs.settings import check_weights, seed_numbers
from farfield.runs.sweep import missing_jobs, open_sweep, record_tuned, run_sweep
from farfield.runs.tuning.candidates import check_optuna
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import run_studies
from farfield.runs.variants import AnyVariant
from farfield.tasks import Task
from farfield.tasks.open_task import open_task

__all__ = ["BenchResult", "bench"]


def bench(
    task: str | Task,
    algorithms: AnyVariant | Iterable[AnyVariant] | None = None,
    *,
    references: Wanted | None = None,
    held_out: str | Sequence[str | Sequence[str]] | None = None,
    folds: int | None = None,
    seeds: int | Sequence[int] | None = None,
    rounds: int | None = None,
    communications: int | Sequence[int] | None = None,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    evaluate_every: int | None = None,
    rules: str | Sequence[str] | None = None,
    baseline: str | None = None,
    equal_steps: bool = True,
    quorum: float = 0.5,
    deadline: float | None = None,
    features: str | None = None,
    image_size: int | None = None,
    rows: int | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = "local",
    workers: int | None = None,
    parallel: int | None = None,
    checkpoint_every: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    ready: Callable[[Plan], None] = lambda _: None,
    tell: Callable[[str], None] | None = None,
    command: str | None = None,
    observer: Observer | None = None,
    callbacks: Sequence[Callback] = (),
    metric: str | None = None,
    tune: int | None = None,
    tune_by: str | None = None,
    tune_only: str | Sequence[str] | None = None,
    diagnose: bool | None = None,
) -> BenchResult:
    """Run leave-one-domain-out: every variant, on every held-out domain, for every seed.

    `algorithms` is a list of variants (or one): names, texts such as "fedprox:mu=0.1", `farfield.method(name, …)`,
    classes and instances of methods, and dicts that give labels: `{"weak": farfield.method("fedprox", mu=0.001)}`.
    `references` puts `prior`, `erm`, `local-only` and `fedavg` beside them: True for all, False for none, or names. By
    default a new bench has all of them, and one that is resumed those that it has.
    `held_out` and `rules` are lists of names, or one name. Domains that are held out together are one entry of
    `held_out`, "a+b" or a list; `folds` deals the held-out domains out to so many groups.
    `baseline` is the label or the method that differences are to: FedAvg by default, else the first variant.
    `communications` splits the same local epochs into so many rounds, or synchronises after the epochs listed.
    `validation` is the share of source rows kept for validation, or "official" for the data set's own split.
    `features="cached"` puts the features of a frozen backbone in the place of images; `image_size` decodes images at
    another size than 64. `rows` takes about so many rows of a large task, by domain and class, for a quick look.
    `engine` says how clients are reached, with the same result: "local", "batched" for all runs as one computation, or
    "flower" for Flower's simulation.
    `settings` are as on the command line: `{"lr": 0.05, "fedprox.mu": 0.1, "model.hidden": [32]}`. Runs go to `out`
    (a temporary folder if none is given). `resume` goes on with a bench that is there and adds the methods, seeds,
    held-out domains and rounds that it does not have; what is not given stays as it is there. `fresh` replaces it.
    `metric` leads selection, tables and report; None or "auto" takes the one that fits the task. `ready` is called when
    everything was checked, before the first run, and `tell` with what is added and
    how long a long bench will take, which is measured; `observer` is told of each run,
    `callbacks` of each round too (trackers, `farfield.Callback`). `diagnose` writes how the domains differ beside the
    runs (`diagnosis.json`), by default where it takes a small part of the time; no run reads it. `tune` tries so many
    settings of every method before the runs, for each held-out domain on its sources alone, compared by `tune_by`
    ("source-validation" or "leave-one-domain-out"); `tune_only` names the parameters.
    """
    if resume and fresh:
        raise UserError("resume goes on with a bench and fresh replaces it; give one of the two")
    check_engine(engine, parallel, workers)
    check_metric(metric)
    check_counts(workers, parallel, checkpoint_every)
    if resume and out is None:
        raise UserError("resume needs out, the folder of the bench to go on with")
    there = bench_there(Path(out)) if resume and out is not None else None
    variants = variants_asked(there, algorithms, settings, baseline, references)
    first = seed_numbers(DEFAULT_SEEDS if seeds is None else seeds)[0] if there is None else there["seeds"][0]
    tuning = read_request(tune, tune_by, tune_only, seed=first)
    if tuning is not None:
        check_optuna(tuning.trials)
    callbacks = check_callbacks(callbacks)
    if not isinstance(task, Task) or image_size is not None:  # else its images are decoded already
        check_weights(settings)
    task = open_task(task, features=features, image_size=image_size, rows=rows)
    options: dict[str, Any] = {
        "algorithms": None if algorithms is None else variants,
        "references": references,
        "held_out": held_out,
        "folds": folds,
        "seeds": seeds,
        "rounds": rounds,
        "communications": communications,
        "partition": partition,
        "clients": clients,
        "cohort": cohort,
        "validation": validation,
        "evaluate_every": evaluate_every,
        "rules": rules,
        "metric": metric,
        "baseline": baseline,
        "equal_steps": equal_steps,
        "quorum": quorum,
        "deadline": deadline,
        "settings": settings,
        "tuning": tuning,
    }
    plan = planned(task, there, options)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="farfield-"))
    with open_sweep(plan, folder, resume=resume, fresh=fresh) as added:
        ready(plan)
        if command is not None:
            append_row(folder / COMMANDS, {"command": command})
        at_once = runs_at_once(engine, workers, parallel)
        if tell is not None:
            _announce(tell, plan, task, folder, added, at_once, probe=engine == "local")
        attach_diagnosis(plan, task, folder, diagnose)
        if plan.tuning is not None:
            before = plan.notes
            plan = run_studies(
                plan,
                task,
                folder,
                parallel=runs_at_once("local", workers, parallel),
                engine=BatchedEngine() if engine == "batched" else LocalEngine(workers or 1),
                checkpoint_every=checkpoint_every,
                observer=observer,
            )
            record_tuned(plan, folder)
            for note in plan.notes:
                if tell is not None and note not in before:
                    tell(note)
        jobs = {job: job.folder(folder) for job in plan.jobs(task)}
        with telling(callbacks, plan, folder, jobs, observer or Silent()) as teller:
            # A bench that is there already needs no engine, and starting one can take a while.
            name = engine if missing_jobs(plan, task, folder) else "local"
            with open_engine(name, plan, task, workers) as opened:
                run_sweep(
                    plan,
                    task,
                    folder,
                    parallel=at_once,
                    engine=opened,
                    checkpoint_every=checkpoint_every,
                    observer=teller,
                )
            result = BenchResult(collect(folder, "bench"))
            teller.end(result)
        return result


def _announce(
    tell: Callable[[str], None], plan: Plan, task: Task, folder: Path, added: list[str], at_once: int, *, probe: bool
) -> None:
    """Say what is added to a bench, and how long a long one will take."""
    if added:
        tell(f"adding to the bench in '{folder}': {'; '.join(added)}")
    jobs = missing_jobs(plan, task, folder)
    if is_long(plan, task, jobs):
        found = estimate(plan, task, jobs, at_once, probe=probe)
        if found.worth_telling:
            tell(found.sentence)


def runs_at_once(engine: str, workers: int | None, parallel: int | None) -> int:
    """Return how many runs are made at the same time; one per core unless workers share the clients of each run."""
    if not engine_named(engine).parallel:
        return 1
    if parallel is not None:
        return parallel
    return 1 if (workers or 1) > 1 else os.cpu_count() or 1
