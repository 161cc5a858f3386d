"""What the cells of a column are: numbers, dates, text, or numbers that are written in a way that is not read."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from farfield.tasks.user_data.column_decision import FEW_LEVELS, Found
from farfield.tasks.user_data.table_file import rows_named
from farfield.tasks.user_data.text_cells import DOTS_APART

if TYPE_CHECKING:
    from pandas import Series

#: 2021-03-04, 4.3.2021 or 3/4/21, with a time of day or without.
_DATE = re.compile(
    r"(?:\d{4}(?P<dash>[-/.])(?P<month>\d{1,2})(?P=dash)(?P<day>\d{1,2})"
    r"|(?P<one>\d{1,2})(?P<dot>[-/.])(?P<other>\d{1,2})(?P=dot)(?:\d{4}|\d{2}))"
    r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2}|[AaPp][Mm])?)?"
)
#: 68 y, 70kg, < 5
_WITH_UNIT = re.compile(r"[<>~≤≥]?\s*[+-]?\d+([.,]\d+)?\s*([^\W\d_]{1,6}|%)?")
#: 61,26 or 1,234.50 or 1.234,56 or 1 234: numbers to a person.
_OTHERWISE_WRITTEN = re.compile(r"[+-]?(\d+,\d+|\d{1,3}([.,' \u00a0\u202f])\d{3}(\2\d{3})*([.,]\d+)?)")


def found_type(series: Series) -> Found:
    """What a column holds, as far as its cells tell."""
    if not series.notna().any():
        return "nothing"
    kind = series.dtype.kind
    if kind in "biufMm":
        return "boolean" if kind == "b" else "number" if kind in "iuf" else "date"
    cells = list(series.dropna().astype(object))
    if all(isinstance(cell, bool | np.bool_) for cell in cells):
        return "boolean"
    if all(isinstance(cell, datetime.date | datetime.time) for cell in cells):
        return "date"
    if str(series.dtype) == "category" or all(isinstance(cell, str) for cell in cells):
        return "date" if all(_is_date(str(cell).strip()) for cell in cells) else "text"
    return "number" if all(isinstance(cell, int | float | Decimal) for cell in cells) else "other"


def _is_date(text: str) -> bool:
    """Codes may look like dates; few of them have a month and a day in every row."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    if match["month"] is not None:
        return 1 <= int(match["month"]) <= 12 and 1 <= int(match["day"]) <= 31
    low, high = sorted((int(match["one"]), int(match["other"])))
    return 1 <= low <= 12 and high <= 31


def no_numbers(series: Series) -> Series:
    """The cells that are neither missing nor a number, as text; by their row numbers."""
    import pandas as pd

    known = series.dropna().astype(str)
    return known[pd.to_numeric(known, errors="coerce").isna()]


def nearly_numbers(series: Series) -> str | None:
    """For text that a person would take for a column of numbers: what keeps it from being one, and where."""
    dotted = series[[isinstance(cell, str) and bool(DOTS_APART.fullmatch(cell)) for cell in series]]
    if len(dotted):
        # Such a column is text only in a file whose decimal sign is the comma.
        return _written("with thousands apart", dotted)
    text = no_numbers(series)
    if not len(text):
        return None
    known = int(series.notna().sum())
    otherwise = text[[bool(_OTHERWISE_WRITTEN.fullmatch(cell.strip())) for cell in text]]
    if 2 * len(otherwise) > known:
        # In most files a plain decimal comma is read: where one is not, another cell is to blame.
        odd = otherwise[[cell.count(",") != 1 or "." in cell for cell in otherwise]]
        return _written("with a comma or with thousands apart", odd if len(odd) else otherwise)
    units = text[[bool(_WITH_UNIT.fullmatch(cell.strip())) for cell in text]]
    if 2 * len(units) > known and units.nunique() > FEW_LEVELS:
        return _written("with a unit or a sign", units)
    if 2 * len(text) >= known:
        return None
    return (
        f"most of them numbers, but {rows_named(text.index)} {'has' if len(text) == 1 else 'have'} text such as "
        f"'{text.iloc[0]}' (empty such cells to use the numbers)"
    )


def _written(how: str, cells: Series) -> str:
    return (
        f"most of them numbers written {how}, such as '{cells.iloc[0]}' in {rows_named(cells.index[:1])} (write plain "
        "numbers, 1234.5, to use them)"
    )
