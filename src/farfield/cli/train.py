"""`farfield train`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from farfield.algorithms import use
from farfield.cli.console import messages, output
from farfield.cli.data_options import (
    Categorical,
    Data,
    DomainColumn,
    Drop,
    DropMissingDomains,
    DropMissingLabels,
    Encoding,
    Group,
    Kind,
    Label,
    LeastRows,
    RowsOption,
    Sheet,
    TableOptions,
    find_task,
    print_reading,
    typed,
)
from farfield.cli.engine_options import Device, EngineOption, Precision, Workers
from farfield.cli.image_options import Features, ImageSize
from farfield.cli.losses import print_losses
from farfield.cli.option_values import Metric, comma_list, communication_list, parse_settings
from farfield.cli.progress import Heartbeat, bars, figures
from farfield.cli.track_options import Track, callback_warnings, make_trackers
from farfield.errors import UserError
from farfield.printable import one_line
from farfield.records import RunFolder
from farfield.reproducibility.devices import devices_named
from farfield.runs.engine_choice import AUTO
from farfield.runs.plan import check_one_variant
from farfield.runs.rounds import Progress as RunProgress
from farfield.tasks import names as task_names
from farfield.trained.from_bench import bench_choice
from farfield.trained.model_folder import load_model
from farfield.trained.training import train as train_model


def train(
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    task: Annotated[str | None, typer.Argument(help="A task; see 'farfield list tasks'.")] = None,
    data: Data = None,
    label: Label = None,
    domain: DomainColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    drop_missing_labels: DropMissingLabels = False,
    least_rows: LeastRows = None,
    group: Group = None,
    kind: Kind = None,
    drop_missing_domains: DropMissingDomains = False,
    encoding: Encoding = None,
    sheet: Sheet = None,
    part_rows: RowsOption = None,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "-a",
            help="One method, a composition 'a+b', or a variant: fedprox:mu=0.01. Default: fedavg.",
            show_default=False,
        ),
    ] = None,
    from_bench: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="The folder of a bench: train with the settings that it chose, and carry its held-out figures on the "
            "card. Your own data is given again with --data.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="With --from: a method or label of the bench. Default: the one that its report recommends."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds; the task's own number by default.")] = None,
    communications: Annotated[
        str | None,
        typer.Option(help="As for bench: how often to synchronise, or after which epochs.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    clients: Annotated[int | None, typer.Option(help="Clients in all; one per domain by default.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients drawn for a round; all by default.")] = None,
    partition: Annotated[str | None, typer.Option(help="domain, split, dirichlet:BETA or iid.")] = None,
    features: Features = None,
    image_size: ImageSize = None,
    metric: Metric = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="The rule that keeps a round: source-validation, source-loss, source-accuracy or last. Default: "
            "source-validation, and with --from the bench's.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, as for bench.")] = None,
    engine: EngineOption = AUTO,
    device: Device = "cpu",
    precision: Precision = None,
    workers: Workers = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out.")] = False,
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
    track: Track = None,
) -> None:
    """Train one method on all domains and write a model folder: weights and a card."""
    devices_named(device)  # before data is read
    for path in use_file or []:
        use(path)
    callbacks = make_trackers(track)
    options = TableOptions(
        label,
        domain,
        drop or (),
        categorical or (),
        drop_missing_labels,
        least_rows,
        group,
        kind,
        drop_missing_domains,
        encoding,
        sheet,
    )
    given = parse_settings(settings or [])
    if from_bench is None and method is not None:
        raise UserError("--method names a method of the bench that --from gives; without it, use --algorithm")
    if from_bench is not None and algorithms is not None:
        raise UserError("--from takes the method of a bench; name it with --method instead of --algorithm")
    choice = None if from_bench is None else bench_choice(from_bench, method)
    if choice is None:
        variant = check_one_variant(["fedavg"] if algorithms is None else algorithms, given)  # before data is read
        name = task
    else:
        variant = choice.variant
        name = choice.task if task is None and data is None else task
        if data is None and name not in task_names():
            raise UserError(f"the bench in '{from_bench}' is of data of your own; give it again with --data")
    loaded = find_task(name, data, options, features, image_size, given, part_rows, device)
    if choice is not None:
        choice.check_data(loaded)
        messages.print(one_line(choice.sentence), highlight=False, soft_wrap=True, markup=False)
    bar = bars(messages, disable=not messages.is_terminal)
    line = bar.add_task(escape(one_line(f"{variant} on {loaded.name}")), total=rounds, figures="", start=False)
    heartbeat = Heartbeat(messages)

    def watch(progress: RunProgress) -> None:
        if not messages.is_terminal:
            heartbeat.hear(progress)
        bar.start()
        bar.start_task(line)
        bar.update(line, total=progress.rounds, completed=progress.round, figures=figures(progress))

    try:
        with callback_warnings():
            folder = train_model(
                loaded,
                None if choice is not None else variant,
                out,
                from_bench=choice,
                metric=metric,
                rules=comma_list(select),
                rounds=rounds,
                communications=communication_list(communications),
                seed=seed,
                partition=partition,
                clients=clients,
                cohort=cohort,
                settings=given,
                engine=engine,
                device=device,
                precision=precision,
                workers=workers,
                checkpoint_every=checkpoint_every,
                resume=resume,
                ready=lambda plan: print_reading(replace(loaded, notes=plan.notes), ()),
                watch=watch,
                callbacks=callbacks,
            )
    except KeyboardInterrupt:
        messages.print(f"\ninterrupted; to go on, give the same command with --resume (--out {out})", highlight=False)
        raise typer.Exit(130) from None
    finally:
        bar.stop()
    others = {
        "--rows": part_rows,
        "--algorithms": variant,
        "--features": features,
        "--image-size": image_size,
        "--rounds": rounds,
        "--communications": communications,
        "--clients": clients,
        "--cohort": cohort,
        "--partition": partition,
        "--select": select,
        "--set": settings,
        "--precision": precision,
        "--use": use_file,
    }
    about = load_model(folder).about
    where = f"{folder}/README.md" if choice is not None else _bench_command(task, data, options, others)
    print_losses(RunFolder(folder / "run").result or {})
    output.print(
        f"model: {folder} (round {about['round']}, source validation {about['source_validation']:.4f})\n"
        f"how it does at a site that took no part: {where}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _bench_command(task: str | None, data: Path | None, table: TableOptions, others: Mapping[str, object]) -> str:
    """The bench of the same question: whatever was given to `train` and changes the answer is given to it as well."""
    words = ["farfield", "bench", *([] if task is None else [task])]
    return shlex.join([*words, *typed({"--data": data, **table.by_name, **others})])
