"""Cells of text files: which of them are numbers, also in a part of the file.

What a column is read as depends on all its cells: one word makes numbers text. A run reads the rows of its sources as
if they were the whole file, so that a word in a domain that is held out changes nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Read as missing, besides pandas' own list (an empty cell, NA, NaN, null, …).
MISSING = ["?"]
#: Under this name a frame's attributes hold which cells were text in the file, `TextCells`.
CELLS = "cells"
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+(,\d+)?\s*")
#: 1,200 may be twelve hundred as well.
_PERHAPS_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")
#: 2.703 is 2703 where a comma is the decimal sign.
DOTS_APART = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*")


@dataclass(frozen=True)
class TextCells:
    """What a part of a text file needs to be read as if it were the whole file.

    One word among numbers makes a column text. Without the rows that hold such words it would have been numbers.
    """

    #: The columns that were read as text although nobody asked for that.
    columns: tuple[str, ...]
    separator: str
    #: The numbers of rows that show that the comma is the decimal sign.
    comma_rows: frozenset[int] = frozenset()

    def __deepcopy__(self, memo: object) -> TextCells:
        return self  # pandas copies a frame's attributes with every selection

    def commas_in(self, frame: DataFrame) -> bool:
        """Whether these rows alone show that the comma is the decimal sign."""
        if self.separator == ",":
            return False
        if self.comma_rows:
            return not self.comma_rows.isdisjoint(frame.index)
        own = frame[[name for name in self.columns if name in frame.columns]]
        return decimal_commas(own, (), self.separator) is not None


def as_read(frame: DataFrame) -> DataFrame:
    """Return rows of a frame with the types that a file of these rows alone would have been read with."""
    cells: TextCells | None = frame.attrs.get(CELLS)
    if cells is None or not len(frame):
        return frame
    here = [name for name in cells.columns if name in frame.columns]
    names = [name for name in here if frame[name].dtype.kind not in "biufM"]
    if not names:
        return frame
    commas = cells.commas_in(frame)
    read = _read_again(frame[names], commas)
    if commas:
        read = plain_numbers(read, ())
    return frame.assign(**{name: read[name] for name in names})


def numbers_as_read(series: Series, commas: bool) -> Series:
    """Return a column of text as the numbers that its cells are; missing where a cell is no number."""
    import pandas as pd

    texts = series.map(lambda cell: cell if isinstance(cell, str) else None).astype(object)
    plain = pd.to_numeric(texts, errors="coerce")
    read = _read_numbers(texts.where(plain.notna()), commas=False)
    if commas:
        comma = [isinstance(cell, str) and "," in cell and bool(_DECIMAL_COMMA.fullmatch(cell)) for cell in texts]
        read = read.fillna(_read_numbers(texts.where(comma), commas=True))
    return read


def _read_numbers(texts: Series, commas: bool) -> Series:
    import pandas as pd

    try:
        return _read_again(texts.to_frame("cell"), commas)["cell"].astype(float)
    except (ValueError, OverflowError):  # the reader takes one of them for no number, or for one that no float holds
        plain = texts.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) else None)
        return pd.to_numeric(plain, errors="coerce").astype(float)


def _read_again(frame: DataFrame, commas: bool) -> DataFrame:
    """Return columns of text with the types that the reader of files gives them."""
    import pandas as pd

    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, quoting=csv.QUOTE_ALL)
    buffer.seek(0)
    read = pd.read_csv(
        buffer,
        na_values=MISSING,
        low_memory=False,
        skip_blank_lines=False,
        index_col=False,
        decimal="," if commas else ".",
    )
    return read.set_axis(frame.index, axis=0).set_axis(frame.columns, axis=1)


def decimal_commas(frame: DataFrame, texts: Sequence[str], separator: str) -> str | None:
    """If columns of text are numbers such as 3,14: a sentence that says how they are read.

    Where semicolons part the cells a comma is the decimal sign. Elsewhere one cell must tell it from 1,200.
    """
    for name in frame.columns:
        if frame[name].dtype.kind in "biufM" or str(name).strip() in texts:
            continue
        known = frame[name].dropna().astype(str)
        if not len(known) or not known.map(lambda cell: bool(_DECIMAL_COMMA.fullmatch(cell))).all():
            continue
        clear = [cell for cell in known if "," in cell and not _PERHAPS_THOUSANDS.fullmatch(cell)]
        shown = next(iter(clear), next((cell for cell in known if "," in cell), None))
        if clear or (shown is not None and separator == ";"):
            assert shown is not None
            number = float(shown.replace(",", "."))
            return f"a comma was read as the decimal sign: '{shown.strip()}' of column '{name}' is {number:g}"
    return None


def comma_rows_of(frame: DataFrame, texts: Sequence[str]) -> frozenset[int]:
    """The numbers of the rows in which a number has a decimal comma."""
    shown = np.zeros(len(frame), dtype=bool)
    for name in frame.columns:
        if frame[name].dtype.kind in "biufM" or str(name).strip() in texts:
            continue
        cells = [cell if isinstance(cell, str) else "" for cell in frame[name]]
        shown |= np.array(["," in cell and bool(_DECIMAL_COMMA.fullmatch(cell)) for cell in cells])
    return frozenset((np.flatnonzero(shown) + 1).tolist())


def plain_numbers(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    """Columns with decimal points beside ones with decimal commas, which are text to a reader of commas."""
    import pandas as pd

    for name in frame.columns:
        if str(name).strip() in texts or frame[name].dtype.kind in "biufM":
            continue
        known = frame[name].dropna()
        dotted = [cell for cell in known if isinstance(cell, str) and "." in cell]
        if dotted and all(DOTS_APART.fullmatch(cell) for cell in dotted):
            continue  # left as text, which gets a note
        if all(isinstance(cell, str) for cell in known):
            numbers = pd.to_numeric(frame[name], errors="coerce")
            if numbers.notna().equals(frame[name].notna()):
                frame[name] = numbers
    return frame
