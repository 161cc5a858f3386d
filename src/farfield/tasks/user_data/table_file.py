"""Table files as data frames: CSV in any dialect, TSV, Excel and Parquet. Every failure is a sentence."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.errors import UserError
from farfield.tasks.unpacking import UNPACKING_ERRORS, PackedError, check_gzip, check_parquet
from farfield.tasks.user_data import workbook
from farfield.tasks.user_data.text_cells import (
    CELLS,
    MISSING,
    TextCells,
    comma_rows_of,
    decimal_commas,
    plain_numbers,
)
from farfield.tasks.user_data.text_encoding import DEFAULT, USUAL, known_encoding, working_encoding

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
READABLE = "a .csv, .csv.gz, .tsv, .xlsx or .parquet file"
#: How much of a file is looked at to tell its separator.
SAMPLE = 64 * 1024
#: For messages about such a cell.
READ_AS_MISSING = "an empty cell, or a word that stands for one, such as NA, None or ?"
#: Row numbers that a message names before it says how many more there are.
NAMED = 5
#: What pandas says of a line that is too long.
_UNEVEN = re.compile(r"Expected \d+ fields in line (\d+), saw (\d+)")
_LEADING_ZERO = re.compile(r"0\d+")
#: Under this name a frame's attributes hold sentences about how its cells were read.
NOTES = "notes"


class TableError(UserError):
    """A table that cannot become a task as asked, in one sentence."""


class EncodingError(TableError):
    """A text file that is in another encoding. `way_out` says which, for whoever can name it."""

    def __init__(self, message: str, way_out: str = "") -> None:
        super().__init__(message)
        self.way_out = way_out


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table."""
    return _suffix(path) in (*TEXT, *PARQUET, *workbook.READ)


