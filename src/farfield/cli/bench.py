"""`farfield bench`: the main job."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.algorithms import use
from farfield.cli.bench_output import plain, print_interrupted, print_result
from farfield.cli.console import messages
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
from farfield.cli.option_values import Metric, comma_list, communication_list, parse_settings, seed_list
from farfield.cli.output_file import check_output
from farfield.cli.place_options import On, ShareOption, print_share
from farfield.cli.progress import SweepDisplay
from farfield.cli.sweep_options import Reach, Sweep, print_sweep, with_losses
from farfield.cli.track_options import Track, callback_warnings, make_trackers
from farfield.cli.tune_options import Tune, TuneBy, TuneOnly
from farfield.errors import UserError
from farfield.protocol.leading_metric import check_metric
from farfield.report.formats import metric_label
from farfield.report.lost_replies import lost_unexpectedly
from farfield.reproducibility.devices import devices_named
from farfield.runs import presets
from farfield.runs.bench import bench as run_bench
from farfield.runs.bench import can_probe, runs_at_once
from farfield.runs.device_checks import with_precision
from farfield.runs.dry_run import dry_run
from farfield.runs.engine_choice import AUTO, choose_engine
from farfield.runs.engines import check_engine
from farfield.runs.grid.axes import read_axes
from farfield.runs.grid.sweep import sweep as run_sweep
from farfield.runs.growing import bench_there, variants_asked
from farfield.runs.places import check_place
from farfield.runs.plan import DEFAULT_ALGORITHMS, DEFAULT_RULES, DEFAULT_SEEDS, Plan, folder_name
from farfield.runs.references import REFERENCES
from farfield.runs.settings import seed_numbers
from farfield.runs.share import check_share, read_share
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import tuning_lines
from farfield.runs.variants import parse_variants
from farfield.tasks.augment import NONE
from farfield.tasks.open_task import has_image_files


def bench(
    task: Annotated[
        str | None, typer.Argument(help="A task; see 'farfield list tasks'. A preset's own by default.")
    ] = None,
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
            "--algorithms",
            "-a",
            help="Methods, with commas or one per -a; 'a+b' puts b's server on a's clients. A method can stand there "
            "several times with other settings: fedprox:mu=0.01,weak=fedprox:mu=0.001. "
            f"Default: {','.join(DEFAULT_ALGORITHMS)}.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Domains to hold out one by one, with commas, or 'all'; 'a+b' holds out two together. Default: the "
            "task's own, or all.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Deal the held-out domains out to so many groups, each held out together: fewer runs with many "
            "domains. Every domain is still measured by itself.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds, or which ones, with commas. Default: 3.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a run; the task's own number by default.")] = None,
    communications: Annotated[
        str | None,
        typer.Option(
            help="Synchronise so often, or after these epochs (with commas), with the same local epochs in all.",
            show_default=False,
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all; one per domain by default.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients drawn for a round; all by default.")] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="How rows become clients: domain, split, dirichlet:BETA, iid. Default: domain, or split "
            "when --clients is given.",
            show_default=False,
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            help="Share of the source rows kept for validation, or 'official' for the data set's own split. "
            "Default: 0.1.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Selection rules, the main one first: source-validation (best validation metric), source-loss, "
            "source-accuracy (the papers' rule), last, leave-one-domain-out (trains inner runs too), oracle. "
            f"Default: {','.join(DEFAULT_RULES)}."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The label or method that differences are to. Default: FedAvg if it is in the bench, else the first "
            "method.",
            show_default=False,
        ),
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(
            help=f"References that stand in the table beside the methods. Default: {','.join(REFERENCES)}.",
            show_default=False,
        ),
    ] = None,
    no_references: Annotated[
        bool, typer.Option("--no-references", help="The methods alone, without references beside them.")
    ] = False,
    metric: Metric = None,
    sweep: Sweep = None,
    reach: Reach = None,
    tune: Tune = None,
    tune_by: TuneBy = None,
    tune_only: TuneOnly = None,
    features: Features = None,
    image_size: ImageSize = None,
    preset: Annotated[
        str | None, typer.Option(help="A paper's settings, see 'farfield list presets'; other options win over it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value: lr=0.05 for all methods, fedprox.mu=0.5 for one, weak.mu=0.1 for a label, model.head=mlp.",
        ),
    ] = None,
    equal_steps: Annotated[
        bool | None,
        typer.Option(
            "--equal-steps/--equal-rounds",
            help="Methods with one step per round get as many rounds as the others make steps (the default), or the "
            "same rounds.",
        ),
    ] = None,
    engine: EngineOption = AUTO,
    device: Device = "cpu",
    precision: Precision = None,
    workers: Workers = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            "-j",
            help="Runs at the same time; one per core by default, of the cluster with --on; on flower always 1.",
        ),
    ] = None,
    on: On = None,
    share: ShareOption = None,
    quorum: Annotated[float, typer.Option(help="Share of a cohort that must reply for a round to count.")] = 0.5,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which a client's reply is too late.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; a new one under runs/ by default.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the bench in --out. Methods, seeds, held-out domains and rounds that it does not have are "
            "added; what is not given stays.",
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the bench in --out, if there is one.")] = False,
    diagnose: Annotated[
        bool | None,
        typer.Option(
            "--diagnose/--no-diagnose",
            help="Write how the domains differ to diagnosis.json, as 'farfield diagnose --quick'; nothing is selected "
            "by it. Default: unless the bench is very short.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write one row per run to this file.")] = None,
    use_file: Annotated[
        list[Path] | None, typer.Option("--use", help="A Python file of yours that registers methods.")
    ] = None,
    track: Track = None,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, the number of runs and how long they take, and run nothing."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; the result only.")] = False,
) -> None:
    """Compare methods on domains they never saw: leave one domain out, for every method, domain and seed."""
    devices = devices_named(device)
    check_engine(engine, parallel, workers, devices)
    check_place(on, engine, workers, devices)
    check_share(
        read_share(share),
        without_out=out is None,
        fresh=fresh,
        on=on is not None,
        tune=tune is not None,
        sweep=bool(sweep),
        callbacks=bool(track),
    )
    check_metric(metric)
    if resume and fresh:
        raise UserError("--resume goes on with a bench and --fresh replaces it; give one of the two")
    if no_references and references is not None:
        raise UserError("--no-references takes none and --references names some; give one of the two")
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the bench to go on with")
    check_output("--json", json_file, [data])
    if dry and sweep:
        raise UserError("--dry-run estimates one bench; omit --sweep, and multiply by the number of its points")
    if reach is not None and not sweep:
        raise UserError("--reach counts bytes at every point of a sweep; give --sweep as well")
    callbacks = make_trackers(track)
    read_request(tune, tune_by, comma_list(tune_only))  # before data is read
    methods = None if algorithms is None else ",".join(algorithms)
    for option, value in (("--algorithms", methods), ("--held-out", held_out), ("--select", select)):
        if value is not None and not comma_list(value):
            raise UserError(f"{option} is empty; omit it for the default")
    for path in use_file or []:
        use(path)
    if task is None and data is None and preset is None:
        raise UserError("give a task, a --preset that names one, or --data; see 'farfield list tasks'")
    name = presets.load(str(preset)).task if task is None and data is None else task
    given = {
        "algorithms": None if methods is None else parse_variants(methods),
        "references": False if no_references else comma_list(references),
        "held_out": comma_list(held_out),
        "folds": folds,
        "seeds": None if seeds is None else seed_list(seeds),
        "rounds": rounds,
        "communications": communication_list(communications),
        "partition": partition,
        "clients": clients,
        "cohort": cohort,
        "validation": validation,
        "evaluate_every": evaluate_every,
        "rules": comma_list(select),
        "metric": metric,
        "baseline": baseline,
        "quorum": quorum,
        "deadline": deadline,
        "equal_steps": equal_steps,
        "settings": with_precision(parse_settings(settings or []), precision),
    }
    own_rows = preset is None or _own_rows(presets.load(preset), name, data)
    chosen = presets.with_preset(preset, given, features=features, image_size=image_size, own_rows=own_rows)
    there = bench_there(out) if resume and out is not None and not sweep else None
    variants = variants_asked(  # before data is read for them
        there,
        chosen.options.get("algorithms"),
        chosen.settings,
        chosen.options.get("baseline"),
        chosen.options.get("references"),
    )
    if sweep:
        for axis in read_axes(sweep, variants, given):
            chosen.options.pop(axis.name, None)  # of a preset
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
    loaded = find_task(name, data, options, features, chosen.image_size, chosen.settings, part_rows, device)
    loaded = replace(loaded, notes=(*loaded.notes, *chosen.notes))
    folder = out if out is not None else Path("runs") / f"{folder_name(loaded.name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    started = time.monotonic()

    def tell(sentence: str) -> None:
        messages.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def ready(plan: Plan) -> None:
        print_reading(replace(loaded, notes=plan.notes), plan.held_out, quiet=quiet)
        if not quiet:
            left_out = [f"{label} is left out: {why}" for label, why in plan.left_out.items()]
            for line in (_model_line(plan), _metric_line(plan), *left_out, *tuning_lines(plan, loaded)):
                messages.print(line, highlight=False, soft_wrap=True, markup=False)

    if dry:
        first = seed_numbers(chosen.options.get("seeds", DEFAULT_SEEDS))[0] if there is None else there["seeds"][0]
        tuning = read_request(tune, tune_by, comma_list(tune_only), seed=first)
        found = dry_run(
            loaded,
            {**chosen.options, "tuning": tuning},
            out,
            resume=resume,
            fresh=fresh,
            share=read_share(share),
            at_once=runs_at_once(engine, workers, parallel, devices),
            probe=can_probe(engine, devices),
            choose=lambda plan, jobs: choose_engine(
                engine, plan, loaded, jobs, workers=workers, parallel=parallel, devices=devices, on=on
            ),
        )
        ready(found.plan)
        for line in [*found.lines(), "nothing was run (--dry-run)"]:
            plain(line)
        return

    try:
        with callback_warnings(), SweepDisplay(messages, quiet) as display:
            how: dict[str, Any] = {
                **chosen.options,
                "engine": engine,
                "device": device,
                "workers": workers,
                "parallel": parallel,
                "on": on,
                "share": share,
                "checkpoint_every": checkpoint_every,
                "out": folder,
                "resume": resume,
                "fresh": fresh,
                "ready": ready,
                "tell": tell,
                "command": shlex.join(["farfield", *sys.argv[1:]]),
                "observer": display,
                "callbacks": callbacks,
                "diagnose": diagnose,
                "tune": tune,
                "tune_by": tune_by,
                "tune_only": comma_list(tune_only),
            }
            if sweep:
                swept = run_sweep(loaded, over=sweep, reach=reach, **how)
            else:
                result = run_bench(loaded, **how)
    except KeyboardInterrupt:
        print_interrupted(folder)
        raise typer.Exit(130) from None
    if sweep:
        print_sweep(swept, swept.report(), time.monotonic() - started)
        if json_file is not None:
            swept.json(json_file)
        if swept.failures or swept.points.missing or (with_losses(swept) and deadline is None):
            raise typer.Exit(1)
        return
    if share is not None and result.waiting:
        print_share(share, result.waiting, folder)
        if result.unmade:
            raise typer.Exit(1)
        return
    page = result.report()
    if json_file is not None:
        result.json(json_file)
    print_result(result, page, time.monotonic() - started)
    part = {"--features": features, "--image-size": image_size, "--rows": part_rows}
    words = ["farfield", "train", "--from", str(folder), *typed({"--data": data, **options.by_name, **part})]
    plain(f"to train what it recommends: {shlex.join([*words, '--out', 'model'])}")
    if result.failures or result.sweep.missing or lost_unexpectedly(result.sweep):
        raise typer.Exit(1)


def _own_rows(preset: presets.Preset, name: str | None, data: Path | None) -> bool:
    """Whether the rows are such as a preset's network is for: those of its task, or other images if it takes images."""
    if data is None and name == preset.task:
        return True
    if preset.image_size is None:
        return False
    return data.is_dir() if data is not None else name is not None and has_image_files(name)


def _model_line(plan: Plan) -> str:
    """Describe in one line what is trained, so that a network that nobody has chosen is at least seen."""
    shape = " × ".join(map(str, plan.model.input_shape))
    augmented = "" if plan.augment == NONE else f"; augmentation: {plan.augment}"
    return f"model: {presets.describe_network(plan.model.model_dump())}, on examples of {shape}{augmented}"


def _metric_line(plan: Plan) -> str:
    """Name the metric that leads, and why."""
    return f"metric: {metric_label(plan.metric, plan.kind)} ({plan.metric_reason})"
