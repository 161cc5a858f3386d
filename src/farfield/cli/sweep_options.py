"""Options of a sweep over settings, and what is printed at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.cli.console import messages, output
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
    losing = with_losses(result)
    if losing:
        text = f"{len(losing)} of them lost replies of clients ('lost' in the JSON rows); a rerun can give others"
        messages.print(f"[bold yellow]lost:[/] {text}", highlight=False, soft_wrap=True)


def with_losses(result: SweepResult) -> list[dict[str, Any]]:
    """Return the rows of runs in which a client's reply did not reach the model."""
    return [row for row in result.rows if any(entry.get("dropped") for entry in row.get("lost", ()))]
