"""What the domains look like, from `examples.json`: small pictures, or the columns that shift most."""

from __future__ import annotations

import re
from typing import Any

from farfield.records.bench_folder import EXAMPLES
from farfield.records.checked_files import read_checked_json
from farfield.records.checksums import DamagedFile
from farfield.records.shapes import are_examples
from farfield.report.collect import Sweep
from farfield.report.formats import MISSING, number, public
from farfield.report.grid import Cell, Column, Grid, Tone

#: Domains that get a column of their own.
MOST_DOMAINS = 10
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def read_examples(sweep: Sweep) -> dict[str, Any]:
    """The bench's examples; empty where it has none, or where the file cannot be read."""
    try:
        content = read_checked_json(sweep.folder / EXAMPLES)
    except (OSError, DamagedFile):
        return {}
    return content if are_examples(content) else {}


def pictures(content: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Domains with the label and the address (data:) of each of their pictures."""
    found = []
    for domain, rows in (content.get("domains") or {}).items():
        of = [
            (public(str(row.get("label", ""))), f"data:image/png;base64,{row['png']}")
            for row in rows
            if isinstance(row, dict) and _BASE64.fullmatch(str(row.get("png", "")))
        ]
        if of:
            found.append((public(str(domain)), of))
    return found


def column_grid(content: dict[str, Any]) -> Grid | None:
    """The columns that shift most, with the mean of each domain; None where there are none."""
    columns = content.get("columns") or []
    if not columns:
        return None
    domains = list(dict.fromkeys(domain for of in columns for domain in of.get("missing", {})))[:MOST_DOMAINS]
    rows = []
    for of in columns:
        means, missing = of.get("means", {}), of.get("missing", {})
        cells = [Cell(public(str(of["name"])), str(of.get("kind", ""))), Cell(number(of["shift"]), value=of["shift"])]
        for domain in domains:
            empty = missing.get(domain, 0.0)
            detail = f"{100 * empty:.0f} % empty" if empty >= 0.005 else ""
            mean = means.get(domain)
            tone: Tone = "" if mean is not None else "missing"
            cells.append(Cell(MISSING if mean is None else number(mean), detail, tone, mean))
        rows.append(tuple(cells))
    heads = (Column("column", text=True), Column("shift"), *(Column(public(domain), "mean") for domain in domains))
    notes = (
        "shift of numbers: the spread of the domains' means in units of the spread within domains; of categories: the "
        "largest part of a domain's rows that lies elsewhere than in all rows together (0 to 1).",
    )
    return Grid("The columns that shift most between domains", heads, tuple(rows), notes)
