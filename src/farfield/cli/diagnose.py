"""`farfield diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from farfield.cli.console import messages, output
from farfield.cli.data_options import (
    Categorical,
    Data,
    DomainColumn,
    Drop,
    DropMissingDomains,
    DropMissingLabels,
    Encoding,
    Group,
    Kind,
    Label,
    LeastRows,
    RowsOption,
    Sheet,
    TableOptions,
    find_task,
    print_notes,
)
from farfield.cli.image_options import Features, ImageSize
from farfield.cli.output_file import check_output
from farfield.diagnose.diagnosis import diagnose as diagnose_task
from farfield.diagnose.finding import Diagnosis, Finding
from farfield.diagnose.page import NOTE, chance_text, page
from farfield.printable import one_line
from farfield.records.atomic import write_atomic
from farfield.report.formats import MINUS, MISSING
from farfield.report.grid import Cell, Column, Grid


def diagnose(
    task: Annotated[str | None, typer.Argument(help="A task; see 'farfield list tasks'.")] = None,
    data: Data = None,
    label: Label = None,
    domain: DomainColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    drop_missing_labels: DropMissingLabels = False,
    least_rows: LeastRows = None,
    group: Group = None,
    kind: Kind = None,
    drop_missing_domains: DropMissingDomains = False,
    encoding: Encoding = None,
    sheet: Sheet = None,
    part_rows: RowsOption = None,
    features: Features = None,
    image_size: ImageSize = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look at fewer rows, as a bench does.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the rows and of the random draws that chance is known by.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write a page with the pictures to this file (.html).")] = None,
) -> None:
    """Describe the shift between the domains, before training: what differs, what it means, which methods it
    speaks for.

    Label shift, feature shift, concept shift, gradient conflict, near-duplicates and leaks, each with a number, what
    chance alone gives, and a verdict: alarm, silent or cannot say. These are hints from the data, not proofs.
    """
    check_output("--json", json_file, [data])
    check_output("--to", to, [data])
    options = TableOptions(
        label,
        domain,
        drop or (),
        categorical or (),
        drop_missing_labels,
        least_rows,
        group,
        kind,
        drop_missing_domains,
        encoding,
        sheet,
    )
    loaded = find_task(task, data, options, features, image_size, rows=part_rows)
    found = diagnose_task(loaded, quick=quick, seed=seed)
    print_notes([*loaded.notes, *found.notes])
    if json_file is not None:
        write_atomic(json_file, json.dumps(found.to_json(), indent=1, ensure_ascii=False).encode() + b"\n")
    if to is not None:
        write_atomic(to, page(found).encode())
    _print(found)
    if to is not None:
        messages.print(f"page: {to}", highlight=False, soft_wrap=True, markup=False)


def grid(found: Diagnosis) -> Grid:
    """The findings as a table: one line per kind."""
    columns = (
        Column("", text=True),
        Column("verdict", text=True),
        Column("value"),
        Column("by chance"),
        Column("p"),
        Column("what is measured", text=True),
    )
    rows = tuple(
        (
            Cell(f.kind),
            Cell(f.verdict, tone={"alarm": "worse", "silent": "better"}.get(f.verdict, "missing")),  # type: ignore[arg-type]
            Cell(_value(f.value)),
            Cell(_value(f.chance)),
            Cell(MISSING if f.p is None else chance_text(f.p).removeprefix("p = ").removeprefix("p ")),
            Cell(f.measure),
        )
        for f in found.results
    )
    return Grid(title="", columns=columns, rows=rows)


def _print(found: Diagnosis) -> None:
    head = f"{found.task}: {len(found.domains)} domains, {found.rows:,} rows; measured on {found.features}"
    output.print(Text(one_line(head)), soft_wrap=True, highlight=False)
    output.print(grid(found).render(output.width))
    for finding in found.results:
        output.print(
            Text(f"\n{one_line(f'{finding.kind.capitalize()}: {finding.verdict}. {_told(finding)}')}"), highlight=False
        )
    output.print(Text(f"\n{one_line(found.conclusion)}", "bold"), highlight=False)
    output.print(Text(f"\n{NOTE}", "dim"), highlight=False)


def _told(finding: Finding) -> str:
    if finding.verdict != "alarm":
        return finding.sentence
    return f"{finding.sentence} {finding.meaning} What to do: {finding.remedy}."


def _value(value: float | None) -> str:
    if value is None:
        return MISSING
    text = f"{value:.3f}"
    return text.replace("-", MINUS) if float(text) else text.lstrip("-")
