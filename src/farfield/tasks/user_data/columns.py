"""The columns of a data frame: which type each has, and its cells as numbers.

Types, levels and widths are decided from the whole table (`decision`), and no statistic is. The preparation learns
those from the training rows of a run.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from farfield.tasks.user_data.cells import found_type, nearly_numbers
from farfield.tasks.user_data.column_decision import FEW_LEVELS, Observed, ObservedLabel, decide, in_order, too_many
from farfield.tasks.user_data.column_statistics import Matrix
from farfield.tasks.user_data.preparation import FURTHEST, UNSEEN, Column, FittedColumn
from farfield.tasks.user_data.table_file import TableError, need_columns, rows_named
from farfield.tasks.user_data.text_cells import numbers_as_read

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: From this many rows on, a column with another whole number in every row is worth a note.
IDS_FROM = 30

_WHOLE = re.compile(r"^(-?(?:0|[1-9]\d*))\.0+$")
TRUTH = {"true": 1.0, "false": 0.0}
ODD = {"date": "dates", "other": "cells that are neither numbers nor text"}


def describe_columns(
    frame: DataFrame, names: Sequence[str], categorical: Sequence[str], refused: Callable[[str], None] | None = None
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns that a model can use, and a note for each that it cannot. `categorical` are never numbers.

    `refused` is told of a column that must be mended, which is then left out; without it the first one is raised.
    """
    columns, notes = [], []
    for name in names:
        try:
            column, note = _describe(frame[name], name, name in categorical)
        except TableError as error:
            if refused is None:
                raise
            refused(str(error))
            continue
        if column is not None:
            columns.append(column)
        if note:
            notes.append(note)
    return tuple(columns), tuple(notes)


def encode(frame: DataFrame, columns: Sequence[Column]) -> Matrix:
    """Raw rows, float64: numbers, 0 or 1, positions among the levels; NaN where a value is missing."""
    out = np.full((len(frame), len(columns)), np.nan)
    for number, column in enumerate(columns):
        series = frame[column.name]
        if column.kind == "category":
            out[:, number] = _codes(as_levels(series), column.levels)
        else:
            out[:, number] = _numbers(series, column)
    return out


def columns_of(frame: DataFrame, names: Sequence[str], categorical: Sequence[str]) -> tuple[Column, ...]:
    """The columns that a model can use, of rows read as they are; nothing is said about the others."""
    decided = (decide([observe(frame[name], name, name in categorical)])[0] for name in names)
    return tuple(column for column in decided if column is not None)


def encode_cells(frame: DataFrame, columns: Sequence[Column], commas: bool) -> Matrix:
    """As `encode`, for rows that may hold what no rows that decided the columns do: such a cell has no value.

    `commas` says that the comma is the decimal sign of cells that are text.
    """
    out = np.full((len(frame), len(columns)), np.nan)
    for number, column in enumerate(columns):
        series = frame[column.name]
        if column.kind == "category":
            out[:, number] = _codes(as_levels(series), column.levels)
        else:
            out[:, number] = _known_numbers(series, column, commas)
    return out


def _known_numbers(series: Series, column: Column, commas: bool) -> Matrix:
    """Cells as float64, NaN where a cell is no number, or none that a boolean has."""
    if series.dtype.kind not in "biuf":
        cells = series.astype(object)
        boolean = column.kind == "boolean"
        if boolean:
            cells = cells.map(lambda cell: TRUTH.get(str(cell).strip().lower(), cell), na_action="ignore")
        typed = cells.map(lambda cell: float(_within_floats(cell)) if isinstance(cell, int | float | Decimal) else None)
        series = typed.astype(float).fillna(numbers_as_read(cells, commas))
    values: Matrix = series.to_numpy(dtype=np.float64, na_value=np.nan)
    strange = np.isinf(values)
    if column.kind == "boolean":
        strange |= (values != 0) & (values != 1)
    return np.where(strange, np.nan, values)


def encode_unlabelled(frame: DataFrame, fitted: Sequence[FittedColumn]) -> tuple[Matrix, tuple[str, ...]]:
    """As `encode`, for rows that a model is to predict, with notes on what its training never showed."""
    need_columns(
        frame, [c.column.name for c in fitted], "the model; add it, with empty cells where the value is not known"
    )
    raw = encode(frame, [c.column for c in fitted])
    for number, c in enumerate(fitted):
        _refuse_infinite(frame[c.column.name], c.column.name, raw[:, number])
    return raw, tuple(note for number, c in enumerate(fitted) for note in _unknown(frame, c, raw[:, number]))


