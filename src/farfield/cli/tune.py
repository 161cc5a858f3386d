"""`farfield tune`: the best settings of methods, and every trial."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

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
from farfield.cli.engine_options import Workers
from farfield.cli.image_options import Features, ImageSize
from farfield.cli.option_values import Metric, comma_list, communication_list, parse_settings
from farfield.cli.output_file import check_output
from farfield.cli.place_options import On
from farfield.cli.progress import SweepDisplay
from farfield.cli.tune_options import TuneBy, TuneOnly
from farfield.errors import UserError
from farfield.printable import one_line
from farfield.records.atomic import write_json
from farfield.runs.bench import runs_at_once
from farfield.runs.places import check_place
from farfield.runs.plan import Plan, check_variants, folder_name
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import tuning_lines
from farfield.runs.tuning.tune import BEST
from farfield.runs.tuning.tune import tune as run_tuning
from farfield.runs.variants import parse_variants


def tune(
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
        typer.Option("--algorithms", "-a", help="Methods, as for bench. Default: fedavg.", show_default=False),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", help="Settings to try of every method.")] = 10,
    metric: Metric = None,
    by: TuneBy = None,
    only: TuneOnly = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Domains to hold out, one tuning per domain, with commas, or 'all'. Default: every domain "
            "trains, for a model that is put to use.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the candidates and of the trials' runs.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a trial; the task's own number by default.")] = None,
    communications: Annotated[
        str | None,
        typer.Option(help="As for bench: how often to synchronise, or after which epochs.", show_default=False),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all; one per domain by default.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients drawn for a round; all by default.")] = None,
    partition: Annotated[str | None, typer.Option(help="domain, split, dirichlet:BETA or iid.")] = None,
    validation: Annotated[str, typer.Option(help="Share of the source rows for validation, or 'official'.")] = "0.1",
    features: Features = None,
    image_size: ImageSize = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, as for bench. What is set is not tuned.")
    ] = None,
    workers: Workers = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel", "-j", help="Runs at the same time; one per core by default, of the cluster with --on."
        ),
    ] = None,
    on: On = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder for the trials; a new one under runs/ by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the tuning in --out.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the tuning in --out, if there is one.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write one row per trial to this file.")] = None,
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; the result only.")] = False,
) -> None:
    """Find settings of methods, with as many trials for each, on source domains alone."""
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the tuning to go on with")
    check_place(on, "local", workers)
    check_output("--json", json_file, [data])
    read_request(trials, by, comma_list(only))
    for path in use_file or []:
        use(path)
    given = parse_settings(settings or [])
    variants = check_variants(parse_variants(",".join(algorithms or ["fedavg"])), given)  # before data is read for them
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
    loaded = find_task(task, data, options, features, image_size, given, rows=part_rows)
    name = f"tune-{folder_name(loaded.name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = out if out is not None else Path("runs") / name

    def ready(plan: Plan) -> None:
        print_reading(replace(loaded, notes=plan.notes), plan.held_out, quiet=quiet)
        for line in [] if quiet else tuning_lines(plan, loaded):
            messages.print(one_line(line), highlight=False, soft_wrap=True, markup=False)

    try:
        with SweepDisplay(messages, quiet) as display:
            result = run_tuning(
                loaded,
                variants,
                trials=trials,
                by=by,
                only=comma_list(only),
                held_out=comma_list(held_out),
                seed=seed,
                rounds=rounds,
                metric=metric,
                communications=communication_list(communications),
                partition=partition,
                clients=clients,
                cohort=cohort,
                validation=validation,
                settings=given,
                workers=workers or 1,
                parallel=parallel if on is not None else runs_at_once("local", workers, parallel),
                on=on,
                checkpoint_every=checkpoint_every,
                out=folder,
                resume=resume,
                fresh=fresh,
                ready=ready,
                tell=lambda sentence: messages.print(sentence, highlight=False, soft_wrap=True, markup=False),
                observer=display,
            )
    except KeyboardInterrupt:
        messages.print(f"\ninterrupted; to go on, give the same command with --out {folder} --resume", highlight=False)
        raise typer.Exit(130) from None
    for line in result.lines():
        output.print(one_line(line), highlight=False, soft_wrap=True, markup=False)
    if json_file is not None:
        write_json(json_file, result.trials)
    if held_out is None:
        messages.print(
            "every domain took part, so these settings are for 'farfield train'; a bench tunes with --tune for each "
            "held-out domain by itself",
            highlight=False,
            soft_wrap=True,
        )
    output.print(f"best settings: {folder / BEST}", highlight=False, soft_wrap=True, markup=False)
