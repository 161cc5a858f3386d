"""Sheets of Excel workbooks (.xlsx, .xlsm) as data frames, by openpyxl, which the extra `excel` installs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from farfield.errors import UserError
from farfield.tasks.unpacking import check_workbook
from farfield.tasks.user_data.text_cells import MISSING

if TYPE_CHECKING:
    from pandas import DataFrame

READ = (".xlsx", ".xlsm")
#: Formats of other programs and other times.
NOT_READ = (".xls", ".xlsb", ".ods", ".numbers")


class WorkbookError(UserError):
    """A workbook that cannot be read, in one sentence."""


def read_sheet(path: Path, sheet: str | None = None) -> tuple[DataFrame, list[str]]:
    """Return the rows of a sheet, the first by default, numbered as below the header, and notes on how it was read.

    Rows and columns without any value, which programs leave behind, are left out.
    """
    if find_spec("openpyxl") is None:
        raise WorkbookError(
            f"'{path.name}' is a workbook, which openpyxl reads: pip install 'farfield[excel]', or save its sheet as "
            "CSV (UTF-8) and give that file"
        )
    import pandas as pd

    try:
        check_workbook(path)
        with pd.ExcelFile(path, engine="openpyxl") as book:
            names = [str(name) for name in book.sheet_names]
            if sheet is not None and sheet not in names:
                raise WorkbookError(f"'{path.name}' has no sheet '{sheet}'; it has {', '.join(names)}")
            frame = pd.read_excel(book, sheet if sheet is not None else names[0], na_values=MISSING)
    except UserError as error:
        raise WorkbookError(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # openpyxl raises whatever comes to the mind of the XML that it reads
        raise WorkbookError(f"'{path.name}' is not a workbook that can be read: {error}") from error
    frame.index = range(1, len(frame) + 1)
    frame = frame.dropna(how="all")
    nameless = [name for name in frame.columns if str(name).startswith("Unnamed: ") and frame[name].isna().all()]
    frame = frame.drop(columns=nameless)
    notes = []
    if sheet is None and len(names) > 1:
        others = ", ".join(f"'{name}'" for name in names[1:4]) + ", …" * (len(names) > 4)
        notes.append(f"the first sheet, '{names[0]}', was read; name another with --sheet ({others})")
    return frame, notes
