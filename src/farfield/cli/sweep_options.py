"""Options of a sweep over settings, and what is printed at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.console import output
from farfield.runs.grid.sweep import SweepResult

Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="name=value,value,…: a bench at every value of a parameter (gamma=0,1e-4,1e-3, fedomg.kappa=0.1,0.5), or "
        "of clients, cohort, communications, rounds, partition, validation; given twice, every pair of values.",
        show_default=False,
    ),
]
Reach = Annotated[
    float | None,
    typer.Option(
        "--reach",
        help="With --sweep: count the bytes until the metric on validation rows is this. Default: 95 % of the "
        "baseline's best.",
        show_default=False,
    ),
]


def print_sweep(result: SweepResult, page: Path, seconds: float | None = None) -> None:
    """Print the table of a sweep and where its page is."""
    output.print(result.grid().render(output.width))
    took = "" if seconds is None else f" in {seconds:.0f} s"
    line = f"{len(result.rows)} results{took}; report: {page}"
    output.print(line, highlight=False, soft_wrap=True, markup=False)