def table_name(path: Path) -> str:
    """'visits' for visits.csv.gz."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(_suffix(path)) or name


def read_frame(
    path: Path, texts: Sequence[str] = (), *, encoding: str | None = None, sheet: str | None = None
) -> DataFrame:
    """The file's rows, with columns named by text and rows numbered from 1, as the messages count them.

    Columns in `texts` are names and stay as they are written in a text file: 007 is not 7. A text file is UTF-8 unless
    `encoding` names another; of a workbook the first sheet is read unless `sheet` names another.
    """
    path = Path(path)
    if path.is_dir():
        raise TableError(f"'{path}' is a folder, not a table; give {READABLE}")
    if not path.is_file():
        raise TableError(f"there is no file '{path}'")
    suffix = _suffix(path)
    if suffix in workbook.NOT_READ:
        raise TableError(
            f"'{path.name}' is a spreadsheet of a kind that is not read here; save it as .xlsx, or save its sheet "
            "as CSV (UTF-8), and give that file"
        )
    if not is_table(path):
        raise TableError(f"'{path.name}' is no table that can be read; give {READABLE}")
    if path.stat().st_size == 0:
        raise TableError(f"'{path.name}' is empty")
    for option, value, kinds in (("--encoding", encoding, TEXT), ("--sheet", sheet, workbook.READ)):
        if value is not None and suffix not in kinds:
            raise TableError(f"{option} is for {' and '.join(kinds)} files, and '{path.name}' is none")
    notes: list[str] = []
    if suffix in workbook.READ:
        try:
            frame, notes = workbook.read_sheet(path, sheet)
        except workbook.WorkbookError as error:
            raise TableError(str(error)) from error
    else:
        frame = _parquet(path) if suffix in PARQUET else _text(path, texts, _encoding_named(encoding))
        frame.index = range(1, len(frame) + 1)
    frame.columns = [str(name).strip() for name in frame.columns]
    refuse_twice(f"'{path.name}'", frame.columns)
    if frame.empty:
        raise TableError(f"'{path.name}' has a header and no rows")
    frame.attrs[NOTES] = [*notes, *frame.attrs.get(NOTES, [])]
    return frame


def _encoding_named(name: str | None) -> str:
    if name is None:
        return DEFAULT
    found = known_encoding(name)
    if found is None:
        raise TableError(f"there is no encoding '{name}'; usual ones are utf-8, {', '.join(USUAL)} and utf-16")
    return found


def _other_encoding(path: Path, encoding: str) -> EncodingError:
    """What to say of a text file whose bytes are not of this encoding."""
    if encoding != DEFAULT:
        return EncodingError(f"'{path.name}' is not text in the encoding '{encoding}'; name another, or omit it")
    works = working_encoding(path)
    if works is None:
        return EncodingError(f"'{path.name}' is not UTF-8 text; save it as CSV in UTF-8")
    name, word = works
    what = "UTF-16 text" if name == "utf-16" else "not UTF-8 text"
    shown = f", in which '{word}' stands there" if word else ""
    return EncodingError(
        f"'{path.name}' is {what}; save it as CSV in UTF-8", f", or read it with --encoding {name}{shown}"
    )


def need_columns(frame: DataFrame, wanted: Sequence[str], what: str) -> None:
    """Refuse columns that are not there, with the nearest that is."""
    for name in wanted:
        if name not in frame.columns:
            raise TableError(f"there is no column '{name}' for {what}; {_nearest(name, list(frame.columns))}")


def rows_named(numbers: Iterable[int]) -> str:
    """'row 3', 'rows 3 and 17', 'rows 1, 2, 3, 4, 5 and 12 more'."""
    rows = list(numbers)
    shown = [str(row) for row in rows[:NAMED]]
    if len(rows) > NAMED:
        return f"rows {', '.join(shown)} and {len(rows) - NAMED} more"
    return f"row {shown[0]}" if len(rows) == 1 else f"rows {', '.join(shown[:-1])} and {shown[-1]}"


def refuse_twice(where: str, columns: Iterable[str]) -> None:
    counts = Counter(columns)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise TableError(f"{where} has two columns named '{twice}'; rename one of them")


def _nearest(name: str, columns: Sequence[str]) -> str:
    folded = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    if near:
        return f"did you mean '{folded[near[0]]}'?"
    more = f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    return f"the columns are {', '.join(columns[:20])}{more}"


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _parquet(path: Path) -> DataFrame:
    import pandas as pd
    import pyarrow as pa

    try:
        check_parquet(path)
        frame = pd.read_parquet(path)
        _check_texts(frame)
        # A named index was a column before somebody made it the index, and may still be one as well.
        levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
        return frame.reset_index(level=levels) if levels else frame
    except UserError as error:
        raise TableError(str(error)) from error
    except (pa.ArrowException, *UNPACKING_ERRORS) as error:
        raise TableError(f"'{path.name}' is not a Parquet file that can be read: {_first_line(error)}") from error


def _check_texts(frame: DataFrame) -> None:
    """Raise pyarrow's error for text that is not UTF-8, which otherwise shows wherever a cell is read later."""
    import pandas as pd

    for number in range(frame.shape[1]):
        column = frame.iloc[:, number]
        texts = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
        if isinstance(texts.dtype, pd.StringDtype):
            texts.array.__arrow_array__().validate(full=True)