def encode_numbers(rows: Matrix, fitted: Sequence[FittedColumn]) -> tuple[Matrix, tuple[str, ...]]:
    """As `encode_unlabelled`, for an array whose columns have no names but their places."""
    import pandas as pd

    names = [c.column.name for c in fitted]
    return encode_unlabelled(pd.DataFrame(rows, columns=names, index=range(1, len(rows) + 1)), fitted)


def as_text(series: Series) -> Series:
    """Cells as text, missing ones as None. A cell reads the same whatever else is in its column, gaps included."""
    return _each(series, _text)


def _text(cell: object) -> str:
    """1.0 is '1', because a column of whole numbers becomes one of real numbers as soon as it has a gap."""
    if isinstance(cell, float | np.floating | Decimal):
        number = float(cell)
        if number.is_integer() and abs(number) < 2**53:
            return str(int(number))
    return str(cell).strip()


def as_levels(series: Series) -> Series:
    """Cells as the names of categories or classes: 1.0, as a program writes a whole number beside a gap, is '1'.

    All else stays as it is written, 01 and 1.50 too.
    """
    return _each(series, lambda cell: _WHOLE.sub(r"\1", _text(cell)))


def _each(series: Series, read: Callable[[object], str]) -> Series:
    import pandas as pd

    texts = np.full(len(series), None, dtype=object)
    texts[series.notna().to_numpy()] = [read(cell) for cell in series.dropna().astype(object)]
    return pd.Series(texts, index=series.index, dtype=object)


def is_code(name: str) -> bool:
    """Whether a name looks like a number and is not how that number would be written: 01, 1.50, 1E5."""
    try:
        return _text(float(name)) != name
    except ValueError:
        return False


def levels_of(series: Series) -> tuple[str, ...]:
    """The different categories of a column, by size where all are numbers, else by the alphabet."""
    return in_order(text for text in as_levels(series.drop_duplicates()) if text is not None)


def observe(series: Series, name: str, categorical: bool) -> Observed:
    """What must be known of a column to decide what becomes of it. An infinite number is refused."""
    found = found_type(series)
    known = int(series.notna().sum())
    if categorical and found != "nothing":
        found = "category"
    levels: tuple[str, ...] | None = ()
    distinct = 0
    if found in ("text", "category"):
        levels = levels_of(series)
        distinct = len(levels)
        if found == "text" and too_many(distinct, known):
            levels = None
    elif found == "boolean":
        levels = levels_of(series)
    elif found == "number":
        levels = _few_numbers(series, name)
    elif found in ("date", "other"):
        levels = None
    return Observed(name=name, found=found, known=known, missing=len(series) - known, distinct=distinct, levels=levels)


def observe_label(column: Series, label: str) -> ObservedLabel:
    """The same of a label, which is never missing."""
    found = found_type(column)
    if found != "number" and found != "boolean" and found != "text":
        raise TableError(f"the label '{label}' holds neither classes nor numbers")
    if found == "number":
        _refuse_infinite(column, label, _numbers(column, Column(label, "number")))
    if found != "number":
        return ObservedLabel(name=label, found=found, whole=False, levels=levels_of(column))
    whole = column.dtype.kind in "iuf" and not bool((column % 1).any())
    few = column.nunique() <= (FEW_LEVELS if whole else 1)
    return ObservedLabel(name=label, found=found, whole=whole, levels=levels_of(column) if few else None)


def _few_numbers(series: Series, name: str) -> tuple[str, ...] | None:
    """The values of a column of numbers where these are 0 and 1 only, or just one."""
    values = _numbers(series, Column(name, "number"))
    _refuse_infinite(series, name, values)
    different = np.unique(values[~np.isnan(values)])
    if len(different) == 1 and series.nunique() > 1:
        return None  # whole numbers so large that float64 does not tell them apart
    few = len(different) == 1 or bool(np.isin(different, (0, 1)).all())
    return tuple(_text(value) for value in different.tolist()) if few else None


def _refuse_infinite(series: Series, name: str, values: Matrix) -> None:
    if np.isinf(values).any():
        rows = rows_named(series.index[np.isinf(values)])
        raise TableError(f"column '{name}' has an infinite value in {rows}; mend it or leave the cell empty")


def _describe(series: Series, name: str, categorical: bool) -> tuple[Column | None, str | None]:
    observed = observe(series, name, categorical)
    column, reason = decide([observed])
    if column is not None:
        return column, _kept_note(series, observed, column)
    why = {
        "empty": "it has no values",
        "odd": f"it holds {ODD.get(observed.found, '')}; add a column of numbers made from it to use it, or say "
        f"--categorical '{name}' if it is a code",
        "constant": f"every row has the value {series.iloc[0]}",
        "names": f"it holds {observed.distinct} different texts in {observed.known} rows, "
        f"{nearly_numbers(series) or 'that is a name or an id rather than a category'}; say --drop '{name}' to agree, "
        f"or --categorical '{name}' to use it",
    }
    assert reason is not None
    return None, f"column '{name}' was left out: {why[reason]}"


