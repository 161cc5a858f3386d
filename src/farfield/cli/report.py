"""`farfield report`: the page, the tables and the figures of a bench that was run before, or of several together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.answer import print_answer
from farfield.cli.console import output
from farfield.cli.data_options import print_notes
from farfield.cli.option_values import Metric
from farfield.cli.output_file import check_output
from farfield.cli.sweep_options import print_sweep
from farfield.errors import UserError
from farfield.records.sweep_folder import is_sweep
from farfield.report.collect import collect
from farfield.report.comparison import compared
from farfield.report.sweep_points import collect_points
from farfield.report.table_files import SUFFIXES
from farfield.runs.bench import BenchResult
from farfield.runs.grid.sweep import SweepResult

#: The page of a comparison, in the current folder: it belongs to none of the benches.
COMPARISON = Path("comparison.html")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="The folder that 'bench --out' named; several, of one task and data, for a comparison."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page; report.html in the folder, or comparison.html here. A file that ends with "
            ".csv, .json, .md or .tex gets a table."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Which table --to writes. Default: results. A wrong name lists them all."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write every figure as SVG and PNG into this folder.")
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
    if len(folders) == 1 and is_sweep(folders[0]):
        swept = SweepResult(collect_points(folders[0], "report", metric))
        if json_file is not None:
            swept.json(json_file)
        print_sweep(swept, swept.report(to))
        return
    wants_table = to is not None and to.suffix in SUFFIXES
    if table is not None and not wants_table:
        raise UserError(f"--table '{table}' needs --to with a file that ends with one of {', '.join(SUFFIXES)}")
    if wants_table:
        check_output("--to", to)
    result = BenchResult(compared([collect(folder, "report", metric) for folder in folders], baseline))
    if json_file is not None:
        result.json(json_file)
    if to is not None and wants_table:
        written = f"table: {result.write_table(to, table, rule)}"
    else:
        written = f"report: {result.report(to if to is not None or len(folders) == 1 else COMPARISON)}"
    drawn = [] if figures is None else result.figures(figures, rule)
    if len(folders) > 1:
        print_notes(result.sweep.plan["notes"])
    if result.rows:
        output.print(result.results(rule).render(output.width))
    print_answer(result, rule)
    output.print(written, highlight=False, soft_wrap=True, markup=False)
    if figures is not None:
        output.print(f"figures: {len(drawn)} files in {figures}", highlight=False, soft_wrap=True, markup=False)
