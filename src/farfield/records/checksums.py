"""Checksums of everything that is read back, so that a flipped byte on a disk is noticed and never used.

A checksum stands in the file that it belongs to, because two files cannot be replaced in one step:

    JSON lines   the last field of a row, "check", of the bytes before it
    JSON         the field "check" of an object, of its other fields
    TOML         the last line, a comment, of the bytes before it
    tensors      an entry of the metadata, of the other entries and all tensors (see `checked_tensors`)

Files of older versions have none. They are read as before, without a word: nothing can be said about them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from farfield.records.errors import RecordsError

#: The name of the field that holds a checksum.
CHECK = "check"
#: Half of a sha256, in hex: more than enough against chance, and short enough for every row of a file.
_DIGITS = 32
#: Lines that are longer than this are no rows of ours.
LONGEST_LINE = 64 * 2**20
_LINE_END = re.compile(rb'(?:, )?"check": "([0-9a-f]{32})"\}\s*\Z')
#: A line that had a checksum before the damage hit it, which is not what an older version wrote.
_ONCE_CHECKED = re.compile(rb'"check": "|"[0-9a-f]{32}"\}\s*\Z')
#: What reading JSON or TOML that somebody else wrote can raise: deep nesting is a RecursionError.
UNREADABLE = (ValueError, RecursionError, OverflowError)


class DamagedFile(RecordsError):
    """A file whose content is not what was written."""


def digest(*parts: bytes) -> str:
    """Return the checksum of some bytes."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()[:_DIGITS]


def checked_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of JSON that ends with its checksum."""
    body = json.dumps({name: value for name, value in row.items() if name != CHECK}, allow_nan=False).encode()
    comma = ", " if len(body) > 2 else ""
    return body[:-1] + f'{comma}"{CHECK}": "{digest(body)}"}}\n'.encode()


def _end_of(line: bytes) -> re.Match[bytes] | None:
    """Find the checksum at the end of a line, from the end: files grow with every round."""
    at = line.rfind(b'"check": "')
    return None if at < 0 else _LINE_END.match(line, at - 2 if line[at - 2 : at] == b", " else at)


class LineReader:
    """Reads the lines of one JSONL file in order.

    Lines without a checksum come from an older version, so they can only stand before the first one that has one.
    """

    def __init__(self) -> None:
        self._checked = False

    def row(self, line: bytes) -> dict[str, Any] | None:
        """Return the row of a line; None for one that was cut, is damaged, or is no JSON object."""
        if len(line) > LONGEST_LINE:
            return None
        end = _end_of(line)
        if end is None and (self._checked or _ONCE_CHECKED.search(line)):
            return None
        if end is not None:
            body = line[: end.start()] + b"}"
            if digest(body) != end[1].decode():
                return None
            self._checked, line = True, body
        try:
            # What has a checksum was written here, and is finite; anything else may hold NaN or 1e999.
            row = (
                json.loads(line)
                if end is not None
                else json.loads(line, parse_constant=refuse_number, parse_float=finite_number)
            )
        except UNREADABLE:
            return None
        return row if isinstance(row, dict) else None


def finite_number(text: str) -> float:
    """Return the number that a JSON text writes. Raises ValueError for one that is not finite, such as 1e999."""
    value = float(text)
    return value if math.isfinite(value) else refuse_number(text)


def refuse_number(text: str) -> NoReturn:
    """Raise ValueError for what is no number of a record."""
    raise ValueError(f"{text[:40]} is no number of a record")
