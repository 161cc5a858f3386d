"""`farfield report`: the page and the table of a bench that was run before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.answer import print_answer
from farfield.cli.console import output
from farfield.cli.option_values import Metric
from farfield.cli.output_file import check_output
from farfield.errors import UserError
from farfield.report.collect import collect
from farfield.report.table_files import SUFFIXES
from farfield.runs.bench import BenchResult


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that 'bench --out' named.")],
    to: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page; report.html in the folder. A file that ends with .csv, .json, .md or .tex "
            "gets a table."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Which table --to writes; results. A wrong name lists them all.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write every figure as SVG and PNG into this folder.")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Selection rule of the printed table.")] = None,
    metric: Metric = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write one row per run to this file.")] = None,
) -> None:
    """Write the report of a bench, finished or not, and print its table."""
    check_output("--json", json_file)
    result = BenchResult(collect(folder, "report", metric))
    if json_file is not None:
        result.json(json_file)
    wants_table = to is not None and to.suffix in SUFFIXES
    if table is not None and not wants_table:
        raise UserError(f"--table '{table}' needs --to with a file that ends with one of {', '.join(SUFFIXES)}")
    if to is not None and wants_table:
        check_output("--to", to)
        page = result.write_table(to, table, rule)
    else:
        page = result.report(to)
    if figures is not None:
        written = result.figures(figures, rule)
    if result.rows:
        output.print(result.results(rule).render(output.width))
    print_answer(result, rule)
    output.print(f"{'table' if wants_table else 'report'}: {page}", highlight=False, soft_wrap=True, markup=False)
    if figures is not None:
        output.print(f"figures: {len(written)} files in {figures}", highlight=False, soft_wrap=True, markup=False)