def _kept_note(series: Series, observed: Observed, column: Column) -> str | None:
    """What a reader should be asked about a column that is used."""
    if column.kind == "number":
        return _id_note(column.name, _numbers(series, column))
    nearly = nearly_numbers(series) if observed.found == "text" else None
    if nearly is None:
        return None
    return (
        f"column '{column.name}' was taken as {observed.distinct} categories: it holds text, {nearly}; say "
        f"--categorical '{column.name}' to agree"
    )


def _id_note(name: str, values: Matrix) -> str | None:
    if len(values) < IDS_FROM or np.isnan(values).any() or (values % 1).any() or len(np.unique(values)) < len(values):
        return None
    return f"column '{name}' has another whole number in every row; if it is an id, leave it out with --drop '{name}'"


def _numbers(series: Series, column: Column) -> Matrix:
    """Cells as float64; a cell that is no number, or none that a boolean has, is named."""
    import pandas as pd

    cells = series
    if series.dtype.kind not in "biuf":
        # A column that is not numbers throughout has its booleans as objects or as text.
        cells = series.map(
            lambda cell: TRUTH.get(str(cell).strip().lower(), cell) if column.kind == "boolean" else cell
        )
    if cells.dtype == object:
        cells = cells.map(_within_floats)
    numbers = pd.to_numeric(cells, errors="coerce")
    values: Matrix = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.isnan(values) & series.notna().to_numpy()
    wanted = "a number"
    if column.kind == "boolean":
        bad |= ~np.isnan(values) & (values != 0) & (values != 1)
        wanted = "true or false (1 or 0)"
    if bad.any():
        rows = series.index[bad]
        cell = series.loc[rows[0]]
        raise TableError(f"column '{column.name}' has '{cell}' in {rows_named(rows)}, where {wanted} belongs")
    return values


def _within_floats(cell: Any) -> Any:
    """Return a whole number that no float can hold as infinite, as pandas reads 1e400; any other cell unchanged."""
    if isinstance(cell, int) and abs(cell) > sys.float_info.max:
        return math.inf if cell > 0 else -math.inf
    return cell


def _codes(texts: Series, levels: Sequence[str]) -> Matrix:
    codes = {level: float(code) for code, level in enumerate(levels)}
    return np.array([math.nan if text is None else codes.get(text, UNSEEN) for text in texts])


def _unknown(frame: DataFrame, fitted: FittedColumn, raw: Matrix) -> list[str]:
    column, notes = fitted.column, []
    gaps = np.isnan(raw)
    if gaps.any() and not (column.missing and fitted.live[-1]):
        used = "none of its categories" if column.kind == "category" else f"{fitted.fill:.6g}"
        notes.append(
            f"column '{column.name}' has no value in {rows_named(frame.index[gaps])}, and in training none was "
            f"missing; it was read as {used}"
        )
    if column.kind == "category":
        seen = np.array([*fitted.live[: len(column.levels)], False])  # the last is for UNSEEN, -1
        strange = ~gaps & ~seen[np.where(gaps, -1, raw).astype(np.int64)]
        if strange.any():
            values = sorted(set(as_levels(frame[column.name])[strange]))
            shown = ", ".join(f"'{value}'" for value in values[:5]) + (", …" if len(values) > 5 else "")
            notes.append(
                f"column '{column.name}' has {shown} in {rows_named(frame.index[strange])}, which training never "
                "showed; such a cell was read as none of the known categories"
            )
    elif not fitted.live[0]:
        notes.append(f"column '{column.name}' had one value only in training and is not used")
    elif column.kind == "number":
        notes += _far_off(frame, fitted, raw)
    return notes


def _far_off(frame: DataFrame, fitted: FittedColumn, raw: Matrix) -> list[str]:
    far = np.abs(raw - fitted.mean) > FURTHEST * fitted.scale  # a gap is not far
    if not far.any():
        return []
    name, first = fitted.column.name, frame.index[far][0]
    return [
        f"column '{name}' has {frame[name].loc[first]} in {rows_named(frame.index[far])}, which is beyond anything in "
        f"training (mean {fitted.mean:.6g}, deviation {fitted.scale:.6g}); it was read as {FURTHEST:g} deviations from "
        "the mean"
    ]
