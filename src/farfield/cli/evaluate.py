"""`farfield evaluate`: a trained model on a new site whose labels are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.console import output
from farfield.cli.data_options import print_notes
from farfield.cli.engine_options import Device, Precision
from farfield.cli.output_file import check_output
from farfield.trained.evaluation import evaluate as evaluate_model


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder that 'train' or 'server' wrote.")],
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Labelled data of the kind that the model was trained on: a table (.csv, .tsv, .parquet); folders of "
            "images, class/*.png or domain/class/*.png; arrays, .npz with x and y, or .npy with --label FILE.npy."
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(
            help="The table's column with the truth (the label of the training by default); the array's name in a "
            ".npz (y by default); a .npy file.",
            show_default=False,
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="The table's column that says whose row it is, for figures by domain (that of the training by "
            "default, if it is there); the array's name in a .npz ('domain' by default).",
            show_default=False,
        ),
    ] = None,
    device: Device = "cpu",
    precision: Precision = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure a trained model on a labelled new site: every metric, the AUROC's interval, and calibration.

    MODEL is a folder that 'train' or 'server' wrote. DATA is labelled data of the kind that it was trained on: a table;
    a folder of images, class/*.png or domain/class/*.png; arrays, .npz with x and y, or .npy with --label FILE.npy.
    Figures are for all rows and, where the data names several domains, for each. Rows are counted from 1.
    """
    check_output("--json", json_file, [model, *data, *(Path(name) for name in (label, domain) if name is not None)])
    result = evaluate_model(model, *data, label=label, domain=domain, device=device, precision=precision or "float32")
    print_notes(result.notes)
    if json_file is not None:
        result.json(json_file)
    output.print(result.table().render(output.width))
    sites = result.sites()
    if sites is not None:
        output.print(sites.render(output.width))
