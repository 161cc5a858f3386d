"""Writes that are either there or not, also after a kill or a power cut."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


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
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name_file(error, place, temporary)
        raise
    _sync_folder(path.parent)


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
    """Add one JSON line in a single write. A kill can lose or cut the last line, never an earlier one."""
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
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
    """The rows of a JSONL file; lines that were cut short by a kill, or hold no row, are passed over."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            row = None
            with suppress(ValueError):
                row = json.loads(line)
            if isinstance(row, dict):
                yield row


def broken_rows(path: Path) -> int:
    """Count the lines of a JSONL file that cannot be read, but for a last one that a kill has cut."""
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    broken = 0
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except ValueError:
            broken += number < len(lines) or line.endswith(b"\n")
    return broken


def keep_rows_until(path: Path, last_round: int) -> None:
    """Drop rows of later rounds (and a cut line), so that a resumed run writes them anew."""
    rows = [row for row in read_rows(path) if row["round"] <= last_round]
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
