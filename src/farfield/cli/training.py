"""`farfield train` and `farfield predict`."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from farfield.algorithms import use
from farfield.bench import load_model
from farfield.bench import train as train_model
from farfield.bench.job import Progress as RunProgress
from farfield.bench.training import TrainedModel
from farfield.cli.console import messages, output
from farfield.cli.data import (
    Categorical,
    Data,
    DomainColumn,
    Drop,
    DropMissingLabels,
    Label,
    LeastRows,
    TableOptions,
    find_task,
)
from farfield.cli.images import Features, ImageSize
from farfield.cli.settings import communication_list, parse_settings
from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.tasks.words import FittedWords


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
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="A method, or a composition 'a+b'.")] = "fedavg",
    rounds: Annotated[int | None, typer.Option(help="Rounds; the task's own number by default.")] = None,
    communications: Annotated[
        str | None,
        typer.Option(help="As for bench: how often to synchronise, or after which epochs.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    clients: Annotated[int | None, typer.Option(help="Clients in all; one a domain by default.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients drawn for a round; all by default.")] = None,
    partition: Annotated[str | None, typer.Option(help="domain, split, dirichlet:BETA or iid.")] = None,
    features: Features = None,
    image_size: ImageSize = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, as for bench.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that share the clients.")] = 1,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out.")] = False,
    use_file: Annotated[list[Path] | None, typer.Option("--use", help="A Python file that registers methods.")] = None,
) -> None:
    """Train one method on all domains and write a model folder: weights and a card."""
    for path in use_file or []:
        use(path)
    options = TableOptions(label, domain, drop or (), categorical or (), drop_missing_labels, least_rows)
    loaded = find_task(task, data, options, features, image_size)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    )
    line = bar.add_task(f"{algorithm} on {loaded.name}", total=rounds, figures="")

    def watch(progress: RunProgress) -> None:
        bar.start()
        loss = "" if progress.loss is None else f"loss {progress.loss:.3f}"
        validation = "" if progress.validation is None else f"source val. {progress.validation:.3f}"
        bar.update(line, total=progress.rounds, completed=progress.round, figures=f"{loss} {validation}")

    try:
        folder = train_model(
            loaded,
            algorithm,
            out,
            rounds=rounds,
            communications=communication_list(communications),
            seed=seed,
            partition=partition,
            clients=clients,
            cohort=cohort,
            settings=parse_settings(settings or []),
            workers=workers,
            checkpoint_every=checkpoint_every,
            resume=resume,
            watch=watch,
        )
    except KeyboardInterrupt:
        messages.print(f"\ninterrupted; to go on, give the same command with --resume (--out {out})", highlight=False)
        raise typer.Exit(130) from None
    finally:
        bar.stop()
    others = {
        "--algorithms": algorithm,
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


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder that 'train' wrote.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="Examples: .npy, .npz (array 'x'), .csv with a number a column; raw rows (.csv, .tsv, .parquet) "
            "for a model of a table."
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="CSV file to write; standard output by default.")] = None,
) -> None:
    """Label and probabilities (or the predicted value) of every example, as CSV."""
    trained = load_model(model)
    outputs = trained.outputs(_examples(data, trained))
    file = open(to, "w", newline="") if to is not None else sys.stdout  # noqa: SIM115 - closed below
    try:
        writer = csv.writer(file)
        if trained.classes:
            writer.writerow(["row", "label", *(f"p({name})" for name in trained.classes)])
            for number, row in enumerate(outputs.tolist()):
                label = trained.classes[max(range(len(row)), key=row.__getitem__)]
                writer.writerow([number, label, *(f"{p:.6f}" for p in row)])
        else:
            writer.writerow(["row", "value"])
            writer.writerows([number, f"{row[0]:.6g}"] for number, row in enumerate(outputs.tolist()))
    finally:
        if to is not None:
            file.close()


def _examples(path: Path, trained: TrainedModel) -> Tensor:
    """What the model takes, from a file: raw rows are prepared by the numbers that came with the model."""
    preparation = trained.preparation
    if preparation is None:
        return read_examples(path, trained.model.spec)
    if isinstance(preparation, FittedWords):
        return preparation.apply(read_examples(path, trained.model.spec))
    if path.suffix in (".npy", ".npz"):
        raw = ModelSpec(input_shape=(len(preparation.columns),), outputs=1)
        return preparation.apply(read_examples(path, raw, torch.float64))
    x, notes = trained.read(path)
    for note in notes:
        messages.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    return x


def read_examples(path: Path, spec: ModelSpec, dtype: torch.dtype | None = None) -> Tensor:
    """Examples from a file, in the shape the model takes; rows of numbers are folded into images where they fit."""
    if not path.is_file():
        raise UserError(f"there is no file '{path}'")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                if "x" not in arrays:
                    raise UserError(f"'{path}' has no array 'x'; it has {', '.join(arrays) or 'none'}")
                values = arrays["x"]
        elif path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".csv":
            values = _read_csv(path)
        else:
            raise UserError(f"'{path}' is neither .npy, .npz nor .csv")
        x = torch.as_tensor(values)
    except UserError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise UserError(f"'{path}' cannot be read as numbers: {error}") from error
    x = x if x.dtype == torch.uint8 and dtype is None else x.to(dtype or torch.get_default_dtype())
    if x.dim() == 2 and x.shape[1] == spec.input_size:
        x = x.view(-1, *spec.input_shape)
    if tuple(x.shape[1:]) != spec.input_shape:
        raise UserError(f"the model takes examples of shape {spec.input_shape}; '{path}' has {tuple(x.shape[1:])}")
    return x


def _read_csv(path: Path) -> np.ndarray:
    first = path.open().readline()
    try:
        [float(cell) for cell in first.split(",")]
        header = 0
    except ValueError:
        header = 1
    return np.loadtxt(path, delimiter=",", skiprows=header, ndmin=2, dtype=np.float32)
