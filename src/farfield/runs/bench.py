"""The main job: `farfield.bench`, which `farfield bench` calls as well."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from farfield.errors import UserError
from farfield.protocol.leading_metric import check_metric
from farfield.records.atomic import append_row
from farfield.records.bench_folder import COMMANDS
from farfield.records.several_writers import turn
from farfield.report.collect import collect
from farfield.reproducibility.devices import CPU, devices_named, processes_at_once
from farfield.runs.callbacks import Callback, check_callbacks, telling
from farfield.runs.device_checks import check_device, with_precision
from farfield.runs.diagnosis import diagnosis_beside
from farfield.runs.engine_choice import AUTO, choose_engine
from farfield.runs.engines import STACKING, check_engine, engine_here, engine_named, open_engine
from farfield.runs.estimate import estimate, is_long
from farfield.runs.growing import bench_there, planned, variants_asked
from farfield.runs.job import Job
from farfield.runs.places import check_place, open_place
from farfield.runs.plan import DEFAULT_SEEDS, Plan, check_counts
from farfield.runs.processes import Observer, Silent
from farfield.runs.references import Wanted
from farfield.runs.result import BenchResult
from farfield.runs.settings import check_weights, seed_numbers
from farfield.runs.share import check_share, read_share
from farfield.runs.sweep import missing_jobs, open_sweep, record_tuned, run_sweep
from farfield.runs.tuning.candidates import check_optuna
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import run_studies, trials_missing
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
    engine: str = AUTO,
    device: str = "cpu",
    precision: str | None = None,
    workers: int | None = None,
    parallel: int | None = None,
    on: str | None = None,
    share: str | None = None,
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
    `features="cached"` puts the features of a frozen backbone in the place of images, "timm:NAME" those of a model of
    timm; `image_size` decodes images at another size than 64. `rows` takes about so many rows of a
    large task, by domain and class, for a quick look.
    `engine` says how clients are reached, with the same result: "auto" for the faster one of the next two, "local",
    "batched" for all runs as one computation, or "flower" for Flower's simulation; "batched-func" also stacks tiny
    convolutional networks, with other last bits.
    `device` is where clients compute: "cpu", "cuda" (runs take all GPUs in turn), "cuda:1", "mps", or "auto" for what
    is here. `precision` is "float32" or "bfloat16", the setting `model.precision`.
    `on` makes the runs on a Ray cluster: "ray" for a local one or the one that RAY_ADDRESS names, or "ray://HOST:PORT".
    `share` is "K/N" for part K of N processes that make their runs in the same folder.
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
    devices = devices_named(device)
    check_engine(engine, parallel, workers, devices)
    check_place(on, engine, workers, devices)
    part = read_share(share)
    check_share(
        part, without_out=out is None, fresh=fresh, on=on is not None, tune=tune is not None, callbacks=bool(callbacks)
    )
    check_metric(metric)
    settings = with_precision(settings, precision)
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
    task = open_task(task, features=features, image_size=image_size, rows=rows, device=device)
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
    check_device(plan, devices)
    check_share(part, tune=plan.tuning is not None)  # also where the bench that is there was tuned
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="farfield-"))
    with ExitStack() as held:
        added = held.enter_context(open_sweep(plan, folder, resume=resume, fresh=fresh, share=part))
        ready(plan)
        if command is not None:
            with nullcontext() if part is None else turn(folder):
                append_row(folder / COMMANDS, {"command": command})
        jobs_left = missing_jobs(plan, task, folder, part)
        chosen = choose_engine(
            engine, plan, task, jobs_left, workers=workers, parallel=parallel, devices=devices, on=on
        )
        engine, workers = chosen.engine, chosen.workers
        at_once = runs_at_once(engine, workers, parallel, devices)
        if tell is not None:
            probe = can_probe(engine, devices)
            stacked = engine in STACKING
            _announce(
                tell, plan, task, folder, added, jobs_left, at_once, probe=probe, here=on is None, stacked=stacked
            )
        # A bench that is there already needs no engine and no cluster, and starting one can take a while.
        idle = not missing_jobs(plan, task, folder, part) and not trials_missing(plan, task, folder)
        place = held.enter_context(open_place(None if idle else on, tell or (lambda _: None)))
        if plan.tuning is not None:
            before = plan.notes
            plan = run_studies(
                plan,
                task,
                folder,
                parallel=runs_at_once("local", workers, parallel, devices) if on is None else parallel,
                engine=engine_here(engine, workers, devices),
                place=place,
                checkpoint_every=checkpoint_every,
                observer=observer,
            )
            record_tuned(plan, folder)
            for note in plan.notes:
                if tell is not None and note not in before:
                    tell(note)
        jobs = {job: job.folder(folder) for job in plan.jobs(task)}
        with telling(callbacks, plan, folder, jobs, observer or Silent()) as teller:
            name = engine if missing_jobs(plan, task, folder, part) else "local"
            wanted = diagnose if part is None or part.number == 1 else False
            # A process is not forked beside Ray's threads, beside a GPU, or where one process was asked for.
            apart = on is None and engine_named(name).parallel and devices == (CPU,) and parallel != 1
            with (
                diagnosis_beside(plan, task, folder, wanted, apart=apart),
                open_engine(name, plan, task, workers, devices) as opened,
            ):
                run_sweep(
                    plan,
                    task,
                    folder,
                    parallel=at_once if on is None else parallel,
                    engine=opened,
                    place=place,
                    share=part,
                    checkpoint_every=checkpoint_every,
                    observer=teller,
                )
            if part is not None:
                unmade = len(missing_jobs(plan, task, folder, part))
                waiting = len(missing_jobs(plan, task, folder)) - unmade
                return BenchResult(partial(collect, folder, "bench"), unmade=unmade, waiting=waiting)
            result = BenchResult(collect(folder, "bench"))
            teller.end(result)
        return result


def _announce(
    tell: Callable[[str], None],
    plan: Plan,
    task: Task,
    folder: Path,
    added: list[str],
    jobs: list[Job],
    at_once: int,
    *,
    probe: bool,
    here: bool,
    stacked: bool,
) -> None:
    """Say what is added to a bench, and how long a long one will take on this machine."""
    if added:
        tell(f"adding to the bench in '{folder}': {'; '.join(added)}")
    if here and is_long(plan, task, jobs):
        found = estimate(plan, task, jobs, at_once, probe=probe, stacked=stacked)
        if found.worth_telling:
            tell(found.sentence)


def can_probe(engine: str, devices: tuple[torch.device, ...]) -> bool:
    """Return whether rounds can be timed in this process, on one thread of the CPU, as the runs will be made."""
    return engine in (AUTO, "local", *STACKING) and devices == (CPU,)


def runs_at_once(
    engine: str, workers: int | None, parallel: int | None, devices: tuple[torch.device, ...] = (CPU,)
) -> int:
    """Return how many runs are made at the same time.

    One per core, or one per GPU, unless workers share the clients of each run.
    """
    if not engine_named(engine).parallel:
        return 1
    parallel = processes_at_once(devices, parallel)
    if parallel is not None:
        return parallel
    return 1 if (workers or 1) > 1 else os.cpu_count() or 1
