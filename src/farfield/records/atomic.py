"""Writes that are either there or not, also after a kill or a power cut."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farfield.records.checksums import LONGEST_LINE, LineReader, checked_line


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file in one step. A reader sees the old content or the new, never a part.

    A link stays a link. A pipe or a device is written to directly.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    place, path = path, Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.partial")
    try:
        with open(_new_file(temporary), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name_file(error, place, temporary)
        raise
    _sync_folder(path.parent)


def _new_file(path: Path) -> int:
    """Open a file that was not there. In a folder of many users a link could lie in wait at a name that can be guessed.

    What a killed process with the same number has left is removed.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _name_file(error: BaseException, path: Path, temporary: Path | None = None) -> None:
    """A full disk does not say which file it had no room for, and nobody knows a temporary one."""
    if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
        error.filename, error.filename2 = str(path), None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Make sure that what was appended is on the disk."""
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one JSON line with its checksum in a single write. A kill can cut the last line, never an earlier one."""
    line = checked_line(row)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # leave a line that a kill has cut alone, and start a new one
        while line:  # a disk that is nearly full takes a part, and refuses the rest
            line = line[os.write(descriptor, line) :]
    except OSError as error:
        _name_file(error, path)
        raise
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file; lines that a kill has cut, that are damaged, or that hold no row, are passed over."""
    for row, _ in _lines(path):
        if row is not None:
            yield row


def broken_rows(path: Path) -> int:
    """Count the lines of a JSONL file that cannot be read, but for a last one that a kill has cut."""
    return sum(row is None and whole for row, whole in _lines(path))


def whole_rows(path: Path) -> list[dict[str, Any]] | None:
    """Return the rows of a JSONL file; None if a line cannot be read, but for a last one that a kill has cut."""
    rows = []
    for row, whole in _lines(path):
        if row is not None:
            rows.append(row)
        elif whole:
            return None
    return rows


def rounds_before_damage(path: Path) -> float:
    """Return the last round whose rows are surely whole: infinity for a file in which no line is damaged."""
    last = 0
    for row, whole in _lines(path):
        if row is None and whole:
            return last
        number = row.get("round") if row is not None else None
        # A round can have several rows, so the one of the last row is sure only when a later one follows.
        last = max(0, number - 1) if isinstance(number, int) else last
    return math.inf


def _lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, bool]]:
    """Yield the row of each line, None for one that cannot be read, and whether the line has its end."""
    if not path.exists():
        return
    reader = LineReader()
    with open(path, "rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if line.strip() or not line.endswith(b"\n"):
                yield reader.row(line), line.endswith(b"\n") or len(line) > LONGEST_LINE


def keep_rows_until(path: Path, last_round: int) -> None:
    """Drop rows of later rounds (and damaged lines), so that a resumed run writes them anew."""
    rows = [row for row in read_rows(path) if isinstance(row.get("round"), int) and row["round"] <= last_round]
    write_atomic(path, b"".join(checked_line(row) for row in rows))
