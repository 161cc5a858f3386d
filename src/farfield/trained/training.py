"""One method on all domains: the model that is put to use, with a card that says where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.records import RecordsError, RunFolder
from farfield.reproducibility.devices import computing_on, devices_named
from farfield.runs.callbacks import Callback, check_callbacks, telling
from farfield.runs.device_checks import check_device, with_precision
from farfield.runs.engine_choice import AUTO, choose_engine
from farfield.runs.engines import check_engine, open_engine
from farfield.runs.plan import Job, Plan, check_counts, check_one_variant, make_plan
from farfield.runs.processes import Silent
from farfield.runs.rounds import Progress, Watch, run_difference
from farfield.runs.run_data import run_data
from farfield.runs.settings import PlanError, check_weights
from farfield.runs.single_run import run_job
from farfield.runs.source_schema import source_schema
from farfield.runs.variants import AnyVariant
from farfield.tasks import Task
from farfield.tasks.open_task import open_task
from farfield.trained.card import write_card
from farfield.trained.from_bench import BenchChoice, bench_choice
from farfield.trained.model_folder import Best


def train(
    task: str | Task | None = None,
    algorithm: AnyVariant | None = None,
    out: str | Path = "model",
    *,
    from_bench: str | Path | BenchChoice | None = None,
    rounds: int | None = None,
    communications: int | Sequence[int] | None = None,
    seed: int = 0,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    metric: str | None = None,
    rules: str | Sequence[str] | None = None,
    features: str | None = None,
    image_size: int | None = None,
    rows: int | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = AUTO,
    device: str = "cpu",
    precision: str | None = None,
    workers: int | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    ready: Callable[[Plan], None] = lambda _: None,
    watch: Watch = lambda _: None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train on every domain and keep the model of the round that a selection rule chooses. Returns the folder.

    `algorithm` is one variant: a name, a text such as 'fedprox:mu=0.1', `farfield.method(…)`, a class or an instance.
    `from_bench` is the folder of a bench: its settings are taken, `algorithm` is a label in it (or None for the method
    that its report recommends), and the model's card carries its held-out figures. A `task` of your own data is given
    again; a registered one is opened by name. What is given besides wins over the bench.
    `rules` has the selection rule that keeps a round, by default "source-validation": the best `metric` on the sources'
    validation rows. Of several rules the first that is not an oracle counts, as in the first table of a bench.
    `device` and `precision` are as for `farfield.bench`; of several GPUs the first is taken.
    `ready` is called when everything was checked, before the first round. `callbacks` are told of each round.
    """
    devices = devices_named(device)[:1]
    settings = with_precision(settings, precision)
    if from_bench is not None:
        choice = from_bench if isinstance(from_bench, BenchChoice) else bench_choice(from_bench, _label(algorithm))
        given: dict[str, Any] = {"rounds": rounds, "partition": partition, "clients": clients, "cohort": cohort}
        given |= {"metric": metric, "rules": rules}
        options = {**choice.options, **{name: value for name, value in given.items() if value is not None}}
        rounds, metric, rules = options["rounds"], options["metric"], options.get("rules")
        partition, clients, cohort = (options.get(name) for name in ("partition", "clients", "cohort"))
        validation = options["validation"]
        settings = {**options["settings"], **(settings or {})}
        algorithm, task = choice.variant, choice.task if task is None else task
    else:
        choice = None
    if task is None:
        raise PlanError("give a task to train on, or the folder of a bench of a registered task")
    variant = check_one_variant("fedavg" if algorithm is None else algorithm, settings)
    label = variant.label
    check_weights(settings)
    task = open_task(task, features=features, image_size=image_size, rows=rows, device=device)
    if choice is not None:
        choice.check_data(task)
    out = Path(out)
    check_engine(engine, None, workers, devices)
    check_counts(workers, None, checkpoint_every)
    callbacks = check_callbacks(callbacks)
    plan = make_plan(
        task,
        algorithms=variant,
        seeds=[seed],
        rounds=rounds,
        communications=communications,
        partition=partition,
        clients=clients,
        cohort=cohort,
        validation=validation,
        metric=metric,
        rules=rules,
        evaluate_every=1,
        equal_steps=False,
        all_train=True,
        settings=settings,
    )
    check_device(plan, devices)
    if not plan.algorithm(label).one_model:
        raise PlanError(f"{label} gives one model per client and no common one to keep; train another method")
    job = Job(label, None, seed)
    chosen = choose_engine(engine, plan, task, [job], workers=workers, devices=devices)
    folder = out / "run"
    config = plan.job_config(job, source_schema(task, task.domains))
    _check_folder(out, folder, config, resume)
    data = run_data(plan, task, job)
    best = Best(out, plan, task.outline(), label, data.fitted, data.schema)
    ready(plan)
    if callbacks and not RunFolder(folder).exists:  # a tracker writes to the folder before the run does
        RunFolder(folder).create(config)

    with telling(callbacks, plan, folder, {job: folder}, Silent()) as teller:

        def watch_and_tell(progress: Progress) -> None:
            teller.progress(progress)
            watch(progress)

        teller.start()
        with open_engine(chosen.engine, plan, task, chosen.workers, devices) as opened, computing_on(devices[0]):
            result = run_job(
                plan,
                task,
                job,
                folder,
                engine=opened,
                checkpoint_every=checkpoint_every,
                watch=watch_and_tell,
                on_better=best.keep,
            )
        teller.run_ended(job, None)
    write_card(out, plan, task.outline(), job, result, bench=None if choice is None else choice.card)
    return out


def _label(algorithm: AnyVariant | None) -> str | None:
    if algorithm is None or isinstance(algorithm, str):
        return algorithm
    raise PlanError("a bench's method is named by its label, a text; give its settings with settings={…}")


def _check_folder(out: Path, folder: Path, config: Mapping[str, Any], resume: bool) -> None:
    run = RunFolder(folder)
    if run.exists:
        changed = run_difference(run.config, config)
        if changed:
            raise RecordsError(
                f"'{out}' holds another training: {changed}; choose another --out, or leave the setting as it was "
                "and add --resume"
            )
        if not resume:
            raise RecordsError(f"'{out}' holds this training already; add --resume to go on, or choose another --out")
    elif out.exists() and any(out.iterdir()):
        raise RecordsError(f"'{out}' is not empty and holds no training; choose another folder for --out")
    elif resume:
        raise RecordsError(f"there is no training in '{out}' to resume; omit --resume to start a new one")
