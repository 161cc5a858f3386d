"""Every table of a report as a file: Markdown, LaTeX, CSV or JSON, by the file's suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.records.atomic import write_atomic
from farfield.report.collect import Sweep
from farfield.report.data_table import data_grid
from farfield.report.diagnostics import diagnostics_table
from farfield.report.findings import answer, main_rule
from farfield.report.formats import finite
from farfield.report.grid import Grid, Table
from farfield.report.latex import latex
from farfield.report.prior_table import prior_grid
from farfield.report.records_section import event_grid, failure_grid
from farfield.report.settings_section import own_grid, variant_grid
from farfield.report.sites import site_grid
from farfield.report.tables import cost_table, fairness_table, metric_table, result_table
from farfield.report.tuning_section import trial_grid

#: Suffixes of files that hold one table.
SUFFIXES = (".csv", ".json", ".md", ".tex")
#: The table that is written when none is named.
FIRST = "results"


def tables(sweep: Sweep, rule: str | None = None, metric: str | None = None) -> dict[str, Table]:
    """Return the tables that this bench has, by the name that `--table` takes."""
    rule = rule or main_rule(sweep.plan)
    results = result_table(sweep, rule, metric)
    recommended = answer(sweep, results).recommended
    found: dict[str, Table | Grid | None] = {
        FIRST: Table(tuple(results.to_dicts()), results.grid()),
        "against-prior": prior_grid(results),
        "sites": None if recommended is None else site_grid(sweep, rule, recommended),
        "metrics": metric_table(sweep, rule),
        "fairness": fairness_table(sweep, rule, metric),
        "cost": cost_table(sweep),
        "data": None if sweep.data is None else data_grid(sweep.data),
        "diagnostics": diagnostics_table(sweep),
        "tuning": trial_grid(sweep),
        "variants": variant_grid(sweep.plan["variants"]),
        "parameters": own_grid(sweep.plan["settings"], "method"),
        "failures": failure_grid(sweep),
        "events": event_grid(sweep),
    }
    return {
        name: Table(_records(of), of) if isinstance(of, Grid) else of for name, of in found.items() if of is not None
    }


def write_table(
    sweep: Sweep, path: Path, name: str | None = None, rule: str | None = None, metric: str | None = None
) -> Path:
    """Write one table in the format that the suffix of `path` names."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"'{path}' does not say which format; end it with one of {', '.join(SUFFIXES)}")
    having = tables(sweep, rule, metric)
    name = name or FIRST
    if name not in having:
        raise UserError(f"this bench has no table '{name}'; it has {', '.join(having)}")
    write_atomic(path, table_text(having[name], path.suffix).encode("utf-8", "replace"))
    return path


def table_text(table: Table, suffix: str) -> str:
    """Return a table as text: CSV and JSON have full precision, Markdown and LaTeX what a reader sees."""
    if suffix == ".md":
        return table.markdown()
    if suffix == ".tex":
        return latex(table.grid)
    if suffix == ".csv":
        return as_csv(table.records)
    content = {"title": table.grid.title, "rows": finite(list(table.records)), "notes": list(table.grid.notes)}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """Return records as CSV, one line each; a number that is not known or not finite is empty.

    A spreadsheet takes a text that begins with =, +, - or @ for a formula and computes it; such a text gets a leading
    apostrophe.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([_no_formula(name) for name in names])
    for record in finite(list(records)):
        writer.writerow([_no_formula(record.get(name, "")) for name in names])
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _records(grid: Grid) -> tuple[dict[str, Any], ...]:
    """Read a table of text back as records: the value behind a cell where there is one, and its detail beside it."""
    detailed = [any(row[i].detail for row in grid.rows) for i in range(len(grid.columns))]
    records = []
    for row in grid.rows:
        record: dict[str, Any] = {}
        for column, cell, has_detail in zip(grid.columns, row, detailed, strict=True):
            record[column.heading] = cell.text if cell.value is None else cell.value
            if has_detail:
                record[f"{column.heading} ({column.detail or 'detail'})"] = cell.detail
        records.append(record)
    return tuple(records)
