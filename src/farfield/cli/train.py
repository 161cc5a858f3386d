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
)
from farfield.cli.engine_options import EngineOption, Workers
from farfield.cli.image_options import Features, ImageSize
from farfield.cli.option_values import communication_list, parse_settings
from farfield.cli.progress import Heartbeat, bars, figures
from farfield.cli.track_options import Track, callback_warnings, make_trackers
from farfield.runs.plan import check_one_variant
from farfield.runs.rounds import Progress as RunProgress
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
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, as for bench.")] = None,
    engine: EngineOption = "local",
    workers: Workers = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out.")] = False,
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
    track: Track = None,
) -> None:
    """Train one method on all domains and write a model folder: weights and a card."""
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
    variant = check_one_variant(["fedavg"] if algorithms is None else algorithms, given)  # before data is read for it
    loaded = find_task(task, data, options, features, image_size, given, rows=part_rows)
    bar = bars(messages, disable=not messages.is_terminal)
    line = bar.add_task(escape(f"{variant} on {loaded.name}"), total=rounds, figures="", start=False)
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
                variant,
                out,
                rounds=rounds,
                communications=communication_list(communications),
                seed=seed,
                partition=partition,
                clients=clients,
                cohort=cohort,
                settings=given,
                engine=engine,
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
        "--set": settings,
        "--use": use_file,
    }
    about = load_model(folder).about
    output.print(
        f"model: {folder} (round {about['round']}, source validation {about['source_validation']:.4f})\n"
        f"how it does at a site that took no part: {_bench_command(task, data, options, others)}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _bench_command(task: str | None, data: Path | None, table: TableOptions, others: Mapping[str, object]) -> str:
    """The bench of the same question: whatever was given to `train` and changes the answer is given to it as well."""
    words = ["farfield", "bench", *([] if task is None else [task])]
    given: dict[str, object] = {
        "--data": data,
        "--label": table.label,
        "--domain": table.domain,
        "--drop": table.drop,
        "--categorical": table.categorical,
        "--drop-missing-labels": table.drop_missing_labels,
        "--least-rows": table.least_rows,
        "--group": table.group,
        "--kind": table.kind,
        "--drop-missing-domains": table.drop_missing_domains,
        "--encoding": table.encoding,
        "--sheet": table.sheet,
        **others,
    }
    for option, value in given.items():
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [word for item in value for word in (option, str(item))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)
