"""What the page's script needs, as one compact JSON text: tables for the switches, and values to point at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from farfield.report.figures import Figure
from farfield.report.formats import finite, printable
from farfield.report.glossary import spellings
from farfield.report.grid import Cell, Grid


def page_data(tables: Mapping[str, Mapping[str, Grid]], figures: Iterable[Figure]) -> str:
    """Return JSON that can stand inside a script element: `tables` by name and choice, `figures` by name."""
    content = {
        "tables": {name: {choice: _grid(grid) for choice, grid in of.items()} for name, of in tables.items()},
        "figures": {figure.name: figure.hover for figure in figures if figure.hover is not None},
        "terms": spellings(),
    }
    text = json.dumps(finite(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _grid(grid: Grid) -> dict[str, Any]:
    return {
        "title": printable(grid.title),
        "columns": [_trimmed([printable(c.heading), printable(c.detail), int(c.text), c.term]) for c in grid.columns],
        "rows": [[_cell(cell) for cell in row] for row in grid.rows],
        "notes": [printable(note) for note in grid.notes],
    }


def _cell(cell: Cell) -> list[Any]:
    value = None if cell.value is None or not math.isfinite(cell.value) else float(f"{cell.value:.9g}")
    return _trimmed([printable(cell.text), printable(cell.detail), cell.tone, value])


def _trimmed(values: list[Any]) -> list[Any]:
    while len(values) > 1 and values[-1] in ("", None, 0) and not isinstance(values[-1], float):
        values.pop()
    return values