def _text(path: Path, texts: Sequence[str], encoding: str) -> DataFrame:
    import pandas as pd

    _check_packed(path)
    sample = _sample(path, encoding)
    separator = _separator(path, sample)
    options: dict[str, Any] = {
        "sep": separator,
        "encoding": encoding,
        "na_values": MISSING,
        "low_memory": False,
        "skipinitialspace": True,
        "index_col": False,
        "compression": "gzip" if path.name.lower().endswith(".gz") else None,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # cells that the header has no name for
            header = pd.read_csv(path, nrows=1, header=None, dtype=str, na_filter=False, **options).iloc[0]
            options["dtype"] = {name: str for name in header if name.strip() in texts}
            frame = pd.read_csv(path, **options)
            commas = None if separator == "," else decimal_commas(frame, texts, separator)
            rows = frozenset[int]()
            if commas is not None:
                rows = comma_rows_of(frame, texts)
                frame = plain_numbers(pd.read_csv(path, decimal=",", **options), texts)
            zeros = _leading_zeros(frame, sample, separator)
            frame.attrs[NOTES] = [*([commas] if commas else []), *zeros]
            text = [str(name).strip() for name in frame.columns if frame[name].dtype.kind not in "biufM"]
            frame.attrs[CELLS] = TextCells(tuple(name for name in text if name not in texts), separator, rows)
    except UnicodeError as error:
        raise _other_encoding(path, encoding) from error
    except pd.errors.EmptyDataError as error:
        raise TableError(f"'{path.name}' has no columns") from error
    except pd.errors.ParserWarning as error:
        raise TableError(f"'{path.name}' has more cells in its rows than names in its header") from error
    except pd.errors.ParserError as error:
        uneven = _UNEVEN.search(str(error))
        if uneven is None:
            raise TableError(f"'{path.name}' cannot be read as a table: {_first_line(error)}") from error
        line, saw = uneven.groups()
        raise TableError(
            f"line {line} of '{path.name}' has {saw} cells, and its header names {len(header)} columns; mend that "
            "line, or put a cell that holds a separator into double quotes"
        ) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TableError(f"'{path.name}' cannot be read as a table: {_first_line(error)}") from error
    refuse_twice(f"'{path.name}'", filter(None, map(str.strip, header)))  # pandas has called the second 'age' 'age.1'
    return frame


def _check_packed(path: Path) -> None:
    """Refuse a gzipped table that unpacks to too much."""
    if path.name.lower().endswith(".gz"):
        try:
            check_gzip(path)
        except PackedError as error:
            raise TableError(str(error)) from error
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"'{path.name}' cannot be unpacked: {error}") from error


def _sample(path: Path, encoding: str) -> str:
    """The beginning of the file, without a last line that may be cut."""
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            data: bytes = file.read(SAMPLE)
    except (OSError, EOFError, zlib.error) as error:
        raise TableError(f"'{path.name}' cannot be unpacked: {error}") from error
    if encoding == DEFAULT and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _other_encoding(path, encoding)
    if encoding == DEFAULT and b"\0" in data:
        raise TableError(f"'{path.name}' is not text, so it is no CSV; give {READABLE}")
    return data.decode(encoding, errors="replace")


def _separator(path: Path, sample: str) -> str:
    """What parts the cells: the candidate that parts the header and the rows below it alike."""
    if _suffix(path) == ".tsv":
        return "\t"
    header = sample.splitlines()[0] if sample.strip() else ""
    candidates = [separator for separator in ",;\t|" if separator in header]
    if not candidates:
        raise TableError(
            f"'{path.name}' has one column only or is no table: its first line has no comma, semicolon, tab or bar"
        )
    try:
        return csv.Sniffer().sniff(sample, "".join(candidates)).delimiter
    except csv.Error:
        return max(candidates, key=header.count)


def _leading_zeros(frame: DataFrame, sample: str, separator: str) -> list[str]:
    """Numbers that look like codes, as far as the beginning of the file tells: 01019 was read as 1019."""
    notes = []
    rows: list[dict[str, str | None]] = []
    with suppress(csv.Error):
        rows = list(csv.DictReader(sample.splitlines()[:-1], delimiter=separator, skipinitialspace=True))
    for name in frame.columns:
        if frame[name].dtype.kind not in "iuf":
            continue
        cells = ((row.get(name) or "").strip() for row in rows)
        code = next((cell for cell in cells if _LEADING_ZERO.fullmatch(cell)), None)
        if code is not None:
            column = str(name).strip()
            notes.append(
                f"column '{column}' has cells such as '{code}', which were read as numbers; if they are codes, say "
                f"--categorical '{column}'"
            )
    return notes


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
