"""Where the runs of a bench are made: on a cluster, or in several processes that share a folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.bench_output import plain
from farfield.report.formats import plural

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="Make the runs on a Ray cluster, with the same bits: ray for a local one or the one that RAY_ADDRESS "
        "names, ray://HOST:PORT for another. Default: this machine.",
        show_default=False,
    ),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="K/N",
        help="Make part K of N of the runs, beside other processes with the same command and --out, such as the tasks "
        "of a Slurm job array. Goes on with what is there.",
        show_default=False,
    ),
]


def print_share(share: str, waiting: int, folder: Path) -> None:
    """Say that a share has ended, how many runs of other shares are missing, and how to get the report."""
    missing = f"{plural(waiting, 'run')} of other shares {'is' if waiting == 1 else 'are'} missing"
    command = shlex.join(["farfield", "report", str(folder)])
    plain(f"share {share} has ended; {missing}. The share that ends last writes the report; to write it now: {command}")
