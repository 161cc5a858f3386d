"""`farfield report`: the page and the table of a bench that was run before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.bench_output import print_provisional
from farfield.cli.console import output
from farfield.cli.option_values import Metric
from farfield.cli.output_file import check_output
from farfield.report.collect import collect
from farfield.runs.bench import BenchResult


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that 'bench --out' named.")],
    to: Annotated[Path | None, typer.Option(help="Where to write the page; report.html in the folder.")] = None,
    rule: Annotated[str | None, typer.Option(help="Selection rule of the printed table.")] = None,
    metric: Metric = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write one row per run to this file.")] = None,
) -> None:
    """Write the report of a bench, finished or not, and print its table."""
    check_output("--json", json_file)
    result = BenchResult(collect(folder, "report", metric))
    if json_file is not None:
        result.json(json_file)
    page = result.report(to)
    if result.rows:
        output.print(result.results(rule).render(output.width))
    print_provisional(result.sweep)
    output.print(f"report: {page}", highlight=False, soft_wrap=True)
