"""`farfield report`: the page and the table of benches that were run before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.bench_output import print_provisional
from farfield.cli.console import output
from farfield.cli.data_options import print_notes
from farfield.cli.option_values import Metric
from farfield.cli.output_file import check_output
from farfield.report.collect import collect
from farfield.report.comparison import compared
from farfield.runs.bench import BenchResult

#: The page of a comparison, in the current folder: it belongs to none of the benches.
COMPARISON = Path("comparison.html")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="The folder that 'bench --out' named; several, of one task and data, for a comparison."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="Where to write the page; report.html in the folder, or comparison.html here."),
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Selection rule of the printed table.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The label or method that differences are to.", show_default=False)
    ] = None,
    metric: Metric = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write one row per run to this file.")] = None,
) -> None:
    """Write the report of a bench, finished or not, and print its table.

    Several benches of one task and data are put into one comparison, paired where their runs match.
    """
    check_output("--json", json_file)
    result = BenchResult(compared([collect(folder, "report", metric) for folder in folders], baseline))
    if json_file is not None:
        result.json(json_file)
    page = result.report(to if to is not None or len(folders) == 1 else COMPARISON)
    if len(folders) > 1:
        print_notes(result.sweep.plan["notes"])
    if result.rows:
        output.print(result.results(rule).render(output.width))
    print_provisional(result.sweep)
    output.print(f"report: {page}", highlight=False, soft_wrap=True)
