"""`farfield predict`."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.markup import escape
from torch import Tensor

from farfield.cli.console import messages
from farfield.cli.data_options import (
    print_notes,
)
from farfield.cli.engine_options import Device, Precision
from farfield.cli.output_file import check_output
from farfield.errors import UserError
from farfield.printable import visible
from farfield.records.atomic import write_atomic
from farfield.trained.model_folder import load_model


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder that 'train' wrote.")],
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Raw rows (.csv, .tsv, .parquet) for a model of a table; image files and folders of them for a model "
            "of images; else one file of arrays: .npy, .npz (array 'x'), .csv with one number per column."
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="CSV file to write; standard output by default.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Two classes: a row gets the second class from this probability on. Default: the likelier class. "
            "'farfield report' shows the net benefit of thresholds.",
            show_default=False,
        ),
    ] = None,
    device: Device = "cpu",
    precision: Precision = None,
) -> None:
    """Predict a label with probabilities (or a value) for every example, as CSV: one line per row or per image.

    DATA is what MODEL was trained on: a table's raw rows, image files and folders of images, or an array. Rows are
    counted from 1, the first below the header, here as in all messages.
    """
    check_output("--to", to, [*data, model])
    trained = load_model(model, device, precision or "float32")
    check_threshold(threshold, trained.classes)
    examples = trained.read(*data)
    outputs = trained.outputs(examples.x)
    print_notes(examples.notes)
    if to is None:
        _write(
            _SafeTerminal() if sys.stdout.isatty() else sys.stdout, examples.files, trained.classes, outputs, threshold
        )
        return
    text = StringIO(newline="")
    _write(text, examples.files, trained.classes, outputs, threshold)
    write_atomic(to, text.getvalue().encode())
    messages.print(f"{len(outputs):,} {'images' if examples.files else 'rows'}: {escape(str(to))}", highlight=False)


class _SafeTerminal(StringIO):
    """Standard output on a terminal, without what the name of a class or a file could make it do."""

    def write(self, text: str) -> int:
        return sys.stdout.write(visible(text, keep="\r\n\t"))


def check_threshold(threshold: float | None, classes: Sequence[str]) -> None:
    """Refuse a threshold that is no probability, or that a model has no use for."""
    if threshold is None:
        return
    if len(classes) != 2:
        what = f"has {len(classes)} classes" if classes else "predicts a number"
        raise UserError(f"--threshold is for models of two classes, and this one {what}")
    if not 0 < threshold < 1:
        raise UserError(f"--threshold is a probability between 0 and 1, not {threshold:g}")


def _label(row: Sequence[float], classes: Sequence[str], threshold: float | None) -> str:
    if threshold is not None:
        return classes[int(row[1] >= threshold)]
    return classes[max(range(len(row)), key=row.__getitem__)]


def _write(to: TextIO, files: Sequence[str], classes: Sequence[str], outputs: Tensor, threshold: float | None) -> None:
    """Write one line per example: its file or its number (1 is the first), then what the model says."""
    # A file's name may be any bytes; what is no text must not end the writing.
    names: Sequence[object] = [os.fsencode(name).decode("utf-8", "replace") for name in files] or range(
        1, len(outputs) + 1
    )
    first = "file" if files else "row"
    writer = csv.writer(to)
    if classes:
        writer.writerow([first, "label", *(f"p({name})" for name in classes)])
        for name, row in zip(names, outputs.tolist(), strict=True):
            writer.writerow([name, _label(row, classes, threshold), *(f"{p:.6f}" for p in row)])
    else:
        writer.writerow([first, "value"])
        writer.writerows([name, f"{row[0]:.6g}"] for name, row in zip(names, outputs.tolist(), strict=True))
